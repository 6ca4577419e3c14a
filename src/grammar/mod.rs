//! Grammars of structured output: which tokens a text may go on with.
//!
//! [`Grammars`] compiles them, once for all sequences that ask for the same; the automata are llguidance's. A [`Text`] is what one
//! sequence remembers: where in its grammar it stands. Threads of their own work out what comes of a token while the worker computes its
//! next row, so that the mask is there when the row comes. [`fill`] has the masks of a batch, and waits for those that are not there;
//! [`propose`] has what a grammar forces. Read this file, then `compile`, `text`, `state`, [`fill`].
//!
//! A mask is a function of grammar, vocabulary and tokens. Each text has an automaton of its own, so that no other text decides whether
//! it reaches a limit of work or memory. Limits of time are there for what no other limit holds.

mod ahead;
mod begins;
mod bounds;
mod compile;
pub mod fill;
mod gbnf;
mod patience;
pub mod propose;
mod rules;
mod running;
mod spelling;
mod state;
#[cfg(test)]
mod tests;
mod text;
mod thread_time;
mod together;
mod trouble;

pub use ahead::Ahead;
pub use compile::{Compiled, MOST_COMPILING, MOST_THREADS};
pub use patience::Patience;
pub use state::Mask;
pub use text::Text;
pub use trouble::Trouble;

use crate::complaints::Complaints;
use crate::locks::lock;
use crate::params::FieldError;
use crate::params::grammar::{GrammarKind, GrammarParams, GrammarStart};
use crate::permits::Counter;
use crate::vocabulary::Vocabulary;
use begins::Beginning;
use compile::{NoTokens, Tokens};
use metrics::Histogram;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Compiled grammars that are kept, whether or not a sequence uses them, for the next one that asks for the same; unless
/// [`Grammars::keeping`] says otherwise.
const MOST_RECENT: usize = 64;
/// Grammars that could not be compiled and are known again, and for how long: one that took too long may be in time later.
const MOST_REFUSED: usize = 16;
const REFUSED: Duration = Duration::from_secs(60);

/// What a grammar is known by.
type Key = (GrammarKind, String);

/// Why there is no grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompileError {
    /// It is wrong, or too large.
    Invalid(FieldError),
    /// There is no room for it, of so many bytes.
    NoRoom(usize),
    /// It and others of its message take so long that its turn did not come, or there are no threads for it now.
    Busy,
}

/// A grammar as the sequences of one set of parameters have it.
#[derive(Debug)]
pub struct Grammar {
    compiled: Arc<Compiled>,
    begins: Arc<Beginning>,
    /// Whether another one has them, too, and counts them.
    is_shared: bool,
    /// Tokens that end a text where it may end.
    ends: Vec<u32>,
}

impl Grammar {
    /// A compiled grammar that begins somewhere in a text, and may end with some tokens.
    #[must_use]
    pub fn new(compiled: Arc<Compiled>, start: &GrammarStart, ends: Vec<u32>) -> Self {
        Self { compiled, begins: Arc::new(Beginning::new(start)), is_shared: false, ends }
    }

    /// The same, which may end with other tokens.
    #[must_use]
    pub fn ending(&self, ends: Vec<u32>) -> Self {
        Self { compiled: Arc::clone(&self.compiled), begins: Arc::clone(&self.begins), is_shared: true, ends }
    }

    /// Bytes it takes, the compiled grammar not counted, which has room of its own.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let begins = if self.is_shared { 0 } else { self.begins.bytes() };
        size_of::<Self>() + begins + self.ends.capacity() * size_of::<u32>()
    }
}

/// All grammars of a server, over its vocabulary.
#[derive(Debug)]
pub struct Grammars {
    vocabulary: Arc<Vocabulary>,
    /// Made when the first grammar is asked for: it takes some tenths of a second and 70 MB.
    tokens: OnceLock<Arc<Tokens>>,
    making: Mutex<()>,
    no_threads: Complaints,
    known: Mutex<Known>,
    /// Tells who waits for a grammar that somebody else compiles.
    compiled: Condvar,
    /// How long each took.
    took: Histogram,
    /// How many are kept.
    most_recent: usize,
}

