//! Works something out about many texts at once, and waits for it within limits. A text that takes longer than
//! [`time_for`](super::trouble::time_for) it is cancelled, for good.

use super::compile::Tokens;
use super::running::OnDrop;
use super::text::Place;
use super::trouble::Trouble;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How often it is looked at who takes longer.
const LOOK: Duration = Duration::from_millis(20);

/// What is later than this stood still, as a process does that is stopped or gets no CPU.
const LATE: Duration = LOOK.saturating_mul(5);

/// When it was looked at who takes longer.
struct Looks {
    last: Instant,
    was_late: bool,
}

impl Looks {
    fn begin() -> Self {
        Self { last: Instant::now(), was_late: false }
    }

    /// Takes in a look; whether texts that have had their time are late then. In a look that comes late itself they are not, since
    /// whoever works on them stood still as well. They have until the next one, which is the last word however late it is.
    fn counts(&mut self, now: Instant) -> bool {
        let is_late = now.saturating_duration_since(self.last) > LATE;
        let counts = !is_late || self.was_late;
        (self.last, self.was_late) = (now, is_late);
        counts
    }
}

/// Something about one text.
pub(super) enum Asked<T> {
    Known(Result<T, Trouble>),
    Work { place: Arc<Place>, work: Work<T> },
}

type Work<T> = Box<dyn FnOnce(&Arc<Place>) -> Result<T, Trouble> + Send>;

impl<T> Asked<T> {
    /// To be worked out.
    pub(super) fn new(
        place: Arc<Place>,
        work: impl FnOnce(&Arc<Place>) -> Result<T, Trouble> + Send + 'static,
    ) -> Self {
        if place.is_cancelled() {
            return Self::Known(Err(Trouble::too_long()));
        }
        Self::Work { place, work: Box::new(work) }
    }
}

/// What came of each, once it is there.
type Results<T> = Vec<Option<Result<T, Trouble>>>;
/// The texts that threads work on, each with its place among the results.
type Waiting = Vec<(usize, Arc<Place>)>;

/// What came of it, in order. All threads together work it out, for `most` in all; what is not there by then is not there yet. A text that
/// takes too long fails, and others do not wait for it.
pub(super) fn together<T: Send + 'static>(asked: Vec<Asked<T>>, most: Duration) -> Vec<Result<T, Trouble>> {
    let (sender, done) = mpsc::channel();
    // Whoever comes too late does nothing any more.
    let is_over = Arc::new(AtomicBool::new(false));
    let _ends = OnDrop(|| is_over.store(true, Ordering::Relaxed));
    let (mut results, mut waiting) = begun(asked, sender, &is_over);
    let tokens = waiting.first().map(|(_, place)| Arc::clone(&place.grammar.compiled.tokens));
    let waiting_for = |count: fn(&AtomicUsize)| tokens.iter().for_each(|tokens| count(&tokens.waiting));
    waiting_for(|count| _ = count.fetch_add(1, Ordering::Relaxed));
    let _waits = OnDrop(|| waiting_for(|count| _ = count.fetch_sub(1, Ordering::Relaxed)));
    wait_for(&mut results, &mut waiting, &done, tokens.as_deref(), most);
    results.into_iter().map(|result| result.unwrap_or(Err(Trouble::NotYet))).collect()
}

/// Has threads work out what is not known, and send it, until it `is_over`.
fn begun<T: Send + 'static>(
    asked: Vec<Asked<T>>,
    sender: mpsc::Sender<(usize, Result<T, Trouble>)>,
    is_over: &Arc<AtomicBool>,
) -> (Results<T>, Waiting) {
    let mut results = Vec::with_capacity(asked.len());
    let mut waiting = Vec::new();
    for (at, asked) in asked.into_iter().enumerate() {
        results.push(match asked {
            Asked::Known(result) => Some(result),
            Asked::Work { place, work } => {
                let (sender, is_over) = (sender.clone(), Arc::clone(is_over));
                waiting.push((at, Arc::clone(&place)));
                let tokens = Arc::clone(&place.grammar.compiled.tokens);
                let work = move || {
                    if !is_over.load(Ordering::Relaxed) {
                        // Fails when nobody waits any more.
                        let _ = sender.send((at, work(&place)));
                    }
                };
                tokens.pool.spawn(work);
                None
            }
        });
    }
    (results, waiting)
}

/// Waits for what threads send, for `most` in all, and cancels texts that take too long meanwhile.
fn wait_for<T>(
    results: &mut Results<T>,
    waiting: &mut Waiting,
    done: &mpsc::Receiver<(usize, Result<T, Trouble>)>,
    tokens: Option<&Tokens>,
    most: Duration,
) {
    let (look, started, mut looks) = (LOOK.min(most), Instant::now(), Looks::begin());
    while !waiting.is_empty() {
        match done.recv_timeout(look) {
            Ok((at, result)) => {
                waiting.retain(|(waiting, _)| *waiting != at);
                results[at] = results[at].take().or(Some(result));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        let now = Instant::now();
        if now.saturating_duration_since(looks.last) >= look && looks.counts(now) {
            // Texts that nobody waits for may have all the threads.
            tokens.into_iter().for_each(|tokens| tokens.running.cancel_late());
            waiting.retain(|(at, place)| {
                let is_late = place.is_late();
                if is_late {
                    place.cancel();
                    results[*at] = Some(Err(Trouble::too_long()));
                }
                !is_late && started.elapsed() < most
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_is_late_itself_calls_nobody_late_and_the_next_one_does() {
        let mut looks = Looks::begin();
        let mut after = |time: Duration| {
            let now = looks.last + time;
            looks.counts(now)
        };
        let long = LATE + Duration::from_millis(1);
        assert!(after(LOOK) && after(LATE));
        assert!(!after(long) && after(LOOK), "nothing was done meanwhile");
        // A machine that is always late is no reason to go on for ever.
        assert!(!after(long) && after(long) && after(long) && after(LOOK));
        assert!(!after(long), "and then it counts anew");
    }
}
