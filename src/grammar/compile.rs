//! Compiles the text of a grammar into an automaton over tokens, within limits.

use super::message::{self, FAILS};
use super::queue::Queue;
use super::running::Running;
use super::spelling::Spelling;
use super::thread_time::ThreadTime;
use super::{CompileError, bounds, lark, lock, rules, source};
use crate::blocking_semaphore::{BlockingPermit, BlockingSemaphore};
use crate::complaints::Complaints;
use crate::params::FieldError;
use crate::params::grammar::{GrammarKind, GrammarParams};
use crate::permits::{Counter, Permit};
use crate::vocabulary::Vocabulary;
use llguidance::api::{ParserLimits, StopReason};
use llguidance::{ParserFactory, TokenParser};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// The compiler recurses over rules that lead to one another: 54 KB of such rules overflow 2 MiB of stack. The largest
/// grammar, 64 KiB of nothing but such rules, does not overflow this.
const STACK_BYTES: usize = 256 << 20;
/// The most threads that compute masks.
pub const MAX_THREADS: usize = 4;
/// The most states of a text's lexer, of one or two kilobytes each. A schema of some kilobytes has hundreds.
pub(super) const MAX_STATES: usize = 50_000;
/// The fuel of the lexer for a mask and for what is read after it, some 14 ms.
pub(super) const MASK_FUEL: usize = 200_000;
/// How many items the grammar may make for a mask, some 2.5 ms.
pub(super) const MASK_ITEMS: usize = 50_000;
/// How many items it may have at one place.
pub(super) const PLACE_ITEMS: usize = 2_000;
/// How long a grammar may take to compile, in CPU time of its thread.
const MAX_COMPILE_CPU_TIME: Duration = Duration::from_secs(5);
/// How long a message waits for it if its thread gets less than a processor.
const MAX_COMPILE_WALL_TIME: Duration = Duration::from_secs(10);
/// How many grammars may be compiled at once, including those that nobody waits for any more.
pub const MAX_COMPILING: usize = 3;
/// The longest text of a token that grammars can use.
const LONGEST: usize = 1000;
const NO_TEXT: &str = "matches no text that can be written with the tokens of this vocabulary";
const NO_NAMES: &str =
    "the grammar compiler failed on it; this vocabulary names no control tokens (those a tokenizer.json marks special)";
/// What a compiled grammar is counted as, besides its lexer and its text.
const BYTES: usize = 256 << 10;
/// What each byte of its text is counted as. Measured for a grammar with rules: 94 to 110 bytes for its rules; for an
/// expression without rules: 12 to 27. If its [rules] take more than this in all, they count instead.
const BYTES_A_BYTE: [usize; 2] = [32, 110];

/// What all grammars over a vocabulary share.
pub(super) struct Tokens {
    factory: ParserFactory,
    pub(super) pool: ThreadPool,
    /// A single token id for all tokens that end a text: the one behind the vocabulary's last.
    pub(super) end: u32,
    /// Whether some control tokens have a name.
    has_special: bool,
    pub(super) spelling: Spelling,
    /// The work that waits for the pool's threads.
    pub(super) queue: Queue,
    pub(super) running: Running,
    /// The turns for compiling.
    pub(super) compiling: Arc<BlockingSemaphore>,
    no_threads: Complaints,
    panics: Complaints,
}

/// Why there are no [`Tokens`].
#[derive(Debug)]
pub(super) enum NoTokens {
    /// No grammar can be compiled over this vocabulary.
    Vocabulary(String),
    /// There are no threads for grammars now.
    Threads(String),
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Made from the texts of a vocabulary; takes some tenths of a second.
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, NoTokens> {
        let made = catch_unwind(AssertUnwindSafe(|| Self::of(vocabulary)));
        made.unwrap_or_else(|_| Err(NoTokens::Vocabulary("cannot be compiled for this server's vocabulary".to_owned())))
    }

