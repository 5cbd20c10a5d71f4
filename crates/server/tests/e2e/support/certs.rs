//! Certificates for tests: an authority in a directory, and files of what it certifies.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

/// An authority.
pub struct Authority {
    dir: PathBuf,
    name: &'static str,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, whose files are in `dir`.
    pub fn new(dir: &Path, name: &'static str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, format!("the authority {name}"));
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let dir = dir.to_path_buf();
        fs::write(dir.join(format!("{name}.pem")), issuer.pem()).expect("a file");
        Authority { dir, name, issuer }
    }

    /// The file of its own certificate.
    pub fn ca(&self) -> String {
        self.file(&format!("{}.pem", self.name))
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).to_str().expect("UTF-8").to_string()
    }

    /// Files of a certificate of localhost and 127.0.0.1, good until the end of a year, and of its key.
    pub fn certify(&self, name: &str, last_year: i32) -> (String, String) {
        let names = vec!["localhost".to_string(), "127.0.0.1".to_string()];
        let mut params = CertificateParams::new(names).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(last_year, 12, 31);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        let files = (
            self.file(&format!("{}-{name}.pem", self.name)),
            self.file(&format!("{}-{name}.key", self.name)),
        );
        fs::write(&files.0, cert.pem()).expect("a file");
        fs::write(&files.1, key.serialize_pem()).expect("a file");
        fs::set_permissions(&files.1, PermissionsExt::from_mode(0o600)).expect("a mode");
        files
    }
}
