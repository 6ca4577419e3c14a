//! What a token changes in a sequence: its position, what is known about single tokens, and what is banned next.

use super::memory::{Memory, MemoryAhead, PositionState};
use super::rules::Rules;
use super::text::TextView;
use super::window::{self, EvictedToken};
use super::{FinishReason, in_order_once};
use crate::growth::{after_pushes, make_room};
use crate::sampling::adjust::TokenAdjust;

/// The tokens of a sequence as far as later rows depend on them.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    recent: Recent,
    /// Bans, biases and counts in token order. Empty if no penalty needs counts: then the rules' own list is enough.
    adjusts: Vec<TokenAdjust>,
    /// The text, if some tool looks back at it.
    memory: Option<Box<Memory>>,
}

/// The difference between a history and the same history after some more tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryAhead {
    recent: Recent,
    /// Entries that replace the history's entries for the same tokens, in token order.
    over: Vec<TokenAdjust>,
    memory: Option<Box<MemoryAhead>>,
}

/// Where a row stands: behind a text, or behind what grew from one. The rules treat both alike.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryView<'a> {
    recent: &'a Recent,
    /// Bans, biases and counts; then entries that replace some of them.
    known: &'a [TokenAdjust],
    over: &'a [TokenAdjust],
    now: Option<&'a PositionState>,
}

/// The end of a text.
#[derive(Debug, Clone, PartialEq)]
struct Recent {
    position: u64,
    /// How many prompt tokens stand before position 0.
    prompt_len: u32,
    /// Top-p at this position.
    top_p: f32,
    /// The token that this position has to have, if any.
    forced: Option<u32>,
    /// `None` if nothing can be banned by position or by text.
    lists: Option<Box<Lists>>,
}

/// Boxed, since few sequences have them.
#[derive(Debug, Clone, Default, PartialEq)]
struct Lists {
    /// The last output tokens, as many as the longest bad word looks back.
    tail: Vec<u32>,
    /// Tokens banned at this position.
    banned: Vec<u32>,
}

impl History {
    /// The history after `prompt` and `output`.
    pub(super) fn new(rules: &Rules, prompt: &[u32], output: &[u32]) -> Self {
        let adjusts = if rules.remembers_output() { counted(rules, prompt, output) } else { Vec::new() };
        // The length fits u32, because a prompt comes in one message.
        let (position, prompt_len) = (output.len() as u64, prompt.len() as u32);
        let top_p = rules.top_p_decay().after(output);
        let lists = Lists::new(rules, output).map(Box::new);
        let mut recent = Recent { position, prompt_len, top_p, forced: None, lists };
        recent.ban(rules);
        let memory = Memory::new(rules, prompt, output, || recent.banned());
        Self { recent, adjusts, memory }
    }

    /// Appends a token.
    pub(super) fn push(&mut self, rules: &Rules, token: u32) {
        self.recent.push(rules, token);
        if let Some(memory) = &mut self.memory {
            memory.push(rules, token, self.recent.position, self.recent.banned());
        }
        if rules.remembers_output() {
            let emitted = self.recent.emitted(rules, token);
            match find(&self.adjusts, token) {
                Ok(at) => absorb(&mut self.adjusts[at], &emitted),
                Err(at) => {
                    make_room(&mut self.adjusts);
                    self.adjusts.insert(at, emitted);
                }
            }
            let left = self.memory.as_ref().and_then(|memory| self.recent.left(rules, &memory.text()));
            if let Some(left) = left
                && let Ok(at) = find(&self.adjusts, left.token)
            {
                window::take_out(&mut self.adjusts[at], left);
                if self.adjusts[at].is_idle() {
                    self.adjusts.remove(at);
                }
            }
        }
    }

    /// Bytes it takes, besides its own fields.
    pub(super) fn bytes(&self) -> usize {
        let lists = self.recent.lists.as_ref().map_or(0, |lists| lists.bytes());
        let memory = self.memory.as_ref().map_or(0, |memory| memory.bytes());
        self.adjusts.capacity() * size_of::<TokenAdjust>() + lists + memory
    }

    /// The most bytes it may take once `tokens` more are appended.
    pub(super) fn bytes_after(&self, rules: &Rules, tokens: usize) -> usize {
        let (now, most) = (self.adjusts.capacity(), self.adjusts.len() + tokens);
        let capacity = if rules.remembers_output() { after_pushes(now, most) } else { now };
        let memory = self.memory.as_ref().map_or(0, |memory| memory.bytes_after(rules, tokens) - memory.bytes());
        let most_banned = self.memory.as_ref().map_or(0, |memory| memory.most_banned(tokens));
        // Bans by position only add to these where n-grams make such a list at all.
        let banned = if most_banned > 0 { most_banned + rules.most_banned() } else { 0 };
        let room = self.recent.lists.as_ref().map_or(0, |lists| lists.banned.capacity());
        let banned = banned.saturating_sub(room) * size_of::<u32>();
        self.bytes() + (capacity - now) * size_of::<TokenAdjust>() + memory + banned
    }

