//! The oracle: what a command does to the state that a pool should be in, and whether a pool is in a state.
//!
//! Promises: knows every value by the command that set it. Never: looks into a pool.

use std::collections::BTreeMap;
use terrace_media::sim::Rng;

/// What a command did, for the oracle. Values are made from the command's number.
#[derive(Debug, Clone)]
pub enum Effect {
    Put(Vec<(u8, usize, Option<u64>)>),
    Remove(Vec<u8>),
    ExpireAt(u8, u64),
    Clear,
}

/// Key → (command that set it, length, expiry).
pub type State = BTreeMap<u8, (usize, usize, Option<u64>)>;

pub fn apply(state: &mut State, n: usize, effect: &Effect, now: u64) {
    match effect {
        Effect::Put(keys) => {
            for &(k, len, at) in keys {
                state.insert(k, (n, len, at));
            }
        }
        Effect::Remove(keys) => keys.iter().for_each(|k| {
            state.remove(k);
        }),
        Effect::ExpireAt(k, at) => {
            if let Some(e) = state.get_mut(k)
                && e.2.is_none_or(|old| old > now)
            {
                e.2 = Some(*at);
            }
        }
        Effect::Clear => state.clear(),
    }
}

pub fn value(n: usize, k: u8, len: usize) -> Vec<u8> {
    let mut rng = Rng::new((n as u64) << 8 | u64::from(k));
    let mut v = vec![0; len];
    for chunk in v.chunks_mut(8) {
        chunk.copy_from_slice(&rng.bits().to_le_bytes()[..chunk.len()]);
    }
    v
}

pub fn key(k: u8) -> Vec<u8> {
    format!("key:{k:03}").into_bytes()
}

pub fn same(state: &State, got: &BTreeMap<u8, Vec<u8>>, now: u64) -> bool {
    let mut live = 0;
    for (&k, &(n, len, at)) in state {
        match at.is_some_and(|at| at <= now) {
            // It may have run out between the dump and now.
            true => live += usize::from(got.contains_key(&k)),
            false => {
                live += 1;
                if got
                    .get(&k)
                    .is_none_or(|v| v.len() != len || *v != value(n, k, len))
                {
                    return false;
                }
            }
        }
    }
    live == got.len()
}

pub fn explain(acked: &State, last: &State, got: &BTreeMap<u8, Vec<u8>>, now: u64) -> String {
    let mut out = String::from("the pool is in no state it was ever in:");
    for k in 0..=u8::MAX {
        let show = |s: &State| s.get(&k).filter(|e| e.2.is_none_or(|at| at > now)).copied();
        let (a, l) = (show(acked), show(last));
        let g = got.get(&k);
        let fits = |e: Option<(usize, usize, Option<u64>)>| match (e, g) {
            (None, None) => true,
            (Some((n, len, _)), Some(v)) => v.len() == len && *v == value(n, k, len),
            _ => false,
        };
        if !fits(a) || !fits(l) {
            out += &format!(
                "\n  key {k}: acknowledged {a:?}, last begun {l:?}, found {:?} bytes",
                g.map(Vec::len)
            );
        }
    }
    out
}
