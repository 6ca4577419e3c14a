//! What the threads of grammars do next.
//!
//! Streams take turns (fair queueing), so that one with much to do delays the others by one piece of work, and not by
//! all of its own. A piece of work cannot be interrupted, so one thread is kept from texts that are slow, as long as
//! several streams ask. What is asked for goes before what is only computed ahead.

use super::compile::Tokens;
use super::lock;
use super::running::OnDrop;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Work on a text that takes longer is slow. A mask takes some 20 us, and seldom one millisecond.
pub(super) const SLOW: Duration = Duration::from_millis(5);
/// After so many quick pieces of work, new texts of a stream no longer count as slow.
const QUICK_AGAIN: u32 = 64;
/// For so long after different streams have asked, one thread is kept from slow texts.
const SHARED: Duration = Duration::from_secs(1);

/// A piece of work.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// The texts of one stream, which take turns with those of others.
#[derive(Debug, Default)]
pub struct Flow {
    /// How many pieces of work have to be quick until its new texts count as quick; 0 if they do.
    until_quick: AtomicU32,
}

/// How long the last work on a text took.
#[derive(Debug, Default)]
pub(super) struct Pace(AtomicU8);

impl Pace {
    const QUICK: u8 = 1;
    const SLOW: u8 = 2;

    /// Notes that work on a text of this flow took so long.
    pub(super) fn note(&self, took: Duration, flow: &Flow) {
        let is_slow = took > SLOW;
        self.0.store(if is_slow { Self::SLOW } else { Self::QUICK }, Ordering::Relaxed);
        let next = |left: u32| if is_slow { Some(QUICK_AGAIN) } else { left.checked_sub(1) };
        // `None` leaves it at 0.
        let _ = flow.until_quick.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Whether work on the text is likely to be slow. Of a new text, its flow tells.
    fn is_slow(&self, flow: &Flow) -> bool {
        match self.0.load(Ordering::Relaxed) {
            Self::QUICK => false,
            Self::SLOW => true,
            _ => flow.until_quick.load(Ordering::Relaxed) > 0,
        }
    }
}

/// Why a piece of work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Somebody asked for it.
    Asked,
    /// Somebody may ask for it.
    Ahead,
}

/// The work that waits for threads. It is bounded by the texts, and by the steps in flight.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// How many threads may be at slow texts while several streams ask.
    most_slow: usize,
}

#[derive(Default)]
struct Waiting {
    asked: Lanes,
    ahead: Lanes,
    /// How many threads are at slow texts.
    slow_running: usize,
    /// Whether the last work to begin was slow, so that it is a quick one's turn.
    was_slow: bool,
    /// The flow that came last, and until when another one that came before it counts.
    last: Option<Arc<Flow>>,
    shared_until: Option<Instant>,
}

#[derive(Default)]
struct Lanes {
    quick: Lane,
    slow: Lane,
}

/// The flows with work, in the order in which they are served, each once.
#[derive(Default)]
struct Lane(VecDeque<(Arc<Flow>, VecDeque<Work>)>);

impl Lane {
    fn push(&mut self, flow: &Arc<Flow>, work: Work) {
        match self.0.iter_mut().find(|(other, _)| Arc::ptr_eq(other, flow)) {
            Some((_, works)) => works.push_back(work),
            None => self.0.push_back((Arc::clone(flow), VecDeque::from([work]))),
        }
    }

