//! The meta commands' flags in all their combinations, with what memcached 1.6.18 answers: where that is installed, it is asked
//! the same. `{}` stands for a token: the one that a reply has is the one that is sent after it.

use super::double::Settings;
use super::memcached::{Ask, as_memcached, ask, connect, start};
use super::plain;

/// Who is late, who has won, and which commands make an item one that nobody has to renew.
const LATE: &[(&str, &str)] = &[
    ("set k 5 100 1\r\na\r\n", "STORED\r\n"),
    ("gets k\r\n", "VALUE k 5 1 {}\r\na\r\nEND\r\n"),
    ("md k I T30\r\n", "HD\r\n"),
    ("mg k v\r\n", "VA 1 X W\r\na\r\n"),
    ("ms k 1 I C{} F9 T50\r\nb\r\n", "HD\r\n"),
    ("mg k v t f\r\n", "VA 1 t30 f9 Z X\r\nb\r\n"),
    // Nobody has won yet; the item was not stale.
    ("set k 5 100 1\r\na\r\n", "STORED\r\n"),
    ("gets k\r\n", "VALUE k 5 1 {}\r\na\r\nEND\r\n"),
    ("set k 5 100 1\r\nc\r\n", "STORED\r\n"),
    ("ms k 1 I MA C{}\r\nb\r\n", "EX\r\n"),
    ("ms k 1 I MP C{}\r\nb\r\n", "EX\r\n"),
    ("ms k 1 I ME C{}\r\nb\r\n", "NS\r\n"),
    ("ms k 1 I C0\r\nb\r\n", "EX\r\n"),
    ("ms k 1 I C99999999999\r\nb\r\n", "EX\r\n"),
    ("mg k v t f\r\n", "VA 1 t100 f5\r\nc\r\n"),
    ("ms k 1 I MR C{} T50\r\nb\r\n", "HD\r\n"),
    ("mg k v t f\r\n", "VA 1 t100 f0 X W\r\nb\r\n"),
    ("mg k v t f\r\n", "VA 1 t100 f0 Z X\r\nb\r\n"),
    // Who is not late.
    ("gets k\r\n", "VALUE k 0 1 {}\r\nb\r\nEND\r\n"),
    ("ms k 1 I C{} T50\r\nd\r\n", "HD\r\n"),
    ("mg k v t\r\n", "VA 1 t50\r\nd\r\n"),
    ("ms none 1 I C5\r\nx\r\n", "NF\r\n"),
    ("ms none 1 I MR\r\nx\r\n", "NS\r\n"),
    ("ms none 1 I T10\r\nx\r\n", "HD\r\n"),
    ("mg none v t\r\n", "VA 1 t10\r\nx\r\n"),
    // What is put before or behind it renews an item.
    ("set k 5 100 1\r\na\r\n", "STORED\r\n"),
    ("md k I T30\r\n", "HD\r\n"),
    ("mg k v\r\n", "VA 1 X W\r\na\r\n"),
    ("append k 0 0 1\r\nb\r\n", "STORED\r\n"),
    ("mg k v t f\r\n", "VA 2 t30 f5\r\nab\r\n"),
    ("md k I T30\r\n", "HD\r\n"),
    ("prepend k 0 0 1\r\nb\r\n", "STORED\r\n"),
    ("mg k v t f\r\n", "VA 3 t30 f5\r\nbab\r\n"),
    ("md k I\r\n", "HD\r\n"),
    ("ms k 1 MA\r\nc\r\n", "HD\r\n"),
    ("mg k v t f\r\n", "VA 4 t30 f5\r\nbabc\r\n"),
    ("md k I\r\n", "HD\r\n"),
    ("touch k 200\r\n", "TOUCHED\r\n"),
    ("mg k t\r\n", "HD t200 X W\r\n"),
    ("md k I\r\n", "HD\r\n"),
    ("mg k t\r\n", "HD t200 X W\r\n"),
];

