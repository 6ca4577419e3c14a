//! The masks of a batch's rows.

use super::ahead::Ahead;
use super::state::Mask;
use super::text::{Place, Text};
use super::trouble::{MORE_TIME, MOST_TIME, Trouble};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How often it is looked at who takes longer.
const LOOK: Duration = Duration::from_millis(20);
/// How long a batch waits for all of its masks; works whose turn did not come by then may come again.
const MOST_WAIT: Duration = Duration::from_secs(2);

/// Masks that a work needs.
#[derive(Debug)]
pub struct Wanted {
    place: Arc<Place>,
    ahead: Ahead,
}

impl Wanted {
    /// Masks at these places of a text.
    #[must_use]
    pub fn new(text: &Text, ahead: Ahead) -> Self {
        Self { place: Arc::clone(text.place()), ahead }
    }

    /// What needs no work.
    fn ready(&self) -> Option<Result<Vec<Mask>, Trouble>> {
        if self.place.is_cancelled() {
            return Some(Err(Trouble::too_long()));
        }
        if self.ahead.is_here() { Some(Ok(vec![self.place.ready()?])) } else { None }
    }
}

/// What works wanted, in order, or why a text has none. Those that are not there are worked out by all threads together.
/// A text that takes longer than [`MOST_TIME`] fails, for good, and others do not wait for it; they may have to come again.
#[must_use]
pub fn masks(wanted: Vec<Wanted>) -> Vec<Result<Vec<Mask>, Trouble>> {
    let (sender, done) = mpsc::channel();
    let mut results: Vec<Option<Result<Vec<Mask>, Trouble>>> = Vec::with_capacity(wanted.len());
    let mut waiting = Vec::new();
    for (at, wanted) in wanted.into_iter().enumerate() {
        let ready = wanted.ready();
        if ready.is_none() {
            let (sender, Wanted { place, ahead }) = (sender.clone(), wanted);
            let most = MOST_TIME + MORE_TIME.saturating_mul(ahead.masks() as u32);
            waiting.push((at, Arc::clone(&place), most));
            let pool = &Arc::clone(&place.grammar).compiled.tokens;
            // Fails when nobody waits any more.
            pool.pool.spawn(move || drop(sender.send((at, place.masks(&ahead)))));
        }
        results.push(ready);
    }
    drop(sender);
    let (started, mut looked) = (Instant::now(), Instant::now());
    while !waiting.is_empty() {
        match done.recv_timeout(LOOK) {
            Ok((at, result)) => {
                waiting.retain(|(waiting, ..)| *waiting != at);
                results[at] = results[at].take().or(Some(result));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            waiting.retain(|(at, place, most)| {
                let is_late = place.busy_for() > *most;
                if is_late {
                    place.cancel();
                    results[*at] = Some(Err(Trouble::too_long()));
                }
                !is_late && started.elapsed() < MOST_WAIT
            });
        }
    }
    results.into_iter().map(|result| result.unwrap_or(Err(Trouble::NotYet))).collect()
}
