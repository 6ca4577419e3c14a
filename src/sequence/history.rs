//! What a token changes in a sequence: position, what is known about single tokens, what is banned next.

use super::memory::{Memory, MemoryAhead, Now};
use super::rules::Rules;
use crate::sampling::adjust::TokenAdjust;

/// The tokens of a sequence as far as later rows depend on them.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    recent: Recent,
    /// Bans, biases and counts in token order; empty when no penalty asks for counts, since the rules'
    /// own list serves then.
    adjusts: Vec<TokenAdjust>,
    /// The text, if some tool looks back at it.
    memory: Option<Box<Memory>>,
}

/// What a history would be after some more tokens, as far as it differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Ahead {
    recent: Recent,
    /// Entries that take the place of the history's for the same tokens, in token order.
    over: Vec<TokenAdjust>,
    memory: Option<Box<MemoryAhead>>,
}

/// The end of a text.
#[derive(Debug, Clone, PartialEq)]
struct Recent {
    position: u64,
    /// The last output tokens, as many as the longest bad word looks back.
    tail: Vec<u32>,
    /// Tokens banned at this position.
    banned: Vec<u32>,
}

impl History {
    /// The history after `prompt` and `output`.
    pub(super) fn new(rules: &Rules, prompt: &[u32], output: &[u32]) -> Self {
        // As much as they may ever hold, so that only the counts grow.
        let (keep, banned) = (rules.tail_len(), Vec::with_capacity(rules.most_banned()));
        let mut tail = Vec::with_capacity(keep);
        tail.extend_from_slice(output.get(output.len().saturating_sub(keep)..).unwrap_or_default());
        let adjusts = if rules.remembers_output() { counted(rules, prompt, output) } else { Vec::new() };
        let mut recent = Recent { position: output.len() as u64, tail, banned };
        recent.ban(rules);
        Self { recent, adjusts, memory: Memory::new(rules, prompt, output) }
    }

    /// Appends a token.
    pub(super) fn push(&mut self, rules: &Rules, token: u32) {
        self.recent.push(rules, token);
        if rules.remembers_output() {
            match find(&self.adjusts, token) {
                Ok(at) => absorb(&mut self.adjusts[at], &emitted(token)),
                Err(at) => {
                    if self.adjusts.len() == self.adjusts.capacity() {
                        self.adjusts.reserve_exact(spare(self.adjusts.len()));
                    }
                    self.adjusts.insert(at, emitted(token));
                }
            }
        }
        if let Some(memory) = &mut self.memory {
            memory.push(rules, token);
        }
    }

    /// Bytes it takes beside its own fields.
    pub(super) fn bytes(&self) -> usize {
        let tokens = self.recent.tail.capacity() + self.recent.banned.capacity();
        let memory = self.memory.as_ref().map_or(0, |memory| memory.bytes());
        self.adjusts.capacity() * size_of::<TokenAdjust>() + tokens * size_of::<u32>() + memory
    }

    /// Bytes it may take once `tokens` more are appended.
    pub(super) fn bytes_after(&self, rules: &Rules, tokens: usize) -> usize {
        let (now, most) = (self.adjusts.capacity(), self.adjusts.len() + tokens);
        let mut capacity = now;
        while rules.remembers_output() && capacity < most {
            capacity += spare(capacity);
        }
        let memory = self.memory.as_ref().map_or(0, |memory| memory.bytes_after(rules, tokens) - memory.bytes());
        self.bytes() + (capacity - now) * size_of::<TokenAdjust>() + memory
    }

    /// This history, to look ahead from.
    pub(super) fn ahead(&self) -> Ahead {
        let memory = self.memory.as_ref().map(|memory| memory.ahead());
        Ahead { recent: self.recent.clone(), over: Vec::new(), memory }
    }

    /// Number of output tokens.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.recent.position
    }

    pub(super) fn adjusts(&self) -> &[TokenAdjust] {
        &self.adjusts
    }

    pub(super) fn banned(&self) -> &[u32] {
        &self.recent.banned
    }

    /// What tools that look back make of it.
    pub(super) fn now(&self) -> Option<&Now> {
        self.memory.as_ref().map(|memory| memory.now())
    }
}

