//! Integers as Redis reads them: no sign but '-', no leading zero, no space.

/// Parses the whole of `text` as an i64.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [] => false,
        [b'0'] => text.len() == 1,
        [first, ..] => *first != b'0' && digits.iter().all(u8::is_ascii_digit),
    };
    match canonical && text.len() <= 20 {
        true => std::str::from_utf8(text).ok()?.parse().ok(),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse_i64;

    #[test]
    fn only_what_redis_takes() {
        assert_eq!(parse_i64(b"0"), Some(0));
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
        for bad in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            " 1",
            "1 ",
            "1.0",
            "9223372036854775808",
            "x",
        ] {
            assert_eq!(parse_i64(bad.as_bytes()), None, "{bad}");
        }
    }
}