    /// The start of looking ahead from this history.
    pub(super) fn ahead(&self) -> HistoryAhead {
        let memory = self.memory.as_ref().map(|memory| memory.ahead());
        HistoryAhead { recent: self.recent.clone(), over: Vec::new(), memory }
    }

    /// Where its next row stands.
    pub(super) fn here(&self) -> HistoryView<'_> {
        let now = self.memory.as_ref().map(|memory| memory.now());
        HistoryView { recent: &self.recent, known: &self.adjusts, over: &[], now }
    }
}

impl HistoryAhead {
    /// Appends a token to what grew from `history`.
    pub(super) fn push(&mut self, rules: &Rules, history: &History, token: u32) {
        self.recent.push(rules, token);
        if let (Some(ahead), Some(memory)) = (&mut self.memory, &history.memory) {
            ahead.push(rules, memory, token, self.recent.position, self.recent.banned());
        }
        if rules.remembers_output() {
            let emitted = self.recent.emitted(rules, token);
            absorb(self.own(history, token), &emitted);
            let left = match (&self.memory, &history.memory) {
                (Some(ahead), Some(memory)) => self.recent.left(rules, &ahead.text(memory)),
                _ => None,
            };
            if let Some(left) = left {
                window::take_out(self.own(history, left.token), left);
            }
        }
    }

    /// The entry of a token, copied here first so that it can be changed.
    fn own(&mut self, history: &History, token: u32) -> &mut TokenAdjust {
        let at = find(&self.over, token).unwrap_or_else(|at| {
            let known = find(&history.adjusts, token).ok().map(|known| history.adjusts[known]);
            self.over.insert(at, known.unwrap_or(TokenAdjust { token, ..TokenAdjust::default() }));
            at
        });
        &mut self.over[at]
    }

    /// Where the next row stands, behind what grew from `history`.
    pub(super) fn here<'a>(&'a self, history: &'a History) -> HistoryView<'a> {
        let now = self.memory.as_ref().map(|memory| memory.now());
        HistoryView { recent: &self.recent, known: &history.adjusts, over: &self.over, now }
    }

    /// How many entries a copy has to copy.
    #[must_use]
    pub fn weight(&self) -> usize {
        let memory = self.memory.as_ref().map_or(0, |memory| memory.weight());
        let lists = self.recent.lists.as_ref().map_or(0, |lists| lists.tail.len() + lists.banned.len());
        self.over.len() + lists + memory + 1
    }
}

impl<'a> HistoryView<'a> {
    /// Number of output tokens.
    pub(super) fn position(self) -> u64 {
        self.recent.position
    }

    /// The place of the next token in the text, numbered from 1.
    pub(super) fn place(self) -> u64 {
        self.recent.len() + 1
    }

    /// Top-p of the next token.
    pub(super) fn top_p(self) -> f32 {
        self.recent.top_p
    }

    /// The token that has to come next, if any. One forced by position comes before one forced by the text.
    pub(super) fn forced(self) -> &'a [u32] {
        let by_position = self.recent.forced.as_slice();
        if by_position.is_empty() { self.now.map_or(&[], PositionState::forced) } else { by_position }
    }

    /// Whether the text may force one of the next `count` tokens.
    pub(super) fn may_force_within(self, rules: &Rules, count: usize) -> bool {
        self.now.is_some_and(|now| now.may_force_within(rules, count))
    }

    /// Why the text ends by its last tokens, if it does.
    pub(super) fn end(self) -> Option<FinishReason> {
        self.now.and_then(PositionState::end)
    }

    /// Whether the text thinks.
    pub(super) fn thinks(self) -> bool {
        self.now.is_some_and(PositionState::thinks)
    }

    /// What is known about single tokens.
    pub(super) fn known(self) -> &'a [TokenAdjust] {
        self.known
    }

    /// The entries that replace some of those.
    pub(super) fn over(self) -> &'a [TokenAdjust] {
        self.over
    }

    /// Tokens that are banned here.
    pub(super) fn banned(self) -> &'a [u32] {
        self.recent.lists.as_ref().map_or(&[], |lists| &lists.banned)
    }

    /// The last output tokens, as many as the longest bad word looks back.
    pub(super) fn tail(self) -> &'a [u32] {
        self.recent.lists.as_ref().map_or(&[], |lists| &lists.tail)
    }

    /// What the tools that look back say about the next row.
    pub(super) fn now(self) -> Option<&'a PositionState> {
        self.now
    }
}

impl Recent {
    fn push(&mut self, rules: &Rules, token: u32) {
        self.position += 1;
        self.top_p = rules.top_p_decay().next(self.top_p, token);
        if let Some(lists) = &mut self.lists {
            lists.push(rules.tail_len(), token);
        }
        self.ban(rules);
    }

    /// Number of tokens.
    fn len(&self) -> u64 {
        u64::from(self.prompt_len) + self.position
    }

