//! Where one text stands in its grammar.

use super::ahead::Ahead;
use super::mask_error::{MAX_MASK_TIME, MaskError, time_for};
use super::propose::Proposed;
use super::queue::{Flow, Pace, Why, Work};
use super::running::OnDrop;
use super::state::{Mask, Phase, State, guarded};
use super::{Grammar, lock, thread_time};
use crate::params::FieldError;
use llguidance::CancellationHandle;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a future token may take. What it really takes is counted once it has been read.
const BYTES_PER_TOKEN: usize = 1 << 10;
/// What a text takes besides its automaton and its mask.
const BYTES: usize = 4 << 10;
/// How much longer reading the tokens that a text has emitted before may take, for each token, than a work's masks. It
/// is fifty times what it really takes.
const PER_TOKEN: Duration = Duration::from_micros(50);
/// After every so many tokens, the time is checked.
const LOOK_EACH: usize = 64;

/// A text that has to match a grammar.
#[derive(Debug)]
pub struct GrammarText {
    place: Arc<Place>,
    vocab_size: usize,
    /// How many draft tokens have their masks computed ahead.
    drafted: usize,
}

/// What the sequence shares with the threads that compute masks.
pub(super) struct Place {
    pub(super) grammar: Arc<Grammar>,
    pub(super) vocab_size: usize,
    /// Emitted tokens that the state has not read yet. They have a lock of their own, so that emitting a token never
    /// waits.
    pub(super) unread: Mutex<Vec<u32>>,
    state: Mutex<State>,
    /// The handle that cancels its automaton. The automaton may be replaced.
    cancellation: Mutex<CancellationHandle>,
    /// Draft tokens whose masks have to be computed ahead.
    draft: Mutex<Option<Vec<u32>>>,
    /// When the current work on it should be done, in microseconds of [`clock`]; 0 if there is none.
    until: AtomicU64,
    /// Whether a thread is going to work on it.
    is_queued: AtomicBool,
    /// Whose text it is.
    flow: Arc<Flow>,
    pace: Arc<Pace>,
    /// What threads are given to do with it.
    turns: Mutex<Turns>,
    /// How many bytes its automaton took when last seen.
    bytes: AtomicUsize,
}

/// Work on one text, done by one thread at a time, so that a slow text keeps no more than one.
#[derive(Default)]
struct Turns {
    waiting: VecDeque<Work>,
    /// Whether a thread does it.
    is_taken: bool,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("grammar", &self.grammar).finish_non_exhaustive()
    }
}

impl GrammarText {
    /// A text of this flow that has emitted these tokens so far. Its rows have `vocab_size` tokens.
    ///
    /// # Errors
    /// At `output_token_ids`, if they do not match the grammar.
    pub fn open(
        grammar: Arc<Grammar>,
        flow: &Arc<Flow>,
        vocab_size: usize,
        output: &[u32],
    ) -> Result<Self, FieldError> {
        let phase = grammar.begins.first().map_or(Phase::Inside, Phase::Before);
        let mut state = State::new(grammar.compiled.parser(), phase);
        let cancellation = state.cancellation();
        let most = time_to_read(output.len());
        let started = thread_time::own();
        for (at, &token) in output.iter().enumerate() {
            let is_late = at % LOOK_EACH == LOOK_EACH - 1 && thread_time::own().saturating_sub(started) > most;
            let read = if is_late { Err(MaskError::too_long()) } else { guarded(|| state.read(&grammar, token)) };
            let wrong = match read {
                Ok(true) => continue,
                Ok(false) => "is not allowed by the grammar at this position".to_owned(),
                Err(mask_error) => mask_error.to_string(),
            };
            return Err(FieldError::new(format!("output_token_ids[{at}]"), wrong));
        }
        let place = Arc::new(Place::new(grammar, Arc::clone(flow), vocab_size, state, cancellation));
        let mut text = Self { place, vocab_size, drafted: 0 };
        text.work_ahead(&[]);
        Ok(text)
    }