impl Ahead {
    /// Appends a token to what grew from `history`.
    pub(super) fn push(&mut self, rules: &Rules, history: &History, token: u32) {
        self.recent.push(rules, token);
        if rules.remembers_output() {
            match find(&self.over, token) {
                Ok(at) => absorb(&mut self.over[at], &emitted(token)),
                Err(at) => {
                    let mut entry = emitted(token);
                    if let Ok(known) = find(&history.adjusts, token) {
                        entry = history.adjusts[known];
                        absorb(&mut entry, &emitted(token));
                    }
                    self.over.insert(at, entry);
                }
            }
        }
        if let (Some(ahead), Some(memory)) = (&mut self.memory, &history.memory) {
            ahead.push(rules, memory, token);
        }
    }

    /// Number of output tokens.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.recent.position
    }

    /// Entries that a copy has to copy.
    #[must_use]
    pub fn weight(&self) -> usize {
        let memory = self.memory.as_ref().map_or(0, |memory| memory.weight());
        self.over.len() + self.recent.tail.len() + self.recent.banned.len() + memory + 1
    }

    pub(super) fn over(&self) -> &[TokenAdjust] {
        &self.over
    }

    pub(super) fn banned(&self) -> &[u32] {
        &self.recent.banned
    }

    /// What tools that look back make of it.
    pub(super) fn now(&self) -> Option<&Now> {
        self.memory.as_ref().map(|memory| memory.now())
    }
}

impl Recent {
    fn push(&mut self, rules: &Rules, token: u32) {
        self.position += 1;
        let keep = rules.tail_len();
        if keep > 0 {
            if self.tail.len() == keep {
                self.tail.remove(0);
            }
            self.tail.push(token);
        }
        self.ban(rules);
    }

    /// Works out what is banned at this position only.
    fn ban(&mut self, rules: &Rules) {
        self.banned.clear();
        self.banned.extend_from_slice(rules.ends_banned_at(self.position));
        for word in rules.bad_words() {
            if let Some((last, before)) = word.split_last()
                && self.tail.ends_with(before)
            {
                self.banned.push(*last);
            }
        }
        self.banned.sort_unstable();
        self.banned.dedup();
    }
}

/// How many entries a full list of `len` grows by: enough that growing costs nothing per token, and no more
/// than a quarter of a long list lies idle.
fn spare(len: usize) -> usize {
    len / 4 + 16
}

/// Where a token's entry is, or would be.
fn find(adjusts: &[TokenAdjust], token: u32) -> Result<usize, usize> {
    adjusts.binary_search_by_key(&token, |adjust| adjust.token)
}

/// The rules' bans and biases with the tokens so far counted in.
fn counted(rules: &Rules, prompt: &[u32], output: &[u32]) -> Vec<TokenAdjust> {
    let prompt = if rules.remembers_prompt() { prompt } else { &[] };
    let seen = prompt.iter().map(|&token| TokenAdjust { token, flags: TokenAdjust::SEEN, ..TokenAdjust::default() });
    let emitted = output.iter().map(|&token| emitted(token));
    merge(rules.fixed().iter().copied().chain(seen).chain(emitted).collect())
}

fn emitted(token: u32) -> TokenAdjust {
    TokenAdjust { token, flags: TokenAdjust::SEEN, output_count: 1, ..TokenAdjust::default() }
}

/// In token order, entries of the same token made one.
pub(super) fn merge(mut adjusts: Vec<TokenAdjust>) -> Vec<TokenAdjust> {
    adjusts.sort_unstable_by_key(|adjust| adjust.token);
    adjusts.dedup_by(|next, kept| {
        let same = next.token == kept.token;
        if same {
            absorb(kept, next);
        }
        same
    });
    adjusts.shrink_to_fit();
    adjusts
}

/// Adds what `other` knows about the same token. At most one of the two has a bias, since parameters
/// give a token one bias; it is taken over, not added, so that its bits stay.
fn absorb(kept: &mut TokenAdjust, other: &TokenAdjust) {
    kept.flags |= other.flags;
    kept.output_count = kept.output_count.saturating_add(other.output_count);
    if other.bias != 0.0 {
        kept.bias = other.bias;
    }
}
