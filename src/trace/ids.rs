//! The ids of traces and spans.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bits of a trace id decide whether it is recorded: the last 56, which W3C Trace Context wants to be random.
const RANDOM_BITS: u32 = 56;
/// The increment of splitmix64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Draws ids that no other process draws, with splitmix64 from starting points that the system chose.
#[derive(Debug)]
pub(super) struct Ids {
    keys: [u64; 3],
    drawn: AtomicU64,
}

impl Ids {
    pub(super) fn new() -> Self {
        // The standard library takes its keys from the system.
        let key = RandomState::new();
        Self { keys: [0u64, 1, 2].map(|i| key.hash_one(i)), drawn: AtomicU64::new(0) }
    }

    fn next(&self) -> u64 {
        self.drawn.fetch_add(1, Ordering::Relaxed)
    }

    /// A new trace id.
    pub(super) fn trace(&self) -> [u8; 16] {
        let n = self.next();
        let halves = [mix(self.keys[0], n), mix(self.keys[1], n).max(1)];
        let mut id = [0; 16];
        id[..8].copy_from_slice(&halves[0].to_be_bytes());
        id[8..].copy_from_slice(&halves[1].to_be_bytes());
        id
    }

    /// A new span id.
    pub(super) fn span(&self) -> [u8; 8] {
        mix(self.keys[2], self.next()).max(1).to_be_bytes()
    }

    /// Names this process among others.
    pub(super) fn instance(&self) -> String {
        format!("{:016x}{:016x}", mix(self.keys[0], u64::MAX), mix(self.keys[1], u64::MAX))
    }
}

/// Output `n` of splitmix64 that starts at `key` (Steele, Lea and Flood 2014, <https://doi.org/10.1145/2660193.2660195>).
fn mix(key: u64, n: u64) -> u64 {
    let mut z = key.wrapping_add(n.wrapping_add(1).wrapping_mul(STEP));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Which new traces are recorded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share(u64);

impl Share {
    /// A share of all traces, 0 ..= 1.
    pub(super) fn new(ratio: f64) -> Self {
        Self((ratio.clamp(0.0, 1.0) * (1u64 << RANDOM_BITS) as f64) as u64)
    }

    /// Whether the trace with this id is in the share. Everyone who asks with the same share gets the same answer.
    pub(super) fn holds(self, trace: [u8; 16]) -> bool {
        let mut low = [0; 8];
        low.copy_from_slice(&trace[8..]);
        // The share consists of the largest ids, as in OpenTelemetry's consistent sampling.
        u64::from_be_bytes(low) & ((1 << RANDOM_BITS) - 1) >= (1 << RANDOM_BITS) - self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn splitmix64_gives_its_known_answers() {
        // The generator's reference output for the seed 1234567.
        let known = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([0, 1, 2].map(|n| mix(1_234_567, n)), known);
    }

    #[test]
    fn no_number_comes_twice() {
        let ids = [Ids::new(), Ids::new()];
        let traces: HashSet<_> = (0..20_000).map(|i| ids[i % 2].trace()).collect();
        let spans: HashSet<_> = (0..20_000).map(|i| ids[i % 2].span()).collect();
        // 64 random bits: two of 20,000 are equal with probability 1e-11.
        assert_eq!((traces.len(), spans.len()), (20_000, 20_000));
        assert_ne!(ids[0].instance(), ids[1].instance());
    }

    #[test]
    fn a_share_holds_that_many() {
        let ids = Ids { keys: [1, 2, 3], drawn: AtomicU64::new(0) };
        let traces: Vec<_> = (0..100_000).map(|_| ids.trace()).collect();
        for ratio in [0.0, 1e-3, 0.01, 0.5, 1.0] {
            let held = traces.iter().filter(|&&trace| Share::new(ratio).holds(trace)).count() as f64;
            // The keys are fixed, so the result is the same each time; six standard deviations were chosen beforehand.
            let (mean, deviation) = (1e5 * ratio, (1e5 * ratio * (1.0 - ratio)).sqrt());
            assert!((held - mean).abs() <= 6.0 * deviation, "{ratio}: {held}");
        }
    }
}
