//! Redis's glob patterns (`*`, `?`, `[a-z]`, `[^a]`, `\x`), as SCAN and CONFIG GET take them. Runs in at most
//! pattern × text steps with no recursion; where texts are long, whoever asks bounds that (`commands::scan::Turn`).

/// Whether `text` matches `pattern` as a whole.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go back to: the place after the last star, and the text it has swallowed so far.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if p < pattern.len() && pattern[p] == b'*' {
            p += 1;
            if p == pattern.len() {
                // It takes all that is left.
                return true;
            }
            star = Some((p, t));
            continue;
        }
        if t == text.len() {
            return p == pattern.len();
        }
        if let Some(next) = one(pattern, p, text[t]) {
            p = next;
            t += 1;
        } else if let Some((after_star, swallowed)) = star {
            star = Some((after_star, swallowed + 1));
            p = after_star;
            t = swallowed + 1;
        } else {
            return false;
        }
    }
}

/// Whether the element of the pattern at `p` takes `byte`; answers where the next element starts.
fn one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => class(pattern, p + 1, byte),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        other => (other == byte).then_some(p + 1),
    }
}

fn class(pattern: &[u8], mut p: usize, byte: u8) -> Option<usize> {
    let negated = pattern.get(p) == Some(&b'^');
    p += usize::from(negated);
    let mut found = false;
    loop {
        match pattern.get(p) {
            // An unclosed class ends with the pattern, as in Redis.
            None => break,
            Some(b']') => {
                p += 1;
                break;
            }
            Some(b'\\') if p + 1 < pattern.len() => {
                found |= pattern[p + 1] == byte;
                p += 2;
            }
            Some(&low) if p + 2 < pattern.len() && pattern[p + 1] == b'-' => {
                let high = pattern[p + 2];
                found |= (low.min(high)..=low.max(high)).contains(&byte);
                p += 3;
            }
            Some(&same) => {
                found |= same == byte;
                p += 1;
            }
        }
    }
    (found != negated).then_some(p)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, text, want) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("*a*b", "xaxaxb", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[\\]]", "]", true),
            ("[abc", "b", true),
            ("key:*:x", "key:12:x", true),
            ("**", "anything", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                want,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn a_nasty_pattern_ends() {
        let text = vec![b'a'; 5_000];
        assert!(!matches("a*a*a*a*a*a*a*a*b".as_bytes(), &text));
    }
}