    fn pop(&mut self) -> Option<Work> {
        let (flow, mut works) = self.0.pop_front()?;
        let work = works.pop_front();
        if !works.is_empty() {
            self.0.push_back((flow, works));
        }
        work
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Lanes {
    /// The next work, and whether it is slow.
    fn pop(&mut self, may_be_slow: bool, slow_first: bool) -> Option<(Work, bool)> {
        let Self { quick, slow } = self;
        let is_slow = may_be_slow && !slow.is_empty() && (slow_first || quick.is_empty());
        let work = if is_slow { slow.pop() } else { quick.pop() };
        Some((work?, is_slow))
    }
}

impl Waiting {
    fn push(&mut self, flow: &Arc<Flow>, why: Why, is_slow: bool, work: Work, now: Instant) {
        if self.last.as_ref().is_some_and(|last| !Arc::ptr_eq(last, flow)) {
            self.shared_until = Some(now + SHARED);
        }
        self.last = Some(Arc::clone(flow));
        let lanes = if why == Why::Asked { &mut self.asked } else { &mut self.ahead };
        if is_slow { &mut lanes.slow } else { &mut lanes.quick }.push(flow, work);
    }

    /// Whether one more thread may work on a slow text.
    fn may_be_slow(&self, most_slow: usize, now: Instant) -> bool {
        self.slow_running < most_slow || self.shared_until.is_none_or(|until| now >= until)
    }

    /// The next work to do, and whether it is slow; `None` if there is none that may be done now.
    fn next(&mut self, most_slow: usize, now: Instant) -> Option<(Work, bool)> {
        let (may_be_slow, slow_first) = (self.may_be_slow(most_slow, now), !self.was_slow);
        let next = self.asked.pop(may_be_slow, slow_first).or_else(|| self.ahead.pop(may_be_slow, false));
        let (_, is_slow) = next.as_ref()?;
        self.was_slow = *is_slow;
        self.slow_running += usize::from(*is_slow);
        next
    }
}

impl Queue {
    /// For so many threads.
    pub(super) fn new(threads: usize) -> Self {
        Self { waiting: Mutex::default(), most_slow: threads.saturating_sub(1).max(1) }
    }

    /// Whether a thread could do something that was asked for.
    pub(super) fn has_asked(&self) -> bool {
        let waiting = lock(&self.waiting);
        let Lanes { quick, slow } = &waiting.asked;
        !quick.is_empty() || !slow.is_empty() && waiting.may_be_slow(self.most_slow, Instant::now())
    }
}

impl Tokens {
    /// Has some thread do this work on a text of this flow.
    pub(super) fn give(self: &Arc<Self>, flow: &Arc<Flow>, pace: &Pace, why: Why, work: Work) {
        lock(&self.queue.waiting).push(flow, why, pace.is_slow(flow), work, Instant::now());
        self.wake();
    }

    /// Has some thread do the next work.
    fn wake(self: &Arc<Self>) {
        let own = Arc::clone(self);
        self.pool.spawn(move || own.do_next());
    }

    fn do_next(self: &Arc<Self>) {
        let next = lock(&self.queue.waiting).next(self.queue.most_slow, Instant::now());
        let Some((work, is_slow)) = next else { return };
        let _ends = OnDrop(|| {
            if is_slow {
                self.slow_ended();
            }
        });
        work();
    }

    /// Slow work that had to wait for this may begin. The thread that came for it has left since.
    fn slow_ended(self: &Arc<Self>) {
        let mut waiting = lock(&self.queue.waiting);
        waiting.slow_running -= 1;
        if !waiting.asked.slow.is_empty() || !waiting.ahead.slow.is_empty() {
            drop(waiting);
            self.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Work that waits, and what was done so far.
    struct Bench {
        waiting: Waiting,
        done: (mpsc::Sender<char>, mpsc::Receiver<char>),
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self { waiting: Waiting::default(), done: mpsc::channel(), now: Instant::now() }
        }

        fn push(&mut self, flow: &Arc<Flow>, why: Why, is_slow: bool, names: &str) {
            for name in names.chars() {
                let sender = self.done.0.clone();
                self.waiting.push(flow, why, is_slow, Box::new(move || _ = sender.send(name)), self.now);
            }
        }

        /// The names of what may be done now, in order. Slow work never ends.
        fn order(&mut self, most_slow: usize) -> String {
            while let Some((work, _)) = self.waiting.next(most_slow, self.now) {
                work();
            }
            self.done.1.try_iter().collect()
        }
    }

    fn flows() -> [Arc<Flow>; 3] {
        std::array::from_fn(|_| Arc::default())
    }

    #[test]
    fn streams_take_turns() {
        let (mut bench, [many, one, two]) = (Bench::new(), flows());
        bench.push(&many, Why::Asked, false, "abcdef");
        bench.push(&one, Why::Asked, false, "1");
        bench.push(&two, Why::Asked, false, "xy");
        assert_eq!(bench.order(1), "a1xbycdef");
    }

    #[test]
    fn what_is_asked_for_comes_first() {
        let (mut bench, [one, two, _]) = (Bench::new(), flows());
        bench.push(&one, Why::Ahead, false, "xyz");
        bench.push(&one, Why::Asked, true, "a");
        bench.push(&two, Why::Asked, false, "b");
        assert_eq!(bench.order(1), "abxyz");
    }

    /// A thread is left for others, and slow texts have their turns on the rest.
    #[test]
    fn slow_texts_do_not_take_all_threads() {
        let (mut bench, [slow, quick, _]) = (Bench::new(), flows());
        bench.push(&slow, Why::Asked, true, "ABCD");
        bench.push(&slow, Why::Ahead, true, "X");
        bench.push(&quick, Why::Asked, false, "abc");
        assert_eq!(bench.order(2), "AaBbc");
        assert_eq!(bench.order(2), "");
        bench.waiting.slow_running -= 1;
        bench.push(&quick, Why::Asked, false, "de");
        assert_eq!(bench.order(2), "Cde");
        // Nobody else asks any more.
        bench.now += SHARED;
        assert_eq!(bench.order(2), "DX");
    }

    #[test]
    fn one_stream_alone_has_all_threads() {
        let (mut bench, [slow, ..]) = (Bench::new(), flows());
        bench.push(&slow, Why::Asked, true, "ABC");
        assert_eq!(bench.order(1), "ABC");
    }

    #[test]
    fn new_texts_of_a_slow_stream_count_as_slow_for_a_while() {
        let (flow, slow, long) = (Flow::default(), Pace::default(), SLOW + Duration::from_micros(1));
        assert!(!slow.is_slow(&flow) && !Pace::default().is_slow(&flow));
        slow.note(long, &flow);
        assert!(slow.is_slow(&flow) && Pace::default().is_slow(&flow));
        let quick = Pace::default();
        for _ in 0..QUICK_AGAIN {
            assert!(Pace::default().is_slow(&flow));
            quick.note(SLOW, &flow);
            assert!(!quick.is_slow(&flow), "it is known");
        }
        assert!(slow.is_slow(&flow) && !Pace::default().is_slow(&flow));
        slow.note(SLOW, &flow);
        assert!(!slow.is_slow(&flow) && !Pace::default().is_slow(&flow));
    }
}