    /// Takes in an emitted token.
    pub fn push(&mut self, token: u32) {
        lock(&self.place.unread).push(token);
    }

    /// Has other threads compute what follows from all emitted tokens, and from these draft tokens after them.
    pub fn work_ahead(&mut self, draft: &[u32]) {
        self.drafted = draft.len();
        *lock(&self.place.draft) = Some(draft.to_vec());
        if !self.place.is_queued.swap(true, Ordering::Relaxed) {
            let place = Arc::clone(&self.place);
            self.place.spawn(Why::Ahead, move || place.catch_up());
        }
    }

    /// How many tokens a row has.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub(super) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Bytes it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        BYTES + self.vocab_size / 4 + self.of_draft(self.drafted) + self.place.bytes.load(Ordering::Relaxed)
    }

    /// The most bytes it may take once it has emitted so many more tokens, with a draft of so many after them.
    #[must_use]
    pub fn bytes_after(&self, tokens: usize, draft: usize) -> usize {
        self.bytes() + self.of_draft(draft) + tokens.saturating_mul(BYTES_PER_TOKEN)
    }

    /// Bytes of a draft and of its masks.
    fn of_draft(&self, tokens: usize) -> usize {
        tokens * (self.vocab_size / 8 + size_of::<u32>())
    }
}

/// Clones the text with an automaton of its own, at the same place.
impl Clone for GrammarText {
    fn clone(&self) -> Self {
        let own = lock(&self.place.state);
        let (mut state, unread) = (own.clone(), lock(&self.place.unread).clone());
        drop(own);
        // A copy of an automaton has a cancellation handle of its own.
        let cancellation = state.cancellation();
        let Place { grammar, flow, vocab_size, .. } = &*self.place;
        let (grammar, flow, vocab_size) = (Arc::clone(grammar), Arc::clone(flow), *vocab_size);
        let place = Place::new(grammar, flow, vocab_size, state, cancellation);
        *lock(&place.unread) = unread;
        Self { place: Arc::new(place), vocab_size, drafted: self.drafted }
    }
}

/// Cancels the work, because nobody waits for the masks of a text that is gone.
impl Drop for GrammarText {
    fn drop(&mut self) {
        self.place.cancel();
    }
}

impl Place {
    fn new(
        grammar: Arc<Grammar>,
        flow: Arc<Flow>,
        vocab_size: usize,
        state: State,
        cancellation: CancellationHandle,
    ) -> Self {
        let (unread, until, is_queued) = (Mutex::default(), AtomicU64::new(0), AtomicBool::new(false));
        let (bytes, draft) = (AtomicUsize::new(state.bytes()), Mutex::default());
        let (cancellation, state, turns) = (Mutex::new(cancellation), Mutex::new(state), Mutex::default());
        let pace = Arc::new(Pace::default());
        Self { grammar, vocab_size, unread, state, cancellation, draft, until, is_queued, flow, pace, turns, bytes }
    }

    /// Has some thread do this work on the text, once no other thread works on it.
    pub(super) fn spawn(self: &Arc<Self>, why: Why, work: impl FnOnce() + Send + 'static) {
        let place = Arc::clone(self);
        let work = Box::new(move || place.in_turn(Box::new(work)));
        self.grammar.compiled.tokens.give(&self.flow, &self.pace, why, work);
    }

    /// Does the work, and what comes meanwhile; leaves it to the thread that is at it already, if there is one.
    fn in_turn(&self, work: Work) {
        let mut turns = lock(&self.turns);
        turns.waiting.push_back(work);
        if std::mem::replace(&mut turns.is_taken, true) {
            return;
        }
        while let Some(next) = turns.waiting.pop_front() {
            drop(turns);
            next();
            turns = lock(&self.turns);
        }
        turns.is_taken = false;
    }

