//! Computes something for many texts at once, and waits for it within limits. A text that takes longer than
//! [`time_for`](super::mask_error::time_for) allows is cancelled, for good.

use super::compile::Tokens;
use super::mask_error::MaskError;
use super::running::OnDrop;
use super::text::Place;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How often texts are checked for taking too long.
const LOOK: Duration = Duration::from_millis(20);

/// A check that is later than this means that this process stood still, as a process does that is stopped or gets no
/// CPU.
const LATE: Duration = LOOK.saturating_mul(5);

/// The checks for texts that take too long.
struct Looks {
    last: Instant,
    was_late: bool,
}

impl Looks {
    fn begin() -> Self {
        Self { last: Instant::now(), was_late: false }
    }

    /// Records a check, and returns whether texts that have used up their time count as late in it. They do not if the
    /// check itself comes late, since the threads that work on them stood still as well. They then have until the next
    /// check, which counts however late it is.
    fn counts(&mut self, now: Instant) -> bool {
        let is_late = now.saturating_duration_since(self.last) > LATE;
        let counts = !is_late || self.was_late;
        (self.last, self.was_late) = (now, is_late);
        counts
    }
}

/// What is asked about one text: known already, or to be computed.
pub(super) enum Asked<T> {
    Known(Result<T, MaskError>),
    Work { place: Arc<Place>, work: Work<T> },
}

type Work<T> = Box<dyn FnOnce(&Arc<Place>) -> Result<T, MaskError> + Send>;

impl<T> Asked<T> {
    /// Work to be done on a text.
    pub(super) fn new(
        place: Arc<Place>,
        work: impl FnOnce(&Arc<Place>) -> Result<T, MaskError> + Send + 'static,
    ) -> Self {
        if place.is_cancelled() {
            return Self::Known(Err(MaskError::too_long()));
        }
        Self::Work { place, work: Box::new(work) }
    }
}

/// The results so far.
type Results<T> = Vec<Option<Result<T, MaskError>>>;
/// Texts that threads work on, each with the index of its result.
type Waiting = Vec<(usize, Arc<Place>)>;

/// The results, in order. All threads together compute them, for at most `most` in all; results that are missing then
/// are [`MaskError::NotYet`]. A text that takes too long fails, and the others do not wait for it.
pub(super) fn together<T: Send + 'static>(asked: Vec<Asked<T>>, most: Duration) -> Vec<Result<T, MaskError>> {
    let (sender, done) = mpsc::channel();
    // Work that has not begun by the end is skipped.
    let is_over = Arc::new(AtomicBool::new(false));
    let _ends = OnDrop(|| is_over.store(true, Ordering::Relaxed));
    let (mut results, mut waiting) = begun(asked, sender, &is_over);
    let tokens = waiting.first().map(|(_, place)| Arc::clone(&place.grammar.compiled.tokens));
    let waiting_for = |count: fn(&AtomicUsize)| tokens.iter().for_each(|tokens| count(&tokens.waiting));
    waiting_for(|count| _ = count.fetch_add(1, Ordering::Relaxed));
    let _waits = OnDrop(|| waiting_for(|count| _ = count.fetch_sub(1, Ordering::Relaxed)));
    wait_for(&mut results, &mut waiting, &done, tokens.as_deref(), most);
    results.into_iter().map(|result| result.unwrap_or(Err(MaskError::NotYet))).collect()
}

/// Starts the work for all results that are not known. Threads send them, until `is_over`.
fn begun<T: Send + 'static>(
    asked: Vec<Asked<T>>,
    sender: mpsc::Sender<(usize, Result<T, MaskError>)>,
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
                        // This fails if nobody waits any more.
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

/// Waits at most `most` in all for what threads send, and cancels texts that take too long meanwhile.
fn wait_for<T>(
    results: &mut Results<T>,
    waiting: &mut Waiting,
    done: &mpsc::Receiver<(usize, Result<T, MaskError>)>,
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
            // Texts that nobody waits for may occupy all threads.
            tokens.into_iter().for_each(|tokens| tokens.running.cancel_late());
            waiting.retain(|(at, place)| {
                let is_late = place.is_late();
                if is_late {
                    place.cancel();
                    results[*at] = Some(Err(MaskError::too_long()));
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
        // A machine that is always late is no reason to go on forever.
        assert!(!after(long) && after(long) && after(long) && after(LOOK));
        assert!(!after(long), "and then it counts anew");
    }
}