    fn of(vocabulary: &Vocabulary) -> Result<Self, NoTokens> {
        // Threads first: they may be unavailable for a while, and the rest takes long.
        let pool = threads().map_err(|e| NoTokens::Threads(e.to_string()))?;
        let end = vocabulary.tokens() as u32;
        let mut words: Vec<Vec<u8>> = (0..end).map(|token| word(vocabulary.text(token))).collect();
        for (token, name) in vocabulary.special() {
            // A grammar may ask for these tokens by name. No text matches them.
            words[*token as usize] = word(&[&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat());
        }
        words.push(Vec::new());
        let spelling = Spelling::new(&words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&TokRxInfo::new(end + 1, end), &words)));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| NoTokens::Vocabulary(message::told(&e)))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            max_lexer_states: MAX_STATES,
            step_lexer_fuel: MASK_FUEL as u64,
            step_max_items: MASK_ITEMS,
            max_items_in_row: PLACE_ITEMS,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let queue = Queue::new(pool.current_num_threads());
        let (running, compiling) = (Running::default(), BlockingSemaphore::new(MAX_COMPILING));
        let has_special = !vocabulary.special().is_empty();
        let (no_threads, panics) = (Complaints::default(), Complaints::default());
        Ok(Self { factory, pool, end, has_special, spelling, queue, running, compiling, no_threads, panics })
    }

    /// Logs once in a while that the compiler panicked. The panic's message is left out: it may quote the grammar.
    fn complain_of_panic(&self, params: &GrammarParams) {
        if let Some(more) = self.panics.next(Instant::now()) {
            let (kind, bytes) = (params.kind.name(), params.text.len());
            tracing::warn!(kind, bytes, more, "the grammar compiler panicked on a grammar, which is refused");
        }
    }
}

/// The pool of threads that compute masks.
fn threads() -> Result<ThreadPool, ThreadPoolBuildError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|_| "croupier-grammar".to_owned())
        .stack_size(STACK_BYTES)
        .panic_handler(|_| tracing::error!("a grammar thread panicked; it continues with other grammars"))
        .build()
}

/// The text of a token; empty if it is longer than a trie of tokens takes.
fn word(text: &[u8]) -> Vec<u8> {
    if text.len() <= LONGEST { text.to_vec() } else { Vec::new() }
}