    /// The entry of the last token, which was just emitted.
    fn emitted(&self, rules: &Rules, token: u32) -> TokenAdjust {
        window::stamped(counted_once(token), self.len(), rules.window())
    }

    /// The token that the last one pushed out of the penalties' window, if any.
    fn left(&self, rules: &Rules, text: &TextView<'_>) -> Option<EvictedToken> {
        rules.window()?.left(text, self.len(), self.position)
    }

    /// The list of what is banned at this position, for adding to it.
    fn banned(&mut self) -> &mut Vec<u32> {
        &mut self.lists.get_or_insert_default().banned
    }

    /// Computes what holds at this position only.
    fn ban(&mut self, rules: &Rules) {
        if let Some(lists) = &mut self.lists {
            lists.ban(rules, self.position);
        }
        self.forced = rules.forced_at(self.position);
    }
}

impl Lists {
    /// Has as much room as the lists may ever need, so that only the counts grow.
    fn new(rules: &Rules, output: &[u32]) -> Option<Self> {
        let (keep, most) = (rules.tail_len(), rules.most_banned());
        (keep + most > 0).then(|| {
            let mut tail = Vec::with_capacity(keep);
            tail.extend_from_slice(output.get(output.len().saturating_sub(keep)..).unwrap_or_default());
            Self { tail, banned: Vec::with_capacity(most) }
        })
    }

    /// Appends a token to the last `keep`.
    fn push(&mut self, keep: usize, token: u32) {
        if keep > 0 {
            if self.tail.len() == keep {
                self.tail.remove(0);
            }
            self.tail.push(token);
        }
    }

    /// Computes what is banned at this position only.
    fn ban(&mut self, rules: &Rules, position: u64) {
        self.banned.clear();
        self.banned.extend_from_slice(rules.ends_banned_at(position));
        let words = rules.words().map_or(Vec::new(), |words| words.holding(words.after(&self.tail)));
        self.banned.extend(words.iter().filter_map(|&word| rules.bad_words()[word as usize].last()));
        for range in rules.ban_ranges().iter().filter(|range| range.holds_at(position)) {
            self.banned.extend_from_slice(&range.token_ids);
        }
        in_order_once(&mut self.banned);
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + (self.tail.capacity() + self.banned.capacity()) * size_of::<u32>()
    }
}

/// The index of a token's entry, or where it would be inserted.
fn find(adjusts: &[TokenAdjust], token: u32) -> Result<usize, usize> {
    adjusts.binary_search_by_key(&token, |adjust| adjust.token)
}

/// The rules' bans and biases, with the counts of the tokens so far.
fn counted(rules: &Rules, prompt: &[u32], output: &[u32]) -> Vec<TokenAdjust> {
    let (window, prompt_len) = (rules.window(), prompt.len());
    let len = prompt_len + output.len();
    // The part of the text that counts. Places are numbered from 1, but tokens are indexed from 0.
    let from = len - window.map_or(len, |window| window.len.min(len));
    let stamped = |at: usize, adjust| window::stamped(adjust, at as u64 + 1, window);
    let seen = if rules.remembers_prompt() { from.max(rules.prompt_ignored())..prompt_len } else { 0..0 };
    let in_prompt = if rules.counts_prompt() { counted_once } else { seen_only };
    let seen = seen.map(|at| stamped(at, in_prompt(prompt[at])));
    let emitted = from.saturating_sub(prompt_len)..output.len();
    let emitted = emitted.map(|at| stamped(prompt_len + at, counted_once(output[at])));
    let encoder = if rules.params().penalties().encoder == 1.0 { &[] } else { prompt };
    let encoder = encoder.iter().map(|&token| flagged(token, TokenAdjust::PROMPT));
    merge(rules.fixed().iter().copied().chain(encoder).chain(seen).chain(emitted).collect())
}

fn flagged(token: u32, flags: u32) -> TokenAdjust {
    TokenAdjust { token, flags, ..TokenAdjust::default() }
}

fn seen_only(token: u32) -> TokenAdjust {
    flagged(token, TokenAdjust::SEEN)
}

fn counted_once(token: u32) -> TokenAdjust {
    TokenAdjust { output_count: 1, ..seen_only(token) }
}

/// Sorts entries by token and merges those of the same token.
pub(super) fn merge(mut adjusts: Vec<TokenAdjust>) -> Vec<TokenAdjust> {
    // The sort is stable, so later places stay last, as `absorb` needs.
    adjusts.sort_by_key(|adjust| adjust.token);
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

/// Merges `other`, the later entry, into that of the same token. At most one of the two has a bias, since parameters
/// give a token one bias. The bias is copied, not added, so that its bits stay the same.
fn absorb(kept: &mut TokenAdjust, other: &TokenAdjust) {
    let place = if other.flags & TokenAdjust::SEEN == 0 { kept.place() } else { other.place() };
    kept.flags |= other.flags;
    *kept = kept.at(place);
    kept.output_count = kept.output_count.saturating_add(other.output_count);
    if other.bias != 0.0 {
        kept.bias = other.bias;
    }
}
