//! How long something is driven before it is measured: until what it reads of the device for each operation has stopped falling, as what is wanted often has come to DRAM; and until what it
//! writes there has stopped rising, as what is changed has filled what DRAM has for it.
//!
//! Promises: the same rule for all sides of a comparison; an end, after [`RUNS_MAX`] runs. Never: drives anything itself.

use crate::Options;

/// The shortest run: in shorter ones what falls is hidden by what scatters.
const RUN_S_MIN: f64 = 6.0;
const RUNS_MAX: usize = 24;
/// It is steady when reads fall by less than this part.
const STEADY_PART: f64 = 0.02;
/// And when writes rise by less than this: they come in bursts.
const WRITTEN_PART: f64 = 0.1;
/// So many bytes an operation more are whoever else writes to the disk: what changes an object writes more.
const WRITTEN_BYTES: f64 = 8.0;

/// What was read in the runs so far, and what is asked of them.
pub struct Steady {
    /// Runs at least, and how far apart those lie that are compared.
    runs_min: usize,
    apart: usize,
    /// Seconds of a run.
    pub run_s: f64,
    reads_an_op: Vec<f64>,
    written_an_op: Vec<f64>,
}

impl Steady {
    /// Where nothing is known: from one run to the next reads fall by one or two hundredths for minutes, and by a fifth in all. Scaled down, there is less to come up.
    pub fn anew(options: &Options) -> Steady {
        let run_s = RUN_S_MIN / options.scale_divisor as f64;
        Steady::of(5, 3, options.seconds.max(run_s))
    }

    /// Where keys were drawn as before.
    pub fn once_more(options: &Options) -> Steady {
        Steady::of(1, 1, options.seconds)
    }

    fn of(runs_min: usize, apart: usize, run_s: f64) -> Steady {
        Steady {
            runs_min,
            apart,
            run_s,
            reads_an_op: Vec::new(),
            written_an_op: Vec::new(),
        }
    }

    /// Seconds of the next run. None: it is steady, or never will be.
    pub fn next_run_s(&self) -> Option<f64> {
        let runs = self.reads_an_op.len();
        let ends = runs >= RUNS_MAX || runs >= self.runs_min && self.is_steady();
        (!ends).then_some(self.run_s)
    }

    /// A run read so often from the device for each operation, and wrote so many bytes.
    pub fn ran(&mut self, reads_an_op: f64, written_bytes_an_op: f64) {
        self.reads_an_op.push(reads_an_op);
        self.written_an_op.push(written_bytes_an_op);
    }

    /// Whether the last is hardly less, or more, than the one so many before it.
    fn is_steady(&self) -> bool {
        let of = |all: &[f64], fits: fn(f64, f64) -> bool| {
            let mut last = all.iter().rev();
            let (now, before) = (last.next(), last.nth(self.apart - 1));
            now.zip(before)
                .is_some_and(|(now, before)| fits(*now, *before))
        };
        let fallen = |now, before| now >= before * (1.0 - STEADY_PART);
        let risen = |now, before| now <= before * (1.0 + WRITTEN_PART) + WRITTEN_BYTES;
        of(&self.reads_an_op, fallen) && of(&self.written_an_op, risen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(mut steady: Steady, reads: impl Fn(i32) -> f64) -> usize {
        (0..1000)
            .take_while(|nth| {
                let goes_on = steady.next_run_s().is_some();
                steady.ran(reads(*nth), 7.0);
                goes_on
            })
            .count()
    }

    #[test]
    fn it_goes_on_while_reads_fall() {
        let options = Options::default();
        let anew = |reads: fn(i32) -> f64| runs(Steady::anew(&options), reads);
        assert_eq!(anew(|_| 0.2), 5);
        assert_eq!(anew(|_| 0.0), 5);
        assert_eq!(anew(|nth| 0.3 * 0.985_f64.powi(nth)), RUNS_MAX);
        assert_eq!(anew(|nth| 0.3 * 0.985_f64.powi(nth.min(8))), 11);
        let more = |reads: fn(i32) -> f64| runs(Steady::once_more(&options), reads);
        assert_eq!(more(|_| 0.2), 2);
        let mut steady = Steady::once_more(&options);
        for written in [0.0, 50.0, 100.0, 140.0, 145.0] {
            assert!(steady.next_run_s().is_some(), "{written}");
            steady.ran(0.2, written);
        }
        assert!(steady.next_run_s().is_none());
        assert_eq!(more(|nth| 0.3 * 0.9_f64.powi(nth)), RUNS_MAX);
    }
}
