//! What the threads of grammars do next.
//!
//! Streams take turns (fair queueing), so that one with much to do delays the others by one piece of work, and not by
//! all of its own. A piece of work cannot be interrupted, so one thread is kept from texts that are slow, as long as
//! several streams ask. What is asked for goes before what is only computed ahead.

#[cfg(test)]
mod tests;

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

/// What a piece of work does.
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
    threads: usize,
}

struct Waiting {
    asked: Lanes,
    ahead: Lanes,
    /// How many threads will come for work.
    coming: usize,
    /// How many threads may be at slow texts while several streams ask, and how many are.
    most_slow: usize,
    slow: usize,
    /// How many of them do what nobody asked for.
    slow_ahead: usize,
    /// Whether the last work to begin was slow, so that it is a quick one's turn.
    was_slow: bool,
    /// The flow that came last, and until when another one that came before it counts.
    last: Option<Arc<Flow>>,
    shared_until: Option<Instant>,
}

/// Work on texts that are quick and on those that are slow.
#[derive(Default)]
struct Lanes {
    quick: Lane,
    slow: Lane,
}

/// The flows with work, in the order in which they are served, each once.
#[derive(Default)]
struct Lane {
    flows: VecDeque<(Arc<Flow>, VecDeque<Item>)>,
    len: usize,
}

/// A piece of work, and the pace of its text.
struct Item {
    pace: Arc<Pace>,
    work: Work,
}

/// A piece of work that a thread does.
struct Piece {
    work: Work,
    is_slow: bool,
    why: Why,
}

impl Lane {
    fn push(&mut self, flow: &Arc<Flow>, item: Item) {
        self.len += 1;
        match self.flows.iter_mut().find(|(other, _)| Arc::ptr_eq(other, flow)) {
            Some((_, items)) => items.push_back(item),
            None => self.flows.push_back((Arc::clone(flow), VecDeque::from([item]))),
        }
    }

    fn pop(&mut self) -> Option<(Arc<Flow>, Item)> {
        let (flow, mut items) = self.flows.pop_front()?;
        let item = items.pop_front()?;
        self.len -= 1;
        if !items.is_empty() {
            self.flows.push_back((Arc::clone(&flow), items));
        }
        Some((flow, item))
    }
}

impl Lanes {
    /// The next work, and whether it is slow.
    fn pop(&mut self, may_be_slow: bool, slow_first: bool) -> Option<(Work, bool)> {
        let Self { quick, slow } = self;
        if may_be_slow && slow_first && slow.len > 0 {
            return slow.pop().map(|(_, item)| (item.work, true));
        }
        while let Some((flow, item)) = quick.pop() {
            if !item.pace.is_slow(&flow) {
                return Some((item.work, false));
            }
            // That shows since it was given.
            slow.push(&flow, item);
        }
        let last = if may_be_slow { slow.pop() } else { None };
        last.map(|(_, item)| (item.work, true))
    }
}

impl Waiting {
    /// For so many threads.
    fn new(threads: usize) -> Self {
        let most_slow = threads.saturating_sub(1).max(1);
        let (asked, ahead) = (Lanes::default(), Lanes::default());
        let (last, shared_until) = (None, None);
        Self { asked, ahead, coming: 0, most_slow, slow: 0, slow_ahead: 0, was_slow: false, last, shared_until }
    }

    fn push(&mut self, flow: &Arc<Flow>, why: Why, item: Item, now: Instant) {
        if self.last.as_ref().is_some_and(|last| !Arc::ptr_eq(last, flow)) {
            self.shared_until = Some(now + SHARED);
        }
        self.last = Some(Arc::clone(flow));
        let lanes = if why == Why::Asked { &mut self.asked } else { &mut self.ahead };
        if item.pace.is_slow(flow) { &mut lanes.slow } else { &mut lanes.quick }.push(flow, item);
    }

    /// How many more threads may work on slow texts.
    fn free_for_slow(&self, now: Instant) -> usize {
        let is_shared = self.shared_until.is_some_and(|until| now < until);
        if is_shared { self.most_slow.saturating_sub(self.slow) } else { usize::MAX }
    }

    /// The next work to do; `None` if there is none that may be done now.
    fn next(&mut self, now: Instant) -> Option<Piece> {
        let (may_be_slow, slow_first) = (self.free_for_slow(now) > 0, !self.was_slow);
        let asked = self.asked.pop(may_be_slow, slow_first).map(|found| (found, Why::Asked));
        let next = asked.or_else(|| Some((self.ahead.pop(may_be_slow, false)?, Why::Ahead)));
        let ((work, is_slow), why) = next?;
        self.was_slow = is_slow;
        self.count_slow(is_slow, why, |slow| slow + 1);
        Some(Piece { work, is_slow, why })
    }

    /// A piece of work has ended.
    fn end(&mut self, is_slow: bool, why: Why) {
        self.count_slow(is_slow, why, |slow| slow - 1);
    }

    fn count_slow(&mut self, is_slow: bool, why: Why, count: impl Fn(usize) -> usize) {
        if is_slow {
            self.slow = count(self.slow);
            if why == Why::Ahead {
                self.slow_ahead = count(self.slow_ahead);
            }
        }
    }

    /// How many more threads have to come, of so many. A thread may have found nothing that it could do, and have left
    /// what can be done now; so this is asked whenever something changes.
    fn lacks(&mut self, threads: usize, now: Instant) -> usize {
        let slow = (self.asked.slow.len + self.ahead.slow.len).min(self.free_for_slow(now));
        let more = (self.asked.quick.len + self.ahead.quick.len + slow).saturating_sub(self.coming).min(threads);
        self.coming += more;
        more
    }

    /// Whether something was asked for that could begin, if what nobody asked for ended.
    fn has_asked(&self, now: Instant) -> bool {
        let Lanes { quick, slow } = &self.asked;
        quick.len > 0 || slow.len > 0 && (self.slow_ahead > 0 || self.free_for_slow(now) > 0)
    }
}

impl Queue {
    /// For so many threads.
    pub(super) fn new(threads: usize) -> Self {
        Self { waiting: Mutex::new(Waiting::new(threads)), threads }
    }

    /// Whether what is computed ahead should end for something that was asked for.
    pub(super) fn has_asked(&self) -> bool {
        lock(&self.waiting).has_asked(Instant::now())
    }
}

impl Tokens {
    /// Has some thread do this work on a text of this flow.
    pub(super) fn give(self: &Arc<Self>, flow: &Arc<Flow>, pace: &Arc<Pace>, why: Why, work: Work) {
        let item = Item { pace: Arc::clone(pace), work };
        self.change(|waiting, now| waiting.push(flow, why, item, now));
    }

    /// Changes what waits, and has threads come that are lacking then.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut Waiting, Instant) -> T) -> T {
        let (mut waiting, now) = (lock(&self.queue.waiting), Instant::now());
        let changed = change(&mut waiting, now);
        let lacks = waiting.lacks(self.queue.threads, now);
        drop(waiting);
        for _ in 0..lacks {
            let own = Arc::clone(self);
            self.pool.spawn(move || own.do_next());
        }
        changed
    }

    fn do_next(self: &Arc<Self>) {
        let next = self.change(|waiting, now| {
            waiting.coming -= 1;
            waiting.next(now)
        });
        let Some(Piece { work, is_slow, why }) = next else { return };
        let _ends = OnDrop(|| self.change(|waiting, _| waiting.end(is_slow, why)));
        work();
    }
}
