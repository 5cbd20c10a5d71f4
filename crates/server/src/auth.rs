//! The password of a server. Promises: a comparison takes the same time whatever was sent, so that nobody can feel a way to
//! the password. Never: shows it, not even in a debug print.

use std::path::Path;

use subtle::ConstantTimeEq;

/// The longest password, bytes.
pub const PASSWORD_MAX_BYTES: usize = 512;

/// A password.
#[derive(Clone, PartialEq, Eq)]
pub struct Password {
    padded: Box<[u8; PASSWORD_MAX_BYTES]>,
    len: u32,
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(not shown)")
    }
}

fn padded(text: &[u8]) -> Option<(Box<[u8; PASSWORD_MAX_BYTES]>, u32)> {
    let mut bytes = Box::new([0; PASSWORD_MAX_BYTES]);
    bytes.get_mut(..text.len())?.copy_from_slice(text);
    Some((bytes, text.len() as u32))
}

impl Password {
    /// Of a text.
    ///
    /// # Errors
    /// When it is empty or too long.
    pub fn new(text: &[u8]) -> Result<Password, String> {
        if text.is_empty() {
            return Err("the password is empty; write one into its first line".to_string());
        }
        let (padded, len) = padded(text).ok_or_else(|| {
            let len = text.len();
            format!("the password has {len} bytes; at most {PASSWORD_MAX_BYTES} are allowed")
        })?;
        Ok(Password { padded, len })
    }

    /// The first line of a file that others cannot read.
    ///
    /// # Errors
    /// When the file cannot be read, may be read by others, or holds no password.
    pub fn from_file(path: &Path) -> Result<Password, String> {
        use std::os::unix::fs::PermissionsExt;
        let shown = path.display();
        let told = |e: std::io::Error| format!("cannot read {shown}: {e}");
        let mode = std::fs::metadata(path).map_err(told)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(format!(
                "{shown} may be read by others (mode {:o}); allowed is 600 or 400: chmod 600 {shown}",
                mode & 0o777
            ));
        }
        let text = std::fs::read(path).map_err(told)?;
        let line = text.split(|&b| b == b'\n').next().unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Password::new(line).map_err(|why| format!("{shown}: {why}"))
    }

    /// Whether it is this one.
    pub fn is(&self, text: &[u8]) -> bool {
        // What is too long to be it is compared all the same.
        let shown = padded(text).or_else(|| padded(&[]));
        let Some((padded, len)) = shown else {
            return false;
        };
        let same = self.padded.as_slice().ct_eq(padded.as_slice()) & self.len.ct_eq(&len);
        same.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_same_bytes_are_it() {
        let password = Password::new(b"open\0sesame").unwrap();
        assert!(password.is(b"open\0sesame"));
        for other in [
            &b""[..],
            b"open",
            b"open\0sesame\0",
            b"Open\0sesame",
            &[b'x'; 600],
        ] {
            assert!(!password.is(other));
        }
        assert!(Password::new(b"").is_err() && Password::new(&[b'x'; 513]).is_err());
        assert!(!format!("{password:?}").contains("sesame"));
    }

    #[test]
    fn a_file_that_others_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        std::fs::write(&path, "secret\r\nnot this\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(
            Password::from_file(&path)
                .unwrap_err()
                .contains("chmod 600")
        );
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(Password::from_file(&path).unwrap().is(b"secret"));
        assert!(Password::from_file(&dir.path().join("none")).is_err());
    }
}
