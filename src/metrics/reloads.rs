//! Metrics of files that are read again while the server runs.

use super::catalog as cat;
use metrics::{Counter, Gauge, Recorder};

/// Things made of files that may change, the label `what`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secret {
    /// Certificate, key and authorities.
    Tls,
    /// Bearer tokens.
    Tokens,
}

impl Secret {
    /// Its name in metrics and in logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        SECRETS[self as usize]
    }
}

/// Values of the label `what`, in the order of [`Secret`].
const SECRETS: [&str; 2] = ["tls", "tokens"];
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
        Self(SECRETS.iter().map(|what| Reload::register(r, what)).collect())
    }

    /// Files were read, and taken if they were good.
    pub(super) fn record(&self, what: Secret, ok: bool) {
        let reload = &self.0[what as usize];
        reload.ended[usize::from(ok)].increment(1);
        // A count moves once, and is forgotten by whoever looks at a stretch of time; this stays until it is put right.
        reload.pending.set(if ok { 0.0 } else { 1.0 });
    }
}

impl Reload {
    fn register(r: &dyn Recorder, what: &str) -> Self {
        let each = |&result: &&str| cat::RELOADS.as_counter(r, &[("what", what), ("result", result)]);
        Self { ended: RELOADED.iter().map(each).collect(), pending: cat::RELOAD_PENDING.as_gauge(r, &[("what", what)]) }
    }
}
