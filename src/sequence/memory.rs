//! What tools that look back at a text remember of it, and what they make of it for the next row.
//!
//! [`Memory`] is the long part, of emitted tokens, and is there only if a tool asks for it. [`Now`] is the short part
//! that every token changes: looking ahead copies it and leaves the memory as it is. Both are functions of parameters
//! and tokens alone, however these came.

use super::dry;
use super::repeats::{self, LONGEST_CONTEXT, Match};
use super::rules::Rules;
use super::text::Text;
use crate::sampling::adjust::Nudge;
use crate::speculative::propose::grams::{Grams, after_growth, push};

/// Tokens beyond those that are looked at that are kept before they are forgotten together.
const SLACK: usize = 256;

/// The tokens of a text that some tool looks back at.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Memory {
    /// The last ones of prompt and output.
    tokens: Vec<u32>,
    /// For DRY.
    grams: Option<Grams>,
    now: Now,
}

/// A memory some tokens later.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MemoryAhead {
    tokens: Vec<u32>,
    now: Now,
}

/// What holds at one position.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Now {
    /// Where the end of the text stood before.
    matches: Vec<Match>,
    /// Tokens since the last sequence breaker.
    since_breaker: u32,
    nudges: Vec<Nudge>,
}

/// How far back tools look.
#[derive(Debug, Clone, Copy)]
struct Reach {
    /// Context of DRY's grams and its window.
    dry: Option<(usize, usize)>,
    /// Tokens that some tool needs.
    keep: usize,
}

impl Reach {
    fn of(rules: &Rules) -> Self {
        let params = &rules.params().history;
        let dry = params.dry_window().map(|window| ((params.dry_allowed_length as usize).min(LONGEST_CONTEXT), window));
        // A breaker may end where the window begins.
        let keep = dry.map_or(0, |(_, window)| window.saturating_add(rules.breakers().longest()));
        Self { dry, keep }
    }

    /// Most tokens that are kept.
    fn most(&self) -> usize {
        self.keep.saturating_mul(2).saturating_add(SLACK)
    }
}

impl Memory {
    /// After `prompt` and `output`; nothing if no tool looks back.
    pub(super) fn new(rules: &Rules, prompt: &[u32], output: &[u32]) -> Option<Box<Self>> {
        let reach = Reach::of(rules);
        (reach.keep > 0).then(|| {
            let skipped = (prompt.len() + output.len()).saturating_sub(reach.keep);
            let (of_prompt, of_output) = (skipped.min(prompt.len()), skipped.saturating_sub(prompt.len()));
            let tokens = [&prompt[of_prompt..], &output[of_output..]].concat();
            let mut memory = Self { tokens, grams: None, now: Now::default() };
            memory.index(rules);
            memory.now.look(rules, &Text::new(&memory.tokens, &[]));
            Box::new(memory)
        })
    }

    /// Chains all tokens anew.
    fn index(&mut self, rules: &Rules) {
        let Some((context, window)) = Reach::of(rules).dry else { return };
        let mut grams = Grams::new(context, self.tokens.len());
        for (at, &token) in self.tokens.iter().enumerate() {
            grams.push(&self.tokens[..at], token);
        }
        self.grams = Some(grams);
        self.now.matches = repeats::all(&self.tokens, context, window);
        self.now.since_breaker = dry::since_breaker_in(&Text::new(&self.tokens, &[]), &rules.breakers(), window);
    }

    /// Appends an emitted token.
    pub(super) fn push(&mut self, rules: &Rules, token: u32) {
        let reach = Reach::of(rules);
        if let Some(grams) = &mut self.grams {
            grams.push(&self.tokens, token);
        }
        push(&mut self.tokens, token);
        if self.tokens.len() > reach.most() {
            self.tokens.drain(..self.tokens.len() - reach.keep);
            self.index(rules);
        } else {
            self.now.append(rules, &Text::new(&self.tokens, &[]), self.grams.as_ref());
        }
        self.now.look(rules, &Text::new(&self.tokens, &[]));
    }

    pub(super) fn ahead(&self) -> Box<MemoryAhead> {
        Box::new(MemoryAhead { tokens: Vec::new(), now: self.now.clone() })
    }

    pub(super) fn now(&self) -> &Now {
        &self.now
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        let grams = self.grams.as_ref().map_or(0, Grams::bytes);
        size_of::<Self>() + self.tokens.capacity() * size_of::<u32>() + grams + self.now.bytes()
    }

    /// Bytes it may take once `more` tokens are appended.
    pub(super) fn bytes_after(&self, rules: &Rules, more: usize) -> usize {
        let reach = Reach::of(rules);
        let len = self.tokens.len().saturating_add(more).min(reach.most().saturating_add(1));
        let tokens = after_growth(self.tokens.capacity(), len) * size_of::<u32>();
        let grams = self.grams.as_ref().map_or(0, |grams| grams.bytes_after(len));
        let matches = reach.dry.map_or(0, |(_, window)| repeats::most_bytes(len, window));
        // No more tokens are penalised than there are matches.
        let nudges = matches / size_of::<Match>() * size_of::<Nudge>();
        size_of::<Self>() + tokens + grams + matches.max(self.now.bytes()) + nudges
    }
}

impl MemoryAhead {
    /// Appends a token to what grew from `memory`.
    pub(super) fn push(&mut self, rules: &Rules, memory: &Memory, token: u32) {
        self.tokens.push(token);
        let text = Text::new(&memory.tokens, &self.tokens);
        self.now.append(rules, &text, memory.grams.as_ref());
        self.now.look(rules, &text);
    }

    pub(super) fn now(&self) -> &Now {
        &self.now
    }

    /// Entries that a copy has to copy.
    pub(super) fn weight(&self) -> usize {
        self.tokens.len() + self.now.matches.len() + self.now.nudges.len()
    }
}

impl Now {
    /// Takes in the last token of `text`.
    fn append(&mut self, rules: &Rules, text: &Text<'_>, grams: Option<&Grams>) {
        if let (Some((_, window)), Some(grams)) = (Reach::of(rules).dry, grams) {
            self.matches = repeats::appended(&self.matches, text, grams, window);
            self.since_breaker = dry::since_breaker(self.since_breaker, text, &rules.breakers());
        }
    }

    /// Works out what holds for the next row.
    fn look(&mut self, rules: &Rules, text: &Text<'_>) {
        self.nudges = Vec::new();
        let repeats = (self.matches.as_slice(), self.since_breaker);
        dry::penalise(&rules.params().history, &rules.breakers(), text, repeats, &mut self.nudges);
        self.nudges.shrink_to_fit();
    }

    /// What is added to single logits, in token order.
    pub(super) fn nudges(&self) -> &[Nudge] {
        &self.nudges
    }

    fn bytes(&self) -> usize {
        self.matches.capacity() * size_of::<Match>() + self.nudges.capacity() * size_of::<Nudge>()
    }
}
