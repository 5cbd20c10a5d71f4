//! Instructions that go along arrays, simulated: which rules are found, how long they are believed, and what it costs where there is none.
//!
//! Promises: memory that is looked at is a map of its own, and chance comes from a number. Never: faults.

use super::*;

/// Memory that can be looked at: pieces, by where they begin.
#[derive(Default)]
struct Fake(Vec<(usize, Vec<u8>)>);

impl Fake {
    fn add(&mut self, at: usize, elements: impl Iterator<Item = i64>, width: usize) {
        let bytes = elements.flat_map(|element| element.to_ne_bytes()[..width].to_vec());
        self.0.push((at, bytes.collect()));
    }

    fn peek(&self, address: usize, into: &mut [u8]) -> usize {
        let here = |(at, bytes): &&(usize, Vec<u8>)| (*at..at + bytes.len()).contains(&address);
        self.0.iter().find(here).map_or(0, |(at, bytes)| {
            let bytes = &bytes[address - at..];
            let len = bytes.len().min(into.len());
            into[..len].copy_from_slice(&bytes[..len]);
            len
        })
    }
}

const STACK: usize = 0x7FFF_0000_0000;
const DATA: usize = 0x7000_0000_0000;
const ARRAY: usize = 0x5555_0000_0000;

fn is_served(address: usize) -> bool {
    (DATA..DATA + (1 << 36)).contains(&address)
}