    /// Computes the masks after all emitted tokens and after those of a draft, if they are not there yet.
    fn catch_up(self: &Arc<Self>) {
        self.is_queued.store(false, Ordering::Relaxed);
        let draft = lock(&self.draft).take();
        if !self.is_cancelled() {
            // Errors are kept in the state, for whoever asks for the masks.
            let _ = match draft {
                Some(draft) => self.work(time_for(draft.len() + 1), |state| state.look_ahead(self, draft)),
                None => self.work(MAX_MASK_TIME, |state| state.next(self).map(drop)),
            };
        }
    }

    /// The masks at some places ahead. The places behind a token that the grammar does not allow are never reached, so
    /// their masks may be anything.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn masks(self: &Arc<Self>, ahead: &Ahead) -> Result<Vec<Mask>, MaskError> {
        self.work(time_for(ahead.masks()), |state| state.along(self, ahead))
    }

    /// See [`State::propose`].
    ///
    /// # Errors
    /// Why there will be no masks after it.
    pub(super) fn propose(self: &Arc<Self>, own: &[u32], most: usize) -> Result<Proposed, MaskError> {
        self.work(MAX_MASK_TIME, |state| state.propose(self, own, most))
    }

    fn work<T>(self: &Arc<Self>, most: Duration, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        self.until.store(clock() + most.as_micros() as u64, Ordering::Relaxed);
        let _ends = OnDrop(|| self.until.store(0, Ordering::Relaxed));
        let began = Instant::now();
        let done = self.grammar.compiled.tokens.running.during(self, || work(&mut state));
        self.pace.note(began.elapsed(), &self.flow);
        self.bytes.store(state.bytes(), Ordering::Relaxed);
        done
    }

    /// The masks at some places ahead, if they are there and no thread works on the text.
    pub(super) fn ready(&self, ahead: &Ahead) -> Option<Vec<Mask>> {
        let state = self.state.try_lock().ok()?;
        if lock(&self.unread).is_empty() { state.known(ahead) } else { None }
    }

    /// Whether rows have the token, and it can be part of the grammar's text, unlike tokens that end it.
    pub(super) fn is_text(&self, token: u32) -> bool {
        let tokens = (self.grammar.compiled.tokens.end as usize).min(self.vocab_size);
        (token as usize) < tokens && !self.grammar.ends.contains(&token)
    }

    /// Whether something was asked for that waits for a thread, or for this one.
    pub(super) fn somebody_waits(&self) -> bool {
        self.grammar.compiled.tokens.queue.has_asked() || !lock(&self.turns).waiting.is_empty()
    }

    /// Whether its work was cancelled because it took too long.
    pub(super) fn is_cancelled(&self) -> bool {
        lock(&self.cancellation).is_cancelled()
    }

    /// Whether some thread works on it.
    #[cfg(test)]
    pub(super) fn is_worked_on(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Whether some thread works on it that should be done by now.
    pub(super) fn is_late(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until != 0 && clock() > until
    }

    /// Ends the current work on it, and all later work.
    pub(super) fn cancel(&self) {
        lock(&self.cancellation).cancel();
    }

    /// Notes that its automaton is replaced by one that `cancellation` cancels, and that this one has to read so many
    /// tokens again.
    pub(super) fn renew(&self, cancellation: CancellationHandle, tokens: usize) {
        let mut own = lock(&self.cancellation);
        if own.is_cancelled() {
            // The text was cancelled meanwhile.
            cancellation.cancel();
        }
        *own = cancellation;
        self.until.store(clock() + time_to_read(tokens).as_micros() as u64, Ordering::Relaxed);
    }
}

/// How long reading so many tokens may take.
fn time_to_read(tokens: usize) -> Duration {
    MAX_MASK_TIME + PER_TOKEN.saturating_mul(u32::try_from(tokens).unwrap_or(u32::MAX))
}

/// Microseconds since some moment, at least 1.
fn clock() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64 + 1
}
