//! Grammars of structured output: they decide which tokens may continue a text.
//!
//! [`Grammars`] compiles them, once for all sequences that ask for the same one, with llguidance's automata. A
//! [`GrammarText`] is what one sequence remembers: where in its grammar it stands. While the worker computes a
//! sequence's next row, threads compute the mask that follows the emitted token, so that the mask is there when the row
//! comes. [`fill`] gives the masks of rows, and waits for those that are missing; [`propose`] gives the tokens that
//! a grammar forces. Read this file, then `compile`, `text`, `state`, [`fill`].
//!
//! A mask depends on grammar, vocabulary and tokens alone. Each text has an automaton of its own, so that no other text
//! affects whether it reaches a limit of work or memory. Limits of time catch whatever no other limit bounds.

mod ahead;
mod begins;
mod bounds;
mod compile;
mod compile_deadline;
mod complement;
mod escapes;
mod exact;
pub mod fill;
mod gbnf;
mod idle;
mod lark;
mod mask_error;
mod message;
mod place;
pub mod propose;
mod queue;
mod rules;
mod running;
mod source;
mod spelling;
mod state;
#[cfg(test)]
mod tests;
mod text;
mod thread_time;
mod together;

pub use ahead::Ahead;
pub use compile::{Compiled, MAX_COMPILING, MAX_THREADS};
pub use compile_deadline::CompileDeadline;
pub use mask_error::MaskError;
pub use queue::Flow;
pub use state::Mask;
#[cfg(test)]
pub(crate) use tests::busy::{hold_up, while_busy};
pub use text::GrammarText;

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

/// How many compiled grammars are kept, whether or not a sequence uses them, for the next one that asks for the same.
/// [`Grammars::keeping`] changes it.
const MAX_RECENT: usize = 64;
/// How many grammars that could not be compiled are remembered, so that they are not tried again at once.
const MAX_REFUSED: usize = 16;
/// How long they are remembered. Not for ever, because one that took too long may be fast enough later.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// What identifies a grammar.
type Key = (GrammarKind, String);

/// Why a grammar was not compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompileError {
    /// It is wrong, or too large.
    Invalid(FieldError),
    /// There is no room for it, of so many bytes.
    NoRoom(usize),
    /// The grammars of its message take so long that its turn did not come, or there are no threads for it now.
    Busy,
}

/// A compiled grammar, as sequences with the same parameters use it.
#[derive(Debug)]
pub struct Grammar {
    compiled: Arc<Compiled>,
    begins: Arc<Beginning>,
    /// Whether another grammar has the same `compiled` and `begins`, and their bytes are counted there.
    is_shared: bool,
    /// Tokens that end a text wherever the grammar lets it end.
    ends: Vec<u32>,
}

impl Grammar {
    /// A compiled grammar, with the place in a text where it begins and the tokens that may end it.
    #[must_use]
    pub fn new(compiled: Arc<Compiled>, start: &GrammarStart, ends: Vec<u32>) -> Self {
        Self { compiled, begins: Arc::new(Beginning::new(start)), is_shared: false, ends }
    }

    /// The same grammar with other tokens that may end it.
    #[must_use]
    pub fn ending(&self, ends: Vec<u32>) -> Self {
        Self { compiled: Arc::clone(&self.compiled), begins: Arc::clone(&self.begins), is_shared: true, ends }
    }

    /// Bytes it takes, without the compiled grammar, which has room of its own.
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
    /// Made for the first grammar, since this takes some tenths of a second and 70 MB.
    tokens: OnceLock<Arc<Tokens>>,
    /// Locked while they are made.
    making_tokens: Mutex<()>,
    no_threads: Complaints,
    table: Mutex<GrammarTable>,
    /// Wakes threads that wait for a grammar which another thread compiles.
    compiled: Condvar,
    /// How long each took to compile.
    compile_time: Histogram,
    /// How many grammars are kept when nobody uses them.
    most_recent: usize,
}

/// Grammars that are compiled, are being compiled, or could not be compiled.
#[derive(Debug, Default)]
struct GrammarTable {
    /// All compiled grammars that still exist, and some entries of those that do not.
    all: HashMap<Key, Weak<Compiled>>,
    /// Those that were asked for last, the latest at the end.
    recent: VecDeque<Arc<Compiled>>,
    /// Those that are being compiled.
    compiling: HashSet<Key>,
    /// Those that could not be compiled, the latest at the end.
    refused: VecDeque<Refused>,
}

