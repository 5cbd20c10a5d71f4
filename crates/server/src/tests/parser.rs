//! The parser and the assembly: Redis's error texts, and that cutting the stream anywhere changes nothing.

use proptest::prelude::*;

use super::encode;
use crate::limits::PIECE_BYTES;
use crate::resp::assemble::{Assembly, Event};
use crate::resp::parse::{Parsed, command, integer};

#[test]
fn integers_are_those_of_redis() {
    for (text, want) in [
        ("0", Some(0)),
        ("-1", Some(-1)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("99999999999999999999", None),
        ("", None),
        ("-", None),
        ("-0", None),
        ("+1", None),
        ("01", None),
        (" 1", None),
        ("1 ", None),
        ("1a", None),
    ] {
        assert_eq!(integer(text.as_bytes()), want, "{text:?}");
    }
}

#[test]
fn malformed_input_gets_the_texts_of_redis() {
    let long = format!("*{}", "1".repeat(70_000));
    let long_bulk = format!("*1\r\n${}", "1".repeat(70_000));
    let long_inline = "a".repeat(70_000);
    for (input, want) in [
        ("*a\r\n", "invalid multibulk length"),
        ("*1048577\r\n", "invalid multibulk length"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*1\r\n+x\r\n", "expected '$', got '+'"),
        ("*1\r\n$a\r\n", "invalid bulk length"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$536870913\r\n", "invalid bulk length"),
        ("*1\r\n$01\r\n", "invalid bulk length"),
        ("get \"x\r\n", "unbalanced quotes in request"),
        ("get \"x\"y\r\n", "unbalanced quotes in request"),
        ("get 'x\r\n", "unbalanced quotes in request"),
        (long.as_str(), "too big mbulk count string"),
        (long_bulk.as_str(), "too big bulk count string"),
        (long_inline.as_str(), "too big inline request"),
    ] {
        let parsed = command(input.as_bytes(), &mut Vec::new(), true);
        assert_eq!(
            parsed,
            Parsed::Bad(want.to_string().into()),
            "{:?}",
            &input[..input.len().min(40)]
        );
    }
}

#[test]
fn inline_commands_are_split_as_redis_does() {
    let mut args = Vec::new();
    assert_eq!(
        command(b"  set  a\tb \r\nrest", &mut args, true),
        Parsed::Command(13)
    );
    assert_eq!(args, [b"set".as_slice(), b"a", b"b"]);
    let quoted = br#"set "a\x41\n\"" 'it\'s' "" x"y"
"#;
    let Parsed::Inline(len, words) = command(quoted, &mut args, true) else {
        panic!("quoted")
    };
    assert_eq!(len, quoted.len());
    assert_eq!(
        words,
        [
            b"set".to_vec(),
            b"aA\n\"".to_vec(),
            b"it's".to_vec(),
            b"".to_vec(),
            b"xy".to_vec()
        ]
    );
    args.clear();
    assert_eq!(command(b"\r\n", &mut args, true), Parsed::Command(2));
    assert!(args.is_empty());
    assert_eq!(command(b"*0\r\n", &mut args, true), Parsed::Command(4));
    assert_eq!(command(b"*-1\r\n", &mut args, true), Parsed::Command(5));
    assert!(args.is_empty());
}

#[test]
fn a_long_argument_is_reported_at_its_header() {
    assert_eq!(
        command(
            b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$65537\r\n",
            &mut Vec::new(),
            true
        ),
        Parsed::Large
    );
    assert_eq!(
        command(
            b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$65536\r\n",
            &mut Vec::new(),
            true
        ),
        Parsed::Incomplete
    );
}

/// Feeds `stream` to an assembly in parts and gathers the arguments, long ones from their pieces.
fn assemble(stream: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut assembly: Assembly<Vec<u8>> = Assembly::new(true);
    let mut cuts = cuts.to_vec();
    cuts.push(stream.len());
    cuts.sort_unstable();
    let (mut at, mut cut) = (0, 0);
    loop {
        let (taken, event) = assembly.step(&stream[at..cuts[cut]]);
        at += taken;
        match event {
            Event::More => cut += 1,
            Event::Grow(capacity) => assembly.grow(capacity),
            Event::LargeBegins { .. } => assembly.accept(Vec::new()),
            Event::NeedBuffer => assembly.give_buffer(),
            Event::PieceFull => {
                let (upload, piece) = assembly.piece().unwrap();
                upload.extend_from_slice(piece);
                assembly.piece_done();
            }
            Event::Complete => break,
            Event::Bad(text) => panic!("{text}"),
        }
    }
    assert_eq!(at, stream.len());
    let (text, ends, large) = assembly.parts();
    let mut args = Vec::new();
    Assembly::<Vec<u8>>::args(text, ends, &mut args);
    let mut args: Vec<Vec<u8>> = args.into_iter().map(<[u8]>::to_vec).collect();
    for arg in large {
        args[arg.index as usize] = arg.upload.take().unwrap();
    }
    args
}

fn words() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..12)
}

proptest! {
    #[test]
    fn any_split_gives_the_same_commands(commands in prop::collection::vec(words(), 1..6), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10)) {
        let stream: Vec<u8> = commands.iter().flat_map(|c| encode(&c.iter().map(Vec::as_slice).collect::<Vec<_>>())).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(stream.len())).collect();
        cuts.push(stream.len());
        cuts.sort_unstable();
        let (mut at, mut found) = (0, Vec::new());
        for cut in cuts {
            loop {
                let mut args = Vec::new();
                match command(&stream[at..cut], &mut args, true) {
                    Parsed::Command(len) => {
                        found.push(args.iter().map(|a| a.to_vec()).collect::<Vec<_>>());
                        at += len;
                    }
                    Parsed::Incomplete => break,
                    other => prop_assert!(false, "{other:?}"),
                }
            }
        }
        prop_assert_eq!(found, commands);
    }

    #[test]
    fn assembling_gives_the_same_arguments(words in words(), long in prop::option::of(65_537usize..(3 * PIECE_BYTES)), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        let mut words = words;
        if let Some(len) = long {
            words.push((0..len).map(|i| (i * 31 % 251) as u8).collect());
            words.push(b"after".to_vec());
        }
        let stream = encode(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let cuts: Vec<usize> = cuts.iter().map(|c| c.index(stream.len())).collect();
        prop_assert_eq!(assemble(&stream, &cuts), words);
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), star in any::<bool>()) {
        let mut bytes = bytes;
        if star { bytes.insert(0, b'*'); }
        let _ = command(&bytes, &mut Vec::new(), true);
        let mut assembly: Assembly<()> = Assembly::new(true);
        for _ in 0..1000 {
            match assembly.step(&bytes).1 {
                Event::Grow(capacity) => assembly.grow(capacity),
                Event::LargeBegins { .. } => assembly.refuse("ERR no".to_string()),
                _ => break,
            }
        }
    }
}

#[test]
fn a_look_ahead_finds_the_key_and_bears_anything() {
    use crate::resp::parse::first_key;
    let set = b"*3\r\n$3\r\nSET\r\n$4\r\nname\r\n$1\r\nx\r\n";
    assert_eq!(first_key(set), Some(&b"name"[..]));
    for end in 0..set.len() {
        let found = first_key(&set[..end]);
        assert!(found.is_none() || found == Some(&b"name"[..]), "{end}");
    }
    for odd in [
        &b"*1\r\n$4\r\nPING\r\n"[..],
        b"PING\r\n",
        b"*2\r\n$99999999999999999999\r\nx\r\n",
        b"*2\r\n$9223372036854775807\r\nx\r\n",
        b"*2\r\n$-1\r\n$3\r\nabc\r\n",
    ] {
        assert_eq!(first_key(odd), None);
    }
}