/// Tokens beside a mode.
const TOKENS: &[(&str, &str)] = &[
    ("set k 5 100 1\r\na\r\n", "STORED\r\n"),
    ("gets k\r\n", "VALUE k 5 1 {}\r\na\r\nEND\r\n"),
    ("ms k 1 ME C{}\r\nb\r\n", "NS\r\n"),
    ("ms k 1 ME C1\r\nb\r\n", "NS\r\n"),
    ("ms e 1 ME C5\r\nb\r\n", "HD\r\n"),
    ("mg e v\r\n", "VA 1\r\nb\r\n"),
    ("ms f 1 ME I C5\r\nb\r\n", "HD\r\n"),
    ("mg f v\r\n", "VA 1\r\nb\r\n"),
    ("ms k 1 MR C1\r\nb\r\n", "EX\r\n"),
    ("ms none 1 MR C1\r\nb\r\n", "NF\r\n"),
    ("ms none 1 MA C1\r\nb\r\n", "NS\r\n"),
    ("ms none 1 MP C0\r\nb\r\n", "NS\r\n"),
    ("ms k 1 C0\r\nb\r\n", "EX\r\n"),
    ("ms k 1 MA C0\r\nb\r\n", "HD\r\n"),
    ("mg k v\r\n", "VA 2\r\nab\r\n"),
    ("ms k 1 MR C{}\r\n1\r\n", "EX\r\n"),
    ("mg k c\r\n", "HD c{}\r\n"),
    ("ms k 1 MR C{}\r\n1\r\n", "HD\r\n"),
    ("ma k C1\r\n", "EX\r\n"),
    ("ma k C0 v\r\n", "VA 1\r\n2\r\n"),
    ("ma m C7\r\n", "NF\r\n"),
    ("ma m C7 N0\r\n", "HD\r\n"),
    ("md k C0\r\n", "EX\r\n"),
    // What is asked for and was not done.
    ("ms k 1 ME c k O1\r\nb\r\n", "NS c0 kk O1\r\n"),
    ("ms k 1 O1 C5 c\r\nb\r\n", "EX O1 c0\r\n"),
    ("ms none 1 C5 c\r\nb\r\n", "NF c0\r\n"),
    ("ma none k O1 c t\r\n", "NF knone O1\r\n"),
    ("md k C5 k c\r\n", "EX kk\r\n"),
];

/// Times, in the order in which they are asked for and changed.
const TIMES: &[(&str, &str)] = &[
    ("set k 0 100 1\r\n1\r\n", "STORED\r\n"),
    ("mg k t T50\r\n", "HD t100\r\n"),
    ("mg k t\r\n", "HD t50\r\n"),
    ("mg k T100 t\r\n", "HD t100\r\n"),
    ("mg k R80 T50\r\n", "HD\r\n"),
    ("mg k T50 R80 t\r\n", "HD t50 W\r\n"),
    ("mg k t\r\n", "HD t50 Z\r\n"),
    ("set k 0 100 1\r\n1\r\n", "STORED\r\n"),
    ("mg k t T50 R80\r\n", "HD t100 W\r\n"),
    ("set k 0 100 1\r\n1\r\n", "STORED\r\n"),
    ("mg k R200 T50 t\r\n", "HD t50 W\r\n"),
    ("set k 0 100 1\r\n1\r\n", "STORED\r\n"),
    ("mg k T0 R80 t\r\n", "HD t-1\r\n"),
    ("mg k t\r\n", "HD t-1\r\n"),
    ("set k 0 100 1\r\n1\r\n", "STORED\r\n"),
    ("mg k R0\r\n", "HD\r\n"),
    ("mg k R-1\r\n", "HD\r\n"),
    ("mg k R90\r\n", "HD\r\n"),
    ("mg k R2592001\r\n", "HD\r\n"),
    ("mg k R1700000000\r\n", "HD\r\n"),
    ("mg k R110\r\n", "HD W\r\n"),
    ("mg k T-1\r\n", "HD Z\r\n"),
    ("mg k\r\n", "EN\r\n"),
    ("mg a N30 t\r\n", "HD t30 W\r\n"),
    ("mg b t N30\r\n", "HD t-1 W\r\n"),
    ("mg b t\r\n", "HD t30 Z\r\n"),
    ("mg c N30 T100 t\r\n", "HD t100 W\r\n"),
    ("mg d T100 N30 t\r\n", "HD t30 W\r\n"),
    ("mg e T100 t N30\r\n", "HD t100 W\r\n"),
    ("mg e t\r\n", "HD t30 Z\r\n"),
    ("mg f R50 N30\r\n", "HD W\r\n"),
    (
        "mg g N30 s t f h k O1 v q\r\n",
        "VA 0 s0 t30 f0 h0 kg O1 W\r\n\r\n",
    ),
    ("mg none k O1 s\r\n", "EN knone O1\r\n"),
    ("mg none O1 t k\r\n", "EN O1 knone\r\n"),
    ("mg none k q\r\n", ""),
    ("set k 0 100 1\r\n1\r\n", "STORED\r\n"),
    ("ma k t T50\r\n", "HD t100\r\n"),
    ("ma k T100 t\r\n", "HD t100\r\n"),
    ("ma k v t T0\r\n", "VA 1 t100\r\n4\r\n"),
    ("ma k N30 t R90\r\n", "HD t-1\r\n"),
    ("ma h N30 t\r\n", "HD t30\r\n"),
    ("ma i t N30\r\n", "HD t-1\r\n"),
    ("ma j N30 T100 t\r\n", "HD t100\r\n"),
    ("ma l T100 N30 t\r\n", "HD t30\r\n"),
    ("mg l t v\r\n", "VA 1 t30\r\n0\r\n"),
    ("ma none T100\r\n", "NF\r\n"),
    ("ma m N30 J5 v q O1\r\n", "VA 1 O1\r\n5\r\n"),
    ("ma m v q O1\r\n", ""),
    // What is beyond 32 bits is cut off.
    ("set k 0 2147483648 1\r\n1\r\n", "STORED\r\n"),
    ("get k\r\n", "END\r\n"),
    ("set k 0 9223372036854775807 1\r\n1\r\n", "STORED\r\n"),
    ("get k\r\n", "END\r\n"),
    ("set k 0 4294967296 1\r\n1\r\n", "STORED\r\n"),
    ("mg k t\r\n", "HD t-1\r\n"),
    ("touch k 4294967396\r\n", "TOUCHED\r\n"),
    ("mg k t\r\n", "HD t100\r\n"),
    ("gat -4294967096 k\r\n", "VALUE k 0 1\r\n1\r\nEND\r\n"),
    ("mg k t\r\n", "HD t200\r\n"),
    ("mg k T4294967346 t\r\n", "HD t50\r\n"),
    ("ma k T9999999999\r\n", "HD\r\n"),
    ("mg k t\r\n", "EN\r\n"),
    ("ms k 1 T9223372036854775807\r\n1\r\n", "HD\r\n"),
    ("mg k t\r\n", "EN\r\n"),
    (
        "touch k 9223372036854775808\r\n",
        "CLIENT_ERROR invalid exptime argument\r\n",
    ),
    (
        "mg k T9223372036854775808\r\n",
        "CLIENT_ERROR bad token in command line format\r\n",
    ),
];

