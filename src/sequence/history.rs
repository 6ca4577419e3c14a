//! What a token changes in a sequence: position, what is known about single tokens, what is banned next.

use super::rules::Rules;
use crate::sampling::adjust::TokenAdjust;

/// The tokens of a sequence as far as later rows depend on them.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    position: u64,
    /// Bans, biases and counts in token order; empty when no penalty asks for counts, since the rules'
    /// own list serves then.
    adjusts: Vec<TokenAdjust>,
    /// The last output tokens, as many as the longest bad word looks back.
    tail: Vec<u32>,
    /// Tokens banned at this position.
    banned: Vec<u32>,
}

impl History {
    /// The history after `prompt` and `output`.
    pub(super) fn new(rules: &Rules, prompt: &[u32], output: &[u32]) -> Self {
        let tail = output.get(output.len().saturating_sub(rules.tail_len())..).unwrap_or_default().to_vec();
        let adjusts = if rules.remembers_output() { counted(rules, prompt, output) } else { Vec::new() };
        let mut history = Self { position: output.len() as u64, adjusts, tail, banned: Vec::new() };
        history.ban(rules);
        history
    }

    /// Appends a token.
    pub(super) fn push(&mut self, rules: &Rules, token: u32) {
        self.position += 1;
        if rules.remembers_output() {
            self.count(token);
        }
        let keep = rules.tail_len();
        if keep > 0 {
            if self.tail.len() == keep {
                self.tail.remove(0);
            }
            self.tail.push(token);
        }
        self.ban(rules);
    }

    /// Number of output tokens.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Entries that a copy of this history has to copy.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.adjusts.len() + self.tail.len() + self.banned.len() + 1
    }

    pub(super) fn adjusts(&self) -> &[TokenAdjust] {
        &self.adjusts
    }

    pub(super) fn banned(&self) -> &[u32] {
        &self.banned
    }

    fn count(&mut self, token: u32) {
        match self.adjusts.binary_search_by_key(&token, |adjust| adjust.token) {
            Ok(at) => absorb(&mut self.adjusts[at], &emitted(token)),
            Err(at) => self.adjusts.insert(at, emitted(token)),
        }
    }

    /// Works out what is banned at this position only.
    fn ban(&mut self, rules: &Rules) {
        self.banned.clear();
        if rules.bans_ends_at(self.position) {
            self.banned.extend_from_slice(&rules.ends);
        }
        for word in &rules.bad_words {
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

/// The rules' bans and biases with the tokens so far counted in.
fn counted(rules: &Rules, prompt: &[u32], output: &[u32]) -> Vec<TokenAdjust> {
    let prompt = if rules.remembers_prompt() { prompt } else { &[] };
    let seen = prompt.iter().map(|&token| TokenAdjust { token, flags: TokenAdjust::SEEN, ..TokenAdjust::default() });
    let emitted = output.iter().map(|&token| emitted(token));
    merge(rules.fixed.iter().copied().chain(seen).chain(emitted).collect())
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
