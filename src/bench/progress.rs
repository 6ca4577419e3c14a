//! Shows the progress of a measurement: on a terminal as one line that is updated, elsewhere as an occasional line.

use super::BenchArgs;
use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const ON_TERMINAL: Duration = Duration::from_millis(250);
const ELSEWHERE: Duration = Duration::from_secs(5);

/// The number of tokens of one side so far. The side's streams share it.
#[derive(Debug, Clone)]
pub(super) struct Counter {
    label: String,
    tokens: Arc<AtomicU64>,
    row_bytes: usize,
    bar: ProgressBar,
}

impl Counter {
    pub(super) fn add(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Relaxed);
    }

    /// Shows the current rate until the returned task is aborted.
    pub(super) fn watch(&self) -> tokio::task::JoinHandle<()> {
        let counter = self.clone();
        tokio::spawn(async move {
            let terminal = !counter.bar.is_hidden();
            let mut ticks = tokio::time::interval(if terminal { ON_TERMINAL } else { ELSEWHERE });
            ticks.tick().await; // The first tick comes at once.
            let (mut then, mut before) = (Instant::now(), 0);
            loop {
                ticks.tick().await;
                let now = counter.tokens.load(Relaxed);
                let pace = (now - before) as f64 / then.elapsed().as_secs_f64();
                (then, before) = (Instant::now(), now);
                let gigabytes = pace * counter.row_bytes as f64 / 1e9;
                let line = format!("{}: {pace:.0} tokens/s, {gigabytes:.2} GB/s", counter.label);
                if terminal { counter.bar.set_message(line) } else { note(&line) }
            }
        })
    }
}

/// The line of progress on stderr.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    rounds: usize,
    row_bytes: usize,
}

impl Progress {
    pub(super) fn start(args: &BenchArgs) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
            let bar = ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(ON_TERMINAL);
            bar
        } else {
            ProgressBar::hidden()
        };
        Self { bar, rounds: args.round_count(), row_bytes: args.row_bytes() }
    }

    pub(super) fn of(&self, side: &str, round: usize) -> Counter {
        let label = format!("{side} {round}/{}", self.rounds);
        Counter { label, tokens: Arc::default(), row_bytes: self.row_bytes, bar: self.bar.clone() }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn note(line: &str) {
    output::complain(line);
}
