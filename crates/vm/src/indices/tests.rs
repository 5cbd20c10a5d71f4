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
    let (mut site, mut comes, mut ends) = (Site::default(), 0, [2000, 4000]);
    for n in 0..3000 {
        let side = chance(n + 5) % 2;
        ends[side] -= 1;
        let mut stack = [0; STACK_WORDS];
        (stack[5], stack[11]) = (
            (ARRAY + ends[0] * LINE) as i64,
            (ARRAY + ends[1] * LINE) as i64,
        );
        fake.0.truncate(1);
        fake.add(STACK, stack.into_iter(), 8);
        let address = text(ends[side]);
        let registers = registers(&[(2, address)]);
        let found = site.faulted(address, &registers, is_served, &mut |at, into| {
            fake.peek(at, into)
        });
        if let Some(nth) = found {
            let rule = site.rules[nth];
            comes += 1;
            assert_eq!((rule.scale, rule.base, rule.step), (1, 0, -(LINE as isize)));
            assert_eq!(rule.at, ARRAY + ends[side] * LINE);
        }
        if ends[side] == side * 2000 {
            break;
        }
    }
    assert!(comes > 2000, "{comes}");
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
    let comes = (0..100).map(|n| fault(DATA + 8 * chance(n + 700), ARRAY + n * 8));
    assert_eq!(comes.filter(|comes| *comes).count(), 0);
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
        .find(|rival| place(key ^ 0x4000 ^ rival) == place(key))
        .unwrap();
    let refused = (0..).take_while(|_| indices.site(rival).is_none()).count();
    assert!((20..=usize::from(STAYS)).contains(&refused), "{refused}");
}
