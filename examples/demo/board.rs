//! What the worker reports to the screen.

use hdrhistogram::Histogram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shared between the worker, which writes, and the screen, which reads ten times a second.
#[derive(Debug, Clone)]
pub(crate) struct Board(Arc<Mutex<State>>);

/// How fast the worker asks for tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Slow enough to read along.
    Reading,
    /// As fast as possible.
    Full,
}

impl Pace {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reading => "at reading pace",
            Self::Full => "at full speed",
        }
    }
}

/// Everything that the screen shows.
#[derive(Debug)]
pub(crate) struct State {
    /// One label and text per lane. Texts are bytes, because a token may end in the middle of a character.
    pub(crate) lanes: Vec<(&'static str, Vec<u8>)>,
    pub(crate) pace: Pace,
    /// Since the pace changed.
    pub(crate) tokens: u64,
    pub(crate) rows_in_flight: usize,
    /// Messages in flight, as long as every lane is busy.
    pub(crate) steps_in_flight: usize,
    pub(crate) row_bytes: usize,
    /// Step latency in microseconds: from handing over a step's first byte until its reply.
    pub(crate) latency: Histogram<u64>,
    /// Time spent on making rows.
    pub(crate) making: Duration,
    started: Instant,
    stopped: Option<Instant>,
}

impl Board {
    pub(crate) fn new(labels: impl Iterator<Item = &'static str>, row_bytes: usize) -> crate::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(State {
            lanes: labels.map(|label| (label, Vec::new())).collect(),
            pace: Pace::Full,
            tokens: 0,
            rows_in_flight: 0,
            steps_in_flight: 0,
            row_bytes,
            // A microsecond to a minute, three digits.
            latency: Histogram::new_with_bounds(1, 60_000_000, 3)?,
            making: Duration::ZERO,
            started: Instant::now(),
            stopped: None,
        }))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere must not cause a second one here: these are only numbers to look at.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Resets the figures, which are for one pace only.
    pub(crate) fn start(&mut self, pace: Pace) {
        self.pace = pace;
        self.tokens = 0;
        self.making = Duration::ZERO;
        self.latency.reset();
        self.started = Instant::now();
    }

    pub(crate) fn stop(&mut self) {
        self.stopped = Some(Instant::now());
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.stopped.unwrap_or_else(Instant::now) - self.started
    }

    /// Records that a step was answered.
    pub(crate) fn answered(&mut self, rows: usize, latency: Duration) {
        self.rows_in_flight -= rows;
        self.tokens += rows as u64;
        self.latency.saturating_record(latency.as_micros() as u64);
    }

    pub(crate) fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.elapsed().as_secs_f64().max(1e-9)
    }

    /// A quantile of the step latency in milliseconds.
    pub(crate) fn latency_ms(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e3
    }

    /// Logits sent, in bytes per second.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.tokens_per_second() * self.row_bytes as f64
    }
}