/// A grammar that could not be compiled.
#[derive(Debug)]
struct Refused {
    key: Key,
    error: FieldError,
    at: Instant,
}

impl Grammars {
    /// Grammars over the texts of these tokens.
    #[must_use]
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            vocabulary,
            tokens: OnceLock::new(),
            making_tokens: Mutex::default(),
            no_threads: Complaints::default(),
            table: Mutex::default(),
            compiled: Condvar::new(),
            compile_time: Histogram::noop(),
            most_recent: MAX_RECENT,
        }
    }

    /// The same, with a record of how long each takes to compile.
    #[must_use]
    pub fn recorded(self, compile_time: Histogram) -> Self {
        Self { compile_time, ..self }
    }

    /// The same, keeping so many grammars when nobody uses them.
    #[must_use]
    pub fn keeping(self, most_recent: usize) -> Self {
        Self { most_recent, ..self }
    }

    /// Returns a grammar, and compiles it if it is not there. Compiling takes milliseconds, or tenths of a second for
    /// the largest grammars; the first one also takes the time to make [`Tokens`]. A grammar that is there is found
    /// however long its message has waited. `compile_deadline` is that of the message.
    ///
    /// # Errors
    /// What is wrong with it, at its field; or that there is too little room in `state`, or that too many others are
    /// being compiled.
    pub fn compile(
        &self,
        params: &GrammarParams,
        state: &Arc<Counter>,
        compile_deadline: &CompileDeadline,
    ) -> Result<Arc<Compiled>, CompileError> {
        let (key, until) = ((params.kind, params.text.clone()), compile_deadline.until());
        let claim = match self.find_or_claim(&key, until)? {
            Lookup::Compiled(found) => return Ok(found),
            Lookup::Claimed(claim) => claim,
        };
        let tokens = self.tokens(params.kind)?;
        let turn = tokens.compiling.take_until(until).ok_or(CompileError::Busy)?;
        let begun = Instant::now();
        let compiled = compile::compile(params, tokens, turn).inspect_err(|error| {
            if let CompileError::Invalid(wrong) = error {
                // Threads that wait for it get the same error.
                lock(&self.table).refuse(&key, wrong.clone());
            }
        })?;
        let compiled = Arc::new(compiled);
        self.compile_time.record(begun.elapsed());
        if !compiled.take_room(state) {
            return Err(CompileError::NoRoom(compiled.counted()));
        }
        let last = lock(&self.table).add(key, &compiled, self.most_recent);
        // Wakes threads that wait for it, which then find it in the table.
        drop(claim);
        self.drop_elsewhere(last);
        Ok(compiled)
    }

    /// What all grammars need. If it cannot be made for want of threads or memory, the next grammar tries again.
    fn tokens(&self, kind: GrammarKind) -> Result<&Arc<Tokens>, CompileError> {
        let _one = lock(&self.making_tokens);
        if let Some(made) = self.tokens.get() {
            return Ok(made);
        }
        let made = Tokens::new(&self.vocabulary).map_err(|error| match error {
            NoTokens::Vocabulary(message) => CompileError::Invalid(FieldError::new(kind.name(), message)),
            NoTokens::Threads(error) => {
                if let Some(more) = self.no_threads.next(Instant::now()) {
                    tracing::error!(error, more, "cannot start the grammar threads; the next grammar tries again");
                }
                CompileError::Busy
            }
        })?;
        Ok(self.tokens.get_or_init(|| Arc::new(made)))
    }

    /// Gives up grammars that nobody uses if something else needs their room in `state`.
    pub fn give_way_in(self: &Arc<Self>, state: &Counter) {
        let grammars = Arc::downgrade(self);
        state.reclaim_by(move |short| grammars.upgrade().is_some_and(|grammars| grammars.give_way(short)));
    }

    /// Gives up unused grammars until they free `short` bytes, beginning with those that were last asked for longest
    /// ago. If all of them together have less, gives up none.
    fn give_way(&self, short: usize) -> bool {
        let mut table = lock(&self.table);
        let all = table.recent.iter().filter(|compiled| is_unused(compiled)).map(|compiled| compiled.room());
        if all.sum::<usize>() < short {
            return false;
        }
        let (mut gone, mut freed) = (Vec::new(), 0);
        while freed < short {
            let Some(compiled) = table.recent.iter().position(is_unused).and_then(|unused| table.recent.remove(unused))
            else {
                break;
            };
            freed += compiled.room();
            table.forget(&compiled);
            gone.push(compiled);
        }
        drop(table);
        self.drop_elsewhere(gone);
        true
    }

    /// Drops grammars on a thread of the pool, since dropping large ones takes long. The caller must not hold the lock.
    fn drop_elsewhere(&self, gone: impl IntoIterator<Item = Arc<Compiled>>) {
        // For grammars in use, only this reference is dropped. That has to happen at once, so that they can give way as
        // soon as they are not used any more.
        let gone: Vec<_> = gone.into_iter().filter(is_unused).collect();
        match self.tokens.get() {
            Some(tokens) if !gone.is_empty() => tokens.pool.spawn(move || drop(gone)),
            _ => drop(gone),
        }
    }

    /// Finds a compiled grammar, or waits for the thread that compiles it. If nobody does, and it is not too late, the
    /// caller claims it and has to compile it.
    fn find_or_claim(&self, key: &Key, until: Instant) -> Result<Lookup<'_>, CompileError> {
        let mut table = lock(&self.table);
        loop {
            if let Some((found, last)) = table.find(key, self.most_recent) {
                drop(table);
                self.drop_elsewhere(last);
                return Ok(Lookup::Compiled(found));
            }
            if let Some(wrong) = table.refused(key) {
                return Err(CompileError::Invalid(wrong));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CompileError::Busy);
            }
            if table.compiling.insert(key.clone()) {
                return Ok(Lookup::Claimed(CompileClaim { grammars: self, key: key.clone() }));
            }
            table = self.compiled.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The result of looking for a grammar.
