//! Computes something for many texts at once, and waits for it within limits, or looks from time to time. A text that
//! takes longer than [`time_for`](super::mask_error::time_for) allows is cancelled, for good.

use super::compile::Tokens;
use super::mask_error::MaskError;
use super::queue::Why;
use super::running::OnDrop;
use super::text::Place;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How often texts are checked for taking too long.
const LOOK: Duration = Duration::from_millis(20);

/// A check that is later than this means that this process stood still, as a process does that is stopped or gets no
/// CPU.
const LATE: Duration = LOOK.saturating_mul(5);

/// The checks for texts that take too long.
#[derive(Debug)]
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

/// What the threads that work share with whoever waits for them.
#[derive(Debug)]
struct Shared {
    /// How many works are not done.
    left: AtomicUsize,
    /// Whether nobody waits any more. Work that has not begun by then is skipped.
    is_over: AtomicBool,
    /// Whom the last work to be done wakes.
    sleeper: OnceLock<Thread>,
}

impl Shared {
    fn one_done(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.sleeper.get().into_iter().for_each(Thread::unpark);
        }
    }
}

/// Work on several texts that threads do, and its results. If it is dropped, work that has not begun is skipped.
pub(super) struct UnderWay<T> {
    results: Results<T>,
    waiting: Waiting,
    done: mpsc::Receiver<(usize, Result<T, MaskError>)>,
    tokens: Option<Arc<Tokens>>,
    shared: Arc<Shared>,
    started: Instant,
    looks: Looks,
    /// How long it may take in all. Results that are missing then are [`MaskError::NotYet`].
    most: Duration,
}

impl<T> Drop for UnderWay<T> {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

impl<T: Send + 'static> UnderWay<T> {
    /// Has all threads together compute what is asked and not known.
    pub(super) fn begin(asked: Vec<Asked<T>>, most: Duration) -> Self {
        let (sender, done) = mpsc::channel();
        let left = asked.iter().filter(|asked| matches!(asked, Asked::Work { .. })).count();
        let (left, is_over, sleeper) = (AtomicUsize::new(left), AtomicBool::new(false), OnceLock::new());
        let shared = Arc::new(Shared { left, is_over, sleeper });
        let (results, waiting) = begun(asked, &sender, &shared);
        let tokens = waiting.first().map(|(_, place)| Arc::clone(&place.grammar.compiled.tokens));
        Self { results, waiting, done, tokens, shared, started: Instant::now(), looks: Looks::begin(), most }
    }

    /// The results, in order, once all are known.
    pub(super) fn results(mut self) -> Vec<Result<T, MaskError>> {
        while !self.wait(self.most) {}
        let results = std::mem::take(&mut self.results);
        results.into_iter().map(|result| result.unwrap_or(Err(MaskError::NotYet))).collect()
    }
}

impl<T> UnderWay<T> {
    /// Waits for what threads send, but not for longer than this, and cancels texts that take too long meanwhile.
    /// Returns whether nothing is left to wait for.
    pub(super) fn wait(&mut self, at_most: Duration) -> bool {
        let (began, look) = (Instant::now(), LOOK.min(self.most));
        let mut is_over = false;
        while !self.waiting.is_empty() && !is_over {
            let left = at_most.saturating_sub(began.elapsed());
            match self.done.recv_timeout(look.min(left)) {
                Ok(done) => self.take_in(done),
                Err(mpsc::RecvTimeoutError::Timeout) => is_over = left <= look,
                Err(mpsc::RecvTimeoutError::Disconnected) => self.waiting.clear(),
            }
            // Nothing that is there is late, however long nobody looked.
            while let Ok(done) = self.done.try_recv() {
                self.take_in(done);
            }
            let now = Instant::now();
            if now.saturating_duration_since(self.looks.last) >= look && self.looks.counts(now) {
                self.cancel_late();
            }
            if self.started.elapsed() >= self.most {
                self.waiting.clear();
            }
        }
        self.waiting.is_empty()
    }

    /// Waits no longer. What is not there has this error.
    pub(super) fn give_up(&mut self, error: &MaskError) {
        self.wait(Duration::ZERO);
        self.shared.is_over.store(true, Ordering::Relaxed);
        for (at, _) in self.waiting.drain(..) {
            self.results[at] = Some(Err(error.clone()));
        }
    }

    fn take_in(&mut self, (at, result): (usize, Result<T, MaskError>)) {
        self.waiting.retain(|(waiting, _)| *waiting != at);
        self.results[at] = self.results[at].take().or(Some(result));
    }

    /// Has the last work to be done wake this thread. It may be done already, so whoever parks looks again before that, and
    /// from time to time.
    pub(super) fn wakes(&self, thread: Thread) {
        let _ = self.shared.sleeper.set(thread);
    }

    /// Ends work on texts that have used up their time.
    fn cancel_late(&mut self) {
        // Texts that nobody waits for may occupy all threads.
        self.tokens.iter().for_each(|tokens| tokens.running.cancel_late());
        let results = &mut self.results;
        self.waiting.retain(|(at, place)| {
            let is_late = place.is_late();
            if is_late {
                place.cancel();
                results[*at] = Some(Err(MaskError::too_long()));
            }
            !is_late
        });
    }
}

impl<T> fmt::Debug for UnderWay<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnderWay").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// Starts the work for all results that are not known. Threads send them, until nobody waits any more.
fn begun<T: Send + 'static>(
    asked: Vec<Asked<T>>,
    sender: &mpsc::Sender<(usize, Result<T, MaskError>)>,
    shared: &Arc<Shared>,
) -> (Results<T>, Waiting) {
    let mut results = Vec::with_capacity(asked.len());
    let mut waiting = Vec::new();
    for (at, asked) in asked.into_iter().enumerate() {
        results.push(match asked {
            Asked::Known(result) => Some(result),
            Asked::Work { place, work } => {
                let (sender, shared) = (sender.clone(), Arc::clone(shared));
                waiting.push((at, Arc::clone(&place)));
                let own = Arc::clone(&place);
                let work = move || {
                    let _ends = OnDrop(|| shared.one_done());
                    if !shared.is_over.load(Ordering::Relaxed) {
                        // This fails if nobody waits any more.
                        let _ = sender.send((at, work(&place)));
                    }
                };
                own.spawn(Why::Asked, work);
                None
            }
        });
    }
    (results, waiting)
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