/// A grammar as an automaton. Each text that has to match it takes a copy.
pub struct Compiled {
    /// The automaton at the beginning of a text.
    start: Mutex<TokenParser>,
    pub(super) tokens: Arc<Tokens>,
    /// Whether a text cannot step back in it.
    pub(super) is_one_way: bool,
    /// What it is counted as, besides its lexer.
    bytes: usize,
    /// The room taken for it.
    room: Mutex<Option<Permit>>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

/// Compiles a grammar.
///
/// # Errors
/// What is wrong with the grammar, or that there is no thread for it.
pub(super) fn compile(
    params: &GrammarParams,
    tokens: &Arc<Tokens>,
    turn: BlockingPermit,
) -> Result<Compiled, CompileError> {
    compile_within(params, tokens, turn, MAX_COMPILE_CPU_TIME, MAX_COMPILE_WALL_TIME)
}

/// The same within other limits: the compiler may run for `most` and may take until `most_wait`.
pub(super) fn compile_within(
    params: &GrammarParams,
    tokens: &Arc<Tokens>,
    turn: BlockingPermit,
    most: Duration,
    most_wait: Duration,
) -> Result<Compiled, CompileError> {
    let wrong = |told: String| CompileError::Invalid(FieldError::new(params.kind.name(), message::bounded(&told)));
    bounds::check(params).map_err(wrong)?;
    let (parser, of_rules) = parsed(params, tokens, turn, most, most_wait)?.map_err(wrong)?;
    // Stops cut off text that was already read, and `max_tokens` counts only forwards.
    let is_one_way = params.kind == GrammarKind::Lark
        && lark::parts_of(&params.text)
            .is_ok_and(|parts| ["max_tokens", "stop"].iter().any(|word| parts.rules.contains(word)));
    let has_rules = !matches!(params.kind, GrammarKind::Regex | GrammarKind::Choices);
    let bytes = BYTES + (BYTES_A_BYTE[usize::from(has_rules)] * params.text.len()).max(of_rules);
    Ok(Compiled { start: Mutex::new(parser), tokens: Arc::clone(tokens), is_one_way, bytes, room: Mutex::default() })
}

/// What a compiler's thread sends: the automaton and how many bytes its rules take, or what is wrong with the grammar.
type Parsed = Result<(TokenParser, usize), String>;

/// Has a new thread compile a grammar, which has the stack that this may need. If it takes too long, the thread is left to
/// itself.
fn parsed(
    params: &GrammarParams,
    tokens: &Arc<Tokens>,
    turn: BlockingPermit,
    most: Duration,
    most_wait: Duration,
) -> Result<Parsed, CompileError> {
    let time = Arc::new(ThreadTime::default());
    let done = begin(params, tokens, turn, &time)?;
    match ended(&done, &time, most, most_wait) {
        Ended::Done(parsed) => {
            if parsed.as_ref().is_err_and(|told| told == FAILS) {
                tokens.complain_of_panic(params);
            }
            Ok(parsed)
        }
        Ended::TooLong => {
            let most = most.as_secs();
            Ok(Err(format!("takes longer than {most} s to compile; simplify it")))
        }
        Ended::Starved => {
            tracing::warn!(
                waited_s = most_wait.as_secs(),
                ran_ms = time.taken().unwrap_or_default().as_millis(),
                "a grammar got too little CPU time to compile; it is refused as GRAMMARS_BUSY"
            );
            Err(CompileError::Busy)
        }
    }
}

/// Starts the thread that compiles a grammar. `time` tells how long it has run.
fn begin(
    params: &GrammarParams,
    tokens: &Arc<Tokens>,
    turn: BlockingPermit,
    time: &Arc<ThreadTime>,
) -> Result<mpsc::Receiver<Parsed>, CompileError> {
    let (own, with, (sender, done)) = (params.clone(), Arc::clone(tokens), mpsc::channel());
    // The compiler fails if it is asked for a control token and there are none.
    let is_named = !tokens.has_special && params.text.contains('<');
    let told = move |message: String| if is_named && message == FAILS { NO_NAMES.to_owned() } else { message };
    let its = Arc::clone(time);
    let work = move || {
        its.begin();
        let compiled = catch_unwind(AssertUnwindSafe(|| parser(&own, &with.factory)));
        // Before the result is sent, so that the receiver can come with its next grammar at once.
        drop(turn);
        // This fails if nobody waits any more.
        let _ = sender.send(compiled.unwrap_or_else(|_| Err(FAILS.to_owned())).map_err(told));
    };
    let thread = std::thread::Builder::new().name("croupier-compile".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(work).map_err(|error| {
        if let Some(more) = tokens.no_threads.next(Instant::now()) {
            tracing::warn!(%error, more, "cannot start a thread to compile a grammar; it is refused as GRAMMARS_BUSY");
        }
        CompileError::Busy
    })?;
    Ok(done)
}

/// How a thread's work ended.
enum Ended<T> {
    Done(T),
    /// It has used up its CPU time.
    TooLong,
    /// It did not get its CPU time.
    Starved,
}

/// Waits for the work of a thread, which may run for `most` and may take until `most_wait`.
fn ended<T>(done: &mpsc::Receiver<T>, time: &ThreadTime, most: Duration, most_wait: Duration) -> Ended<T> {
    const LOOK: Duration = Duration::from_millis(20);
    let begun = Instant::now();
    loop {
        let waited = begun.elapsed();
        // If the system does not report its CPU time, the time since the beginning counts instead.
        let (more, longer) = (most.checked_sub(time.taken().unwrap_or(waited)), most_wait.checked_sub(waited));
        let (Some(more), Some(longer)) = (more, longer) else {
            let done = done.try_recv().ok();
            return done.map_or(if more.is_none() { Ended::TooLong } else { Ended::Starved }, Ended::Done);
        };
        match done.recv_timeout(more.min(longer).max(LOOK)) {
            Ok(done) => return Ended::Done(done),
            Err(RecvTimeoutError::Timeout) => {}
            // The thread has ended without a result.
            Err(RecvTimeoutError::Disconnected) => return Ended::TooLong,
        }
    }
}

/// The automaton, and how many bytes its rules take.
fn parser(params: &GrammarParams, factory: &ParserFactory) -> Parsed {
    let mut parser = factory.create_parser(source::of(params)?).map_err(|e| source::told(params, &e))?;
    parser.start_without_prompt();
    begins(&parser, params)?;
    let of_rules = rules::bytes(parser.parser.grammar());
    Ok((parser, of_rules))
}

/// Whether a text that matches can begin, so that a grammar without texts is refused at once.
fn begins(parser: &TokenParser, params: &GrammarParams) -> Result<(), String> {
    let mut first = parser.deep_clone();
    if first.is_accepting() {
        return Ok(());
    }
    match first.compute_mask() {
        Ok(mask) if !mask.is_zero() => Ok(()),
        Err(error) if first.stop_reason() != StopReason::NoExtensionBias => Err(source::told(params, &error)),
        Ok(_) | Err(_) => Err(NO_TEXT.to_owned()),
    }
}

impl Compiled {
    /// A copy at the beginning of a text. The copy shares nothing: threads would wait for what is shared, and its
    /// limits would apply to all texts together.
    pub(super) fn parser(&self) -> TokenParser {
        lock(&self.start).deep_clone()
    }

    /// How many bytes it is counted as.
    pub(super) fn counted(&self) -> usize {
        self.bytes + lock(&self.start).parser.lexer_stats().num_bytes
    }

    /// The room that it has.
    pub(super) fn room(&self) -> usize {
        lock(&self.room).as_ref().map_or(0, Permit::amount)
    }

    /// Gives its room back before it is dropped.
    pub(super) fn leave_room(&self) {
        *lock(&self.room) = None;
    }

    /// Takes room for it, and returns whether there was enough.
    pub(super) fn take_room(&self, state: &Arc<Counter>) -> bool {
        let taken = state.take(self.counted());
        let is_taken = taken.is_some();
        *lock(&self.room) = taken;
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    /// How a thread's work ends, if the thread does this.
    fn ended_of(most: Duration, most_wait: Duration, work: impl FnOnce() + Send + 'static) -> Ended<()> {
        let (time, (sender, done)) = (Arc::new(ThreadTime::default()), mpsc::channel());
        let its = Arc::clone(&time);
        std::thread::spawn(move || {
            its.begin();
            work();
            let _ = sender.send(());
        });
        ended(&done, &time, most, most_wait)
    }

    #[test]
    fn a_thread_that_has_not_had_its_time_is_waited_for() {
        if !super::super::thread_time::tests::is_told() {
            return;
        }
        let still = |times: u32| move || std::thread::sleep(times * SHORT);
        assert!(matches!(ended_of(SHORT, 60 * SHORT, still(4)), Ended::Done(())));
        assert!(matches!(ended_of(SHORT, 2 * SHORT, still(60)), Ended::Starved));
    }

    #[test]
    fn a_thread_that_has_had_its_time_is_not() {
        let busy = || while super::super::thread_time::own() < 10 * SHORT {};
        assert!(matches!(ended_of(SHORT, 60 * SHORT, busy), Ended::TooLong));
        assert!(matches!(ended_of(SHORT, 60 * SHORT, || {}), Ended::Done(())));
    }
}
