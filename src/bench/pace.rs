//! Whether a side kept to the timetable of [`BenchArgs::rate`].

use super::BenchArgs;
use super::report::median;
use serde::Serialize;
use std::fmt;

/// A smaller share of the steps that were due is another load than the one that was asked for.
const ENOUGH: f64 = 0.99;

/// Steps of all streams, beside those that were due.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pace {
    /// Steps that were due, per second.
    pub wanted_steps_per_second: f64,
    /// Steps that were answered, per second: the median of the rounds.
    pub steps_per_second: f64,
    /// Whether at least 99 of 100 were answered. One step of each group of sequences may still be on its way at the end
    /// of a round.
    pub is_reached: bool,
}

impl Pace {
    /// The pace of rounds in which so many steps were answered. `None`: no step is due at a set time.
    pub(super) fn of(args: &BenchArgs, steps: impl Iterator<Item = u64>) -> Option<Self> {
        if args.rate == 0.0 {
            return None;
        }
        let groups = (args.streams * args.batch.div_ceil(args.rows_per_message())) as f64;
        let (seconds, wanted) = (args.duration.as_secs_f64(), args.rate * groups);
        let answered = median(steps.map(|steps| steps as f64));
        Some(Self {
            wanted_steps_per_second: wanted,
            steps_per_second: answered / seconds,
            is_reached: answered + groups >= wanted * seconds * ENOUGH,
        })
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wanted, answered) = (self.wanted_steps_per_second, self.steps_per_second);
        if self.is_reached {
            return write!(f, "--rate was reached: {answered:.2} of {wanted:.2} steps/s were answered");
        }
        write!(
            f,
            "--rate was not reached: {answered:.2} of {wanted:.2} steps/s were answered; the times of steps count from when they were due, so they include this delay"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rate_that_was_not_reached_is_told() {
        // Two streams, each with three messages.
        let args = BenchArgs {
            streams: 2,
            batch: 6,
            vocab: 256,
            message_bytes: 2048,
            rate: 50.0,
            duration: Duration::from_secs(2),
            ..BenchArgs::default()
        };
        let of = |steps: &[u64]| Pace::of(&args, steps.iter().copied()).unwrap();
        let pace = of(&[600, 590, 10]);
        assert_eq!((pace.wanted_steps_per_second, pace.steps_per_second, pace.is_reached), (300.0, 295.0, true));
        assert_eq!(pace.to_string(), "--rate was reached: 295.00 of 300.00 steps/s were answered");
        assert!(!of(&[587]).is_reached);
        let told = of(&[300]).to_string();
        assert!(told.starts_with("--rate was not reached: 150.00 of 300.00 steps/s were answered; "), "{told}");
        assert_eq!(Pace::of(&BenchArgs { rate: 0.0, ..args }, [600].into_iter()), None);
    }
}