enum Lookup<'g> {
    Compiled(Arc<Compiled>),
    /// The caller has to compile it.
    Claimed(CompileClaim<'g>),
}

/// The right to compile a grammar. Nobody else compiles it meanwhile.
struct CompileClaim<'g> {
    grammars: &'g Grammars,
    key: Key,
}

impl Drop for CompileClaim<'_> {
    fn drop(&mut self) {
        lock(&self.grammars.table).compiling.remove(&self.key);
        self.grammars.compiled.notify_all();
    }
}

impl GrammarTable {
    /// Finds a compiled grammar. The other one is no longer kept, in exchange for it.
    fn find(&mut self, key: &Key, most: usize) -> Option<(Arc<Compiled>, Option<Arc<Compiled>>)> {
        let found = self.all.get(key)?.upgrade()?;
        self.recent.retain(|recent| !Arc::ptr_eq(recent, &found));
        let last = self.remember(&found, most);
        Some((found, last))
    }

    /// Keeps a grammar, and returns one that is no longer kept.
    #[must_use]
    fn add(&mut self, key: Key, compiled: &Arc<Compiled>, most: usize) -> Option<Arc<Compiled>> {
        self.all.retain(|_, known| known.strong_count() > 0);
        self.all.insert(key, Arc::downgrade(compiled));
        self.remember(compiled, most)
    }

    fn refused(&self, key: &Key) -> Option<FieldError> {
        let known = self.refused.iter().find(|refused| refused.key == *key && refused.at.elapsed() < REFUSED_FOR);
        known.map(|refused| refused.error.clone())
    }

    fn refuse(&mut self, key: &Key, wrong: FieldError) {
        self.refused.push_back(Refused { key: key.clone(), error: wrong, at: Instant::now() });
        if self.refused.len() > MAX_REFUSED {
            self.refused.pop_front();
        }
    }

    fn remember(&mut self, compiled: &Arc<Compiled>, most: usize) -> Option<Arc<Compiled>> {
        self.recent.push_back(Arc::clone(compiled));
        let last = if self.recent.len() > most { self.recent.pop_front() } else { None };
        if let Some(last) = last.as_ref().filter(|last| is_unused(last)) {
            self.forget(last);
        }
        last
    }

    /// Gives back the room of a grammar that nobody uses. It also removes the grammar from the table, or it would be
    /// used without room.
    fn forget(&mut self, compiled: &Arc<Compiled>) {
        compiled.leave_room();
        self.all.retain(|_, known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(compiled)));
    }
}

/// Whether nobody uses a grammar. Ask this with the lock of the table that has it, or if no table has it any more;
/// otherwise somebody may begin to use it meanwhile.
fn is_unused(compiled: &Arc<Compiled>) -> bool {
    Arc::strong_count(compiled) == 1
}
