//! Sizes as people write them: `256M`, `8G`, `64KiB`, `1048576`. Every suffix is a power of 1,024, as in `free` and
//! `dd`; nothing is rounded.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const ALLOWED: &str = "allowed are whole numbers of bytes, or with a suffix: 512K, 256M, 8G, 2T (also KiB, MiB, GiB, TiB)";

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let refused = |why: &str| format!("size `{text}` {why}; {ALLOWED}");
        let trimmed = text.trim();
        let end = trimmed
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(trimmed.len());
        let (digits, suffix) = trimmed.split_at(end);
        let shift = match suffix.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(refused("is not understood")),
        };
        if digits.is_empty() {
            return Err(refused("does not begin with a number"));
        }
        let number: u64 = digits.parse().map_err(|_| refused("is too large"))?;
        number
            .checked_mul(1 << shift)
            .map(Size)
            .ok_or_else(|| refused("is too large"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, suffix) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            let unit = 1u64 << shift;
            if self.0 >= unit {
                let whole = self.0 / unit;
                return match self.0 % unit * 10 / unit {
                    0 => write!(f, "{whole} {suffix}"),
                    tenth => write!(f, "{whole}.{tenth} {suffix}"),
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a size like \"256M\" or a number of bytes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes)
                    .map(Size)
                    .map_err(|_| E::custom(format!("size {bytes} is negative; {ALLOWED}")))
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn sizes_are_read() {
        for (text, want) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("512K", 512 << 10),
            ("256M", 256 << 20),
            ("256m", 256 << 20),
            ("256 MiB", 256 << 20),
            ("8G", 8 << 30),
            ("8GB", 8 << 30),
            ("2TiB", 2 << 40),
            ("7b", 7),
        ] {
            assert_eq!(text.parse(), Ok(Size(want)), "{text}");
        }
    }

    #[test]
    fn others_are_refused_with_what_is_allowed() {
        for text in [
            "",
            "M",
            "1.5G",
            "-1",
            "1X",
            "99999999999999999999",
            "99999999999T",
        ] {
            let refused = text.parse::<Size>().unwrap_err();
            assert!(
                refused.contains(&format!("`{text}`")) && refused.contains("256M"),
                "{refused}"
            );
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(Size(1536 << 20).to_string(), "1.5 GiB");
        assert_eq!(Size(256 << 20).to_string(), "256 MiB");
        assert_eq!(Size(17).to_string(), "17 B");
    }
}
