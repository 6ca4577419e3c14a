//! Metrics of files that are read again while the server runs.

use super::catalog as cat;
use super::labelled::labelled;
use metrics::{Counter, Gauge, Recorder};

labelled! {
    /// What is read from files that may change, the label `what`.
    pub enum Secret {
        /// Certificate, key and authorities.
        Tls = "tls",
        /// Bearer tokens.
        Tokens = "tokens",
    }
}

/// Values of the label `result`: how a reload ended.
const RELOADED: [&str; 2] = ["failed", "ok"];

/// Handles of reloads, in the order of [`Secret`].
#[derive(Debug)]
pub(super) struct Reloads(Vec<Reload>);

#[derive(Debug)]
struct Reload {
    /// In the order of [`RELOADED`].
    ended: Vec<Counter>,
    pending: Gauge,
}

impl Reloads {
    pub(super) fn register(r: &dyn Recorder) -> Self {
        Self(Secret::ALL.map(|what| Reload::register(r, what.name())).into())
    }

    /// Records that files were read, and whether they were good and so taken.
    pub(super) fn record(&self, what: Secret, ok: bool) {
        let reload = &self.0[what as usize];
        reload.ended[usize::from(ok)].increment(1);
        // A counter moves once, and queries over a time window soon miss it. This gauge stays set until the fault is
        // put right.
        reload.pending.set(if ok { 0.0 } else { 1.0 });
    }
}

impl Reload {
    fn register(r: &dyn Recorder, what: &str) -> Self {
        let each = |&result: &&str| cat::RELOADS.as_counter(r, &[("what", what), ("result", result)]);
        Self { ended: RELOADED.iter().map(each).collect(), pending: cat::RELOAD_PENDING.as_gauge(r, &[("what", what)]) }
    }
}