/// Grammars that are there.
#[derive(Debug, Default)]
struct Known {
    /// Those that somebody has, and some that nobody has any more.
    all: HashMap<Key, Weak<Compiled>>,
    /// Those that were asked for last, the latest one at the end.
    recent: VecDeque<Arc<Compiled>>,
    /// Those that somebody compiles.
    compiling: HashSet<Key>,
    /// Those that could not be compiled, and when that was found, the latest one at the end.
    refused: VecDeque<(Key, FieldError, Instant)>,
}

impl Grammars {
    /// Grammars over the texts of these tokens.
    #[must_use]
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            vocabulary,
            tokens: OnceLock::new(),
            making: Mutex::default(),
            no_threads: Complaints::default(),
            known: Mutex::default(),
            compiled: Condvar::new(),
            took: Histogram::noop(),
            most_recent: MOST_RECENT,
        }
    }

    /// The same, with a record of how long each takes to compile.
    #[must_use]
    pub fn recorded(self, took: Histogram) -> Self {
        Self { took, ..self }
    }

    /// The same, where so many are kept when nobody uses them.
    #[must_use]
    pub fn keeping(self, most_recent: usize) -> Self {
        Self { most_recent, ..self }
    }

    /// A grammar, compiled if it is not there. That takes milliseconds, or tenths of a second for the largest, and the first one
    /// takes the time of [`Tokens`]. One that is there is found however long its message has waited; `patience` is that of the message.
    ///
    /// # Errors
    /// What is wrong with it, at its field; or too little room in `state`, or too many others that are compiled.
    pub fn compile(
        &self,
        params: &GrammarParams,
        state: &Arc<Counter>,
        patience: &Patience,
    ) -> Result<Arc<Compiled>, CompileError> {
        let (key, until) = ((params.kind, params.text.clone()), patience.until());
        let own = match self.found_or_begun(&key, until)? {
            Found::There(found) => return Ok(found),
            Found::Begun(own) => own,
        };
        let tokens = self.tokens(params.kind)?;
        let turn = tokens.compiling.take_until(until).ok_or(CompileError::Busy)?;
        let begun = Instant::now();
        let compiled = compile::compile(params, tokens, turn).inspect_err(|error| {
            if let CompileError::Invalid(wrong) = error {
                // Whoever waits for it is told the same.
                lock(&self.known).refuse(&key, wrong.clone());
            }
        })?;
        let compiled = Arc::new(compiled);
        self.took.record(begun.elapsed());
        if !compiled.take_room(state) {
            return Err(CompileError::NoRoom(compiled.counted()));
        }
        let last = lock(&self.known).add(key, &compiled, self.most_recent);
        // Whoever waits for it finds it, once it may be looked for.
        drop(own);
        self.take_apart(last);
        Ok(compiled)
    }

    /// What all grammars need. Where it cannot be made for want of threads or memory the next one tries again.
    fn tokens(&self, kind: GrammarKind) -> Result<&Arc<Tokens>, CompileError> {
        let _one = lock(&self.making);
        if let Some(made) = self.tokens.get() {
            return Ok(made);
        }
        let made = Tokens::new(&self.vocabulary).map_err(|error| match error {
            NoTokens::Vocabulary(message) => CompileError::Invalid(FieldError::new(kind.name(), message)),
            NoTokens::Threads(error) => {
                if let Some(more) = self.no_threads.next(Instant::now()) {
                    tracing::error!(
                        error,
                        more,
                        "the threads of grammars cannot be started; the next grammar tries again"
                    );
                }
                CompileError::Busy
            }
        })?;
        Ok(self.tokens.get_or_init(|| Arc::new(made)))
    }

    /// Has those that nobody uses go where something else needs their room in `state`.
    pub fn give_way_in(self: &Arc<Self>, state: &Counter) {
        let grammars = Arc::downgrade(self);
        state.spared_by(move |short| grammars.upgrade().is_some_and(|grammars| grammars.give_way(short)));
    }

    /// Gives up those that nobody has asked for for longest, of those that nobody uses, until there is so much room more; none
    /// where all of them have less.
    fn give_way(&self, short: usize) -> bool {
        let mut known = lock(&self.known);
        let all = known.recent.iter().filter(|compiled| is_unused(compiled)).map(|compiled| compiled.room());
        if all.sum::<usize>() < short {
            return false;
        }
        let (mut gone, mut freed) = (Vec::new(), 0);
        while freed < short {
            let Some(compiled) = known.recent.iter().position(is_unused).and_then(|unused| known.recent.remove(unused))
            else {
                break;
            };
            freed += compiled.room();
            known.leave(&compiled);
            gone.push(compiled);
        }
        drop(known);
        self.take_apart(gone);
        true
    }

    /// Drops grammars, those that may be large where nobody waits for it. Not to be called with the lock.
    fn take_apart(&self, gone: impl IntoIterator<Item = Arc<Compiled>>) {
        // One that somebody uses is only one fewer, and has to be so at once: it gives way once it is used no more.
        let gone: Vec<_> = gone.into_iter().filter(is_unused).collect();
        match self.tokens.get() {
            Some(tokens) if !gone.is_empty() => tokens.pool.spawn(move || drop(gone)),
            _ => drop(gone),
        }
    }

    /// Finds a grammar that is there, or that somebody else compiles; it is the caller's to compile if nobody does, and if it is not
    /// too late for that.
    fn found_or_begun(&self, key: &Key, until: Instant) -> Result<Found<'_>, CompileError> {
        let mut known = lock(&self.known);
        loop {
            if let Some((found, last)) = known.find(key, self.most_recent) {
                drop(known);
                self.take_apart(last);
                return Ok(Found::There(found));
            }
            if let Some(wrong) = known.refused(key) {
                return Err(CompileError::Invalid(wrong));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CompileError::Busy);
            }
            if known.compiling.insert(key.clone()) {
                return Ok(Found::Begun(Own { grammars: self, key: key.clone() }));
            }
            known = self.compiled.wait_timeout(known, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

enum Found<'g> {
    There(Arc<Compiled>),
    Begun(Own<'g>),
}

/// The right to compile a grammar, which nobody else does meanwhile.
struct Own<'g> {
    grammars: &'g Grammars,
    key: Key,
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        lock(&self.grammars.known).compiling.remove(&self.key);
        self.grammars.compiled.notify_all();
    }
}