fn chance(n: usize) -> usize {
    let mut n = (n as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    n ^= n >> 29;
    (n.wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32) as usize
}

fn registers(values: &[(usize, usize)]) -> Registers {
    let mut registers = Registers {
        instruction: 1,
        stack: STACK,
        // Some that never change, and small numbers.
        values: std::array::from_fn(|nth| nth * 1000),
    };
    for (nth, value) in values {
        registers.values[*nth] = *value;
    }
    registers
}

/// Faults of `a[index[i]]` one after the other, of which a fifth is there. How often more was to come, and the rule of the last time.
fn gathers(
    width: usize,
    scale: usize,
    register_at: impl Fn(usize) -> usize,
) -> (usize, Option<Rule>) {
    let index = |n: usize| chance(n) % 60_000;
    let mut fake = Fake::default();
    fake.add(ARRAY, (0..4000).map(|n| index(n) as i64), width);
    fake.add(STACK, (0..STACK_WORDS as i64).map(|n| n * 7), 8);
    let (mut site, mut comes, mut last) = (Site::default(), 0, None);
    for n in (0..4000).filter(|n| n % 5 != 3) {
        let address = DATA + 24 + scale * index(n);
        let registers = registers(&[
            (4, register_at(n)),
            (7, 0x6000_0000_0000 + n * 8),
            (9, address),
        ]);
        let found = site.faulted(address, &registers, is_served, &mut |at, into| {
            fake.peek(at, into)
        });
        if let Some(nth) = found {
            (comes, last) = (comes + 1, Some(site.rules[nth]));
        }
    }
    (comes, last)
}

#[test]
fn an_array_of_indices_is_found_and_gone_along() {
    for (width, scale) in [(8, 8), (4, 8), (4, 4), (8, 1), (8, 24)] {
        // Where the element is, where the next is, and in an unrolled loop.
        let moved = [0, width as isize, -2 * width as isize];
        for moved in moved {
            let at = |n: usize| (ARRAY + n * width).wrapping_add_signed(moved);
            let (comes, rule) = gathers(width, scale, at);
            let rule = rule.unwrap_or_default();
            assert!(comes > 3000, "{width} {scale} {moved}: {comes}");
            assert_eq!((rule.base, rule.scale), (DATA + 24, scale as i64));
            assert_eq!(rule.step, width as isize);
            assert_eq!(rule.names(3), DATA + 24 + 3 * scale);
        }
    }
}

#[test]
fn registers_that_tell_nothing_bring_nothing() {
    let (comes, _) = gathers(8, 8, |n| ARRAY + chance(n + 9) % 4000 * 8);
    assert_eq!(comes, 0);
    let (comes, _) = gathers(8, 8, |_| 0x1234_5678_9000);
    assert_eq!(comes, 0);
}

#[test]
fn where_an_address_was_taken_from_is_no_array_if_it_is_gone_through_in_no_order() {
    let object = |n: usize| DATA + chance(n) % (1 << 33) / 16 * 16;
    let mut fake = Fake::default();
    fake.add(ARRAY, (0..8192).map(|n| object(n) as i64), 8);
    let (mut site, mut comes) = (Site::default(), 0);
    for n in 0..10_000 {
        let element = chance(n + 77) % 8192;
        let registers = registers(&[(3, ARRAY + element * 8)]);
        let found = site.faulted(object(element), &registers, is_served, &mut |at, into| {
            fake.peek(at, into)
        });
        comes += usize::from(found.is_some());
    }
    assert!(comes < 200, "{comes}");
}

/// Two arrays of lines that are compared, as sort(1) does: where they are is on the stack, and they go down.
#[test]
fn two_arrays_of_addresses_that_the_stack_tells_of() {
    const LINE: usize = 32;
    let text = |n: usize| DATA + chance(n) % (1 << 33);
    let words = |n: usize| [text(n) as i64, 1000, chance(n) as i64, 0];
    let mut fake = Fake::default();
    fake.add(ARRAY, (0..4000).flat_map(words), 8);
    let (mut site, mut faults, mut ends) = (Site::default(), 0, [2000, 4000]);
    let mut brought = ends;
    for n in 0.. {
        let side = chance(n + 5) % 2;
        if ends[side] == side * 2000 {
            break;
        }
        ends[side] -= 1;
        if ends[side] >= brought[side] {
            continue;
        }
        let mut stack = [0; STACK_WORDS];
        for side in 0..2 {
            stack[5 + side * 6] = (ARRAY + ends[side] * LINE) as i64;
        }
        fake.0.truncate(1);
        fake.add(STACK, stack.into_iter(), 8);
        let address = text(ends[side]);
        let registers = registers(&[(2, address)]);
        let found = site.faulted(address, &registers, is_served, &mut |at, into| {
            fake.peek(at, into)
        });
        faults += 1;
        if let Some(nth) = found {
            let rule = &mut site.rules[nth];
            assert_eq!((rule.scale, rule.base, rule.step), (1, 0, -(LINE as isize)));
            assert_eq!(rule.at, ARRAY + ends[side] * LINE);
            brings(rule, 8);
            brought[side] = ends[side] - usize::from(rule.window).min(ends[side]);
        }
    }
    let touched = 2000 - ends[0] + 4000 - ends[1];
    assert!(faults * 5 < touched, "{faults} of {touched}");
}

#[test]
fn another_array_is_gone_along_at_once_and_what_ends_is_forgotten() {
    let index = |n: usize| chance(n) % 60_000;
    let mut fake = Fake::default();
    for array in 0..5 {
        let at = ARRAY + array * (1 << 20);
        fake.add(at, (0..100).map(|n| index(array * 100 + n) as i64), 8);
    }
    let mut site = Site::default();
    let mut fault = |address: usize, pointer: usize| {
        let registers = registers(&[(4, pointer)]);
        let peek = &mut |at: usize, into: &mut [u8]| fake.peek(at, into);
        let found = site.faulted(address, &registers, is_served, peek);
        found.is_some()
    };
    for array in 0..5 {
        let pointer = |n: usize| ARRAY + array * (1 << 20) + n * 8;
        let comes = (0..100).map(|n| fault(DATA + 8 * index(array * 100 + n), pointer(n)));
        let comes = comes.filter(|comes| *comes).count();
        assert!(
            comes >= if array == 0 { 80 } else { 100 },
            "{array}: {comes}"
        );
    }
    // What no element names, and then what one does, once.
    let comes = (0..100).map(|n| fault(DATA + 8 * chance(n + 700), ARRAY + n * 8));
    assert_eq!(comes.filter(|comes| *comes).count(), 0);
    assert!(!fault(DATA + 8 * index(70), ARRAY + 70 * 8));
}

/// What a rule would bring and what is to fault next then, as `named_by` says if nothing is there: `window` pages.
fn brings(rule: &mut Rule, most: u8) {
    rule.window = (rule.window * 2).clamp(2, most);
    let behind = isize::from(rule.window) + 1;
    rule.then = rule.at.wrapping_add_signed(rule.step * behind);
}

#[test]
fn who_skips_what_would_have_faulted_has_little_brought() {
    let index = |n: usize| chance(n) % 60_000;
    let mut fake = Fake::default();
    fake.add(ARRAY, (0..400_000).map(|n| index(n) as i64), 8);
    let comes = |skips: bool| {
        let (mut site, mut came, mut n, mut faults) = (Site::default(), 0, 0, 0);
        while faults < 5000 {
            faults += 1;
            n += 1 + if skips { chance(n + 3) % 50 } else { 0 };
            let registers = registers(&[(4, ARRAY + n * 8)]);
            let address = DATA + 8 * index(n);
            let peek = &mut |at: usize, into: &mut [u8]| fake.peek(at, into);
            if let Some(nth) = site.faulted(address, &registers, is_served, peek) {
                brings(&mut site.rules[nth], 32);
                let window = usize::from(site.rules[nth].window);
                came += window;
                n += if skips { 0 } else { window };
            }
        }
        came
    };
    let (all, few) = (comes(false), comes(true));
    assert!(all > 150_000, "{all}");
    assert!(few < 300, "{few} pages of 5,000 faults");
}

#[test]
fn what_is_explained_but_not_gone_along_costs_little_and_does_not_stand_in_the_way() {
    let index = |n: usize| chance(n) % 60_000;
    let frame = |n: usize| STACK + (1 << 20) + chance(n + 1) % 7 * 128;
    let (mut site, mut peeks, mut comes) = (Site::default(), 0, 0);
    for n in 0..3000 {
        // The address itself lies near what a register points to, which goes to and fro; from the middle on another one goes along an array.
        let address = DATA + 8 * index(n);
        let pointer = if n < 1500 { 17 } else { ARRAY + n * 8 };
        let mut fake = Fake::default();
        let around = [0, 0, 0, address as i64, 0, 0, 0, 0];
        fake.add(frame(n) - 24, around.into_iter(), 8);
        fake.add(ARRAY + n * 8, (n..n + 8).map(|n| index(n) as i64), 8);
        let registers = registers(&[(5, frame(n) + 8), (6, pointer)]);
        let found = site.faulted(address, &registers, is_served, &mut |at, into| {
            peeks += usize::from(n < 1500);
            fake.peek(at, into)
        });
        comes += usize::from(found.is_some_and(|nth| site.rules[nth].register == 6));
    }
    assert!(peeks < 1500, "{peeks}");
    assert!(comes > 1000, "{comes}");
}

#[test]
fn an_array_is_looked_at_in_both_directions_as_far_as_it_is_there() {
    let mut fake = Fake::default();
    // Two pages and a half.
    fake.add(ARRAY, 0..1280, 8);
    let part = |n: usize, step: isize| {
        let rule = Rule {
            width: 8,
            at: ARRAY + n * 8,
            step: step * 8,
            ..Rule::default()
        };
        let part = Part::of(&rule, &mut |at, into| fake.peek(at, into));
        (0..).map_while(|nth| part.element(nth)).collect::<Vec<_>>()
    };
    assert_eq!(part(99, 1), (100..612).collect::<Vec<_>>());
    assert_eq!(part(99, 100), [199, 299, 399, 499, 599, 699]);
    assert_eq!(part(1270, 1), (1271..1280).collect::<Vec<_>>());
    assert_eq!(part(1279, 1), []);
    assert_eq!(part(1000, -1), (488..1000).rev().collect::<Vec<_>>());
    assert_eq!(part(513, -1), (1..513).rev().collect::<Vec<_>>());
    assert_eq!(part(1000, -128), [872, 744, 616, 488]);
    // The page before is not there.
    assert_eq!(part(100, -1), (0..100).rev().collect::<Vec<_>>());
    assert_eq!(part(0, -1), []);
}

#[test]
fn threads_and_instructions_have_places_of_their_own() {
    let indices = Indices::new();
    let mut mine = indices.site(0x4000).unwrap();
    mine.faults = 7;
    mine.stays = STAYS;
    indices.keep(mine);
    assert_eq!(indices.site(0x4000).unwrap().faults, 7);
    let theirs = std::thread::scope(|scope| {
        let other = scope.spawn(|| indices.site(0x4000).map(|site| site.faults));
        other.join().unwrap()
    });
    assert!(theirs.is_none_or(|faults| faults == 0));
    // Who wants its place waits a while for it.
    let key = mine.key;
    let rival = (0x4001..)
        .find(|rival| place_of(key ^ 0x4000 ^ rival) == place_of(key))
        .unwrap();
    let refused = (0..).take_while(|_| indices.site(rival).is_none()).count();
    assert!((20..=usize::from(STAYS)).contains(&refused), "{refused}");
}