/// How keys are shown, and flags that mean nothing or are none.
const FLAGS: &[(&str, &str)] = &[
    ("set é 0 0 1\r\na\r\n", "STORED\r\n"),
    ("mg é k v\r\n", "VA 1 ké\r\na\r\n"),
    ("md é k\r\n", "HD ké\r\n"),
    ("mg é k\r\n", "EN ké\r\n"),
    ("ms w6k= 1 b k\r\nz\r\n", "HD kw6k= b\r\n"),
    ("mg w6k= k O1 b v\r\n", "VA 1 kw6k= b O1\r\nz\r\n"),
    ("ms w6k= 1 b k ME\r\nz\r\n", "NS kw6k= b\r\n"),
    ("me w6k= b\r\n", "ME w6k= "),
    ("ms Zm9v 1 b k\r\n5\r\n", "HD kZm9v b\r\n"),
    ("ma Zm9v k v b\r\n", "VA 1 kZm9v b\r\n6\r\n"),
    ("ma foo k v\r\n", "VA 1 kfoo\r\n7\r\n"),
    ("md Zm9v k b\r\n", "HD kZm9v b\r\n"),
    ("md Zm9v b k O1\r\n", "NF kZm9v b O1\r\n"),
    ("mg Zm9v b k O1\r\n", "EN kZm9v b O1\r\n"),
    ("set k 3 0 1\r\n1\r\n", "STORED\r\n"),
    ("mg k u P1 Lx I C5 F1 J1 D1 MX v\r\n", "VA 1\r\n1\r\n"),
    ("md none u P L R5 N5 F1 J1 D1 MX v t c f h l\r\n", "NF\r\n"),
    ("ma k u P1 L1 l h f I F9 R5\r\n", "HD\r\n"),
    ("ms k 1 u P1 L1 l h f t v J1 D1 R5\r\n5\r\n", "HD\r\n"),
    ("mg k v f\r\n", "VA 1 f0\r\n5\r\n"),
    ("mg k x\r\n", "CLIENT_ERROR invalid flag\r\n"),
    ("mg k S1\r\n", "CLIENT_ERROR invalid flag\r\n"),
    ("ms k 1 z\r\n1\r\n", "CLIENT_ERROR invalid flag\r\n"),
    ("md k z\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    ("ma k z\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    ("mg k v v\r\n", "CLIENT_ERROR duplicate flag\r\n"),
    ("ms k 1 k k\r\n1\r\n", "CLIENT_ERROR duplicate flag\r\n"),
    ("md k k k\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    ("ma k u u\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    (
        "mg k Tx\r\n",
        "CLIENT_ERROR bad token in command line format\r\n",
    ),
    (
        "mg k C\r\n",
        "CLIENT_ERROR bad token in command line format\r\n",
    ),
    ("mg k Fx\r\n", "CLIENT_ERROR bad command line format\r\n"),
    (
        "ms k 1 F-1\r\n1\r\n",
        "CLIENT_ERROR bad command line format\r\n",
    ),
    (
        "mg k Jx\r\n",
        "CLIENT_ERROR invalid numeric initial value\r\n",
    ),
    (
        "ms k 1 D-1\r\n1\r\n",
        "CLIENT_ERROR invalid numeric delta value\r\n",
    ),
    (
        "ms k 1 M\r\n1\r\n",
        "CLIENT_ERROR incorrect length for M token\r\n",
    ),
    (
        "mg k MEE\r\n",
        "CLIENT_ERROR incorrect length for M token\r\n",
    ),
    (
        "ms k 1 Ms\r\n1\r\n",
        "CLIENT_ERROR invalid mode for ms M token\r\n",
    ),
    (
        "ma k Mi\r\n",
        "CLIENT_ERROR invalid mode for ma M token\r\n",
    ),
    ("ma k Mii\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    ("ma k Dx\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    ("md k Cx\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    ("ms k 1 b\r\n1\r\n", "CLIENT_ERROR error decoding key\r\n"),
    ("md k b\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    ("me ?? b\r\n", "CLIENT_ERROR bad command line format\r\n"),
    ("me none z\r\n", "EN\r\n"),
    (
        "mg k O1234567890123456789012345678901\r\n",
        "HD O1234567890123456789012345678901\r\n",
    ),
    (
        "mg k O12345678901234567890123456789012\r\n",
        "CLIENT_ERROR opaque token too long\r\n",
    ),
    (
        "ma k O12345678901234567890123456789012\r\n",
        "CLIENT_ERROR opaque token too long\r\n",
    ),
    ("mg\r\n", "ERROR\r\n"),
    ("ms\r\n", "ERROR\r\n"),
    ("md\r\n", "ERROR\r\n"),
    ("ma\r\n", "ERROR\r\n"),
    ("ms k\r\n", "CLIENT_ERROR bad command line format\r\n"),
    ("me\r\n", "CLIENT_ERROR bad command line format\r\n"),
];

const LISTS: &[&[(&str, &str)]] = &[LATE, TOKENS, TIMES, FLAGS];

/// Asks all of a list, and answers what was not as it says.
fn differences(list: &[(&str, &str)], ask: &mut Ask<'_>) -> Vec<String> {
    let (mut token, mut found) = (String::new(), Vec::new());
    for (sent, want) in list {
        let sent = sent.replace("{}", &token);
        let got = ask(sent.as_bytes());
        if let Some(of_this) = token_in(&got, want) {
            token = of_this;
        }
        let want = want.replace("{}", &token);
        let is_start = want.starts_with("ME ") && got.starts_with(&want);
        if rounded(&got) != rounded(&want) && !is_start {
            found.push(format!("{sent:?}\n  wanted {want:?}\n  got    {got:?}"));
        }
    }
    found
}

/// The digits that stand where a reply is to have a token.
fn token_in(got: &str, want: &str) -> Option<String> {
    let (before, _) = want.split_once("{}")?;
    let rest = got.strip_prefix(before)?;
    Some(rest.chars().take_while(char::is_ascii_digit).collect())
}

/// Times to the ten seconds that they were given: one may have passed.
fn rounded(reply: &str) -> String {
    let word = |word: &str| match word.strip_prefix('t').map(str::parse::<u64>) {
        Some(Ok(left_s)) => format!("t{}", left_s.next_multiple_of(10)),
        _ => word.to_string(),
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    reply
        .split("\r\n")
        .map(line)
        .collect::<Vec<_>>()
        .join("\r\n")
}

fn by_the_book(settings: Settings) {
    let server = start(settings);
    let (mut c, mut found) = (connect(&server), Vec::new());
    for list in LISTS {
        found.extend(differences(list, &mut |sent| ask(&mut c, sent)));
        ask(&mut c, b"flush_all\r\n");
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    drop(c);
    server.stop();
}

#[test]
fn flags_are_by_the_book() {
    by_the_book(plain());
}

#[test]
fn flags_are_by_the_book_with_waits() {
    by_the_book(Settings {
        wait_per_mille: 300,
        ..plain()
    });
}

#[test]
fn flags_are_those_of_memcached() {
    as_memcached(|ask| {
        let mut found = Vec::new();
        for list in LISTS {
            found.extend(differences(list, ask));
            // What is set within the second of a flush may go with it.
            ask(b"flush_all\r\n");
            std::thread::sleep(std::time::Duration::from_millis(1_100));
        }
        assert!(found.is_empty(), "{}", found.join("\n"));
    });
}