impl Known {
    /// A grammar that is there, and one that is not kept any more.
    fn find(&mut self, key: &Key, most: usize) -> Option<(Arc<Compiled>, Option<Arc<Compiled>>)> {
        let found = self.all.get(key)?.upgrade()?;
        self.recent.retain(|recent| !Arc::ptr_eq(recent, &found));
        let last = self.remember(&found, most);
        Some((found, last))
    }

    /// Keeps a grammar; what is not kept any more.
    #[must_use]
    fn add(&mut self, key: Key, compiled: &Arc<Compiled>, most: usize) -> Option<Arc<Compiled>> {
        self.all.retain(|_, known| known.strong_count() > 0);
        self.all.insert(key, Arc::downgrade(compiled));
        self.remember(compiled, most)
    }

    fn refused(&self, key: &Key) -> Option<FieldError> {
        let known = self.refused.iter().find(|(refused, _, at)| refused == key && at.elapsed() < REFUSED);
        known.map(|(_, wrong, _)| wrong.clone())
    }

    fn refuse(&mut self, key: &Key, wrong: FieldError) {
        self.refused.push_back((key.clone(), wrong, Instant::now()));
        if self.refused.len() > MOST_REFUSED {
            self.refused.pop_front();
        }
    }

    fn remember(&mut self, compiled: &Arc<Compiled>, most: usize) -> Option<Arc<Compiled>> {
        self.recent.push_back(Arc::clone(compiled));
        let last = if self.recent.len() > most { self.recent.pop_front() } else { None };
        if let Some(last) = last.as_ref().filter(|last| is_unused(last)) {
            self.leave(last);
        }
        last
    }

    /// Takes its room from a grammar that nobody uses. It is not found any more either: it would be used without room.
    fn leave(&mut self, compiled: &Arc<Compiled>) {
        compiled.leave_room();
        self.all.retain(|_, known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(compiled)));
    }
}

/// Of what is known, under its lock, or not known any more: nobody comes to use it meanwhile.
fn is_unused(compiled: &Arc<Compiled>) -> bool {
    Arc::strong_count(compiled) == 1
}
