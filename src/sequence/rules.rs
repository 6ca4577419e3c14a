//! What never changes in a sequence: its parameters, prepared once for all its rows. Sequences of a stream that have
//! the same parameters share their rules.

mod needs;
mod reports;
mod room;
mod rows;

pub(crate) use needs::LACKS_TEXTS;

use super::chain::{InThinking, OwnChain};
use super::dry::Dry;
use super::dry::breakers::Breakers;
use super::history::{HistoryView, merge};
use super::patterns::{OwnPatterns, Patterns};
use super::speculation::Speculation;
use super::watermark;
use super::window::Window;
use super::{FinishReason, in_order_once};
use crate::automaton::Automaton;
use crate::grammar::Grammar;
use crate::params::acceptance::AcceptanceRule;
use crate::params::steering::{NoRepeatNgram, SequenceBias, ThinkingBudget, TokenBanRange};
use crate::params::{ChainStep, LogprobsParams, SamplingParams, ThinkingFilters};
use crate::permits::Permit;
use crate::sampling::adjust::TokenAdjust;
use crate::sampling::samplers::top_p_decay;
use crate::sampling::watermark::tournament::Table;
use crate::vocabulary::Vocabulary;
use std::mem::take;
use std::sync::Arc;

/// Checked parameters, and what is derived from them.
#[derive(Debug)]
pub struct Rules {
    params: SamplingParams,
    /// Bans and biases, in the order that rows need; `None` if those of the base are in force.
    fixed: Option<Vec<TokenAdjust>>,
    /// Ascending, each token once; `None` if those of the base are in force.
    allowed: Option<Vec<u32>>,
    /// The stream's EOS tokens, whether or not they are ignored; `None` if those of the base are in force.
    eos: Option<Vec<u32>>,
    /// EOS and stop tokens, in ascending order: what `min_tokens` bans.
    ends: Box<[u32]>,
    /// What chains of samplers need; `None` if the filters alone are enough and all lists are those of the base.
    chain: Option<Box<OwnChain>>,
    /// The texts of tokens, if the server has them. Rules with a base use those of the base.
    vocabulary: Option<Arc<Vocabulary>>,
    /// Sequence breakers, bad words and sequence biases, as far as these parameters have their own; the others are
    /// those of the base.
    patterns: Option<Box<OwnPatterns>>,
    /// The table of SynthID.
    table: Option<Arc<Table>>,
    /// The rules whose lists are in force where these have none of their own. So a stream's long default lists exist
    /// only once.
    base: Option<Arc<Rules>>,
    /// What texts have to match; `None` if it is that of the base, or if the parameters have no grammar.
    grammar: Option<Arc<Grammar>>,
    /// The memory counted for these rules.
    room: Option<Permit>,
}

impl Rules {
    /// Prepares parameters that were [checked](SamplingParams::validate).
    #[must_use]
    pub fn new(params: SamplingParams, eos_token_ids: &[u32]) -> Self {
        Self::prepared(params, Some(eos_token_ids.to_vec()), None)
    }

    /// The same, where an empty list and absent logprobs mean those of `base`.
    #[must_use]
    pub fn over(base: &Arc<Self>, params: SamplingParams) -> Self {
        let mut rules = Self::prepared(params, None, Some(Arc::clone(base)));
        // These lists are prepared already. No other rules are based on these, so the originals would only take memory.
        let params = &mut rules.params;
        drop((take(&mut params.banned_token_ids), take(&mut params.logit_bias), take(&mut params.allowed_token_ids)));
        if !params.samplers.xtc_ignore_token_ids.is_empty() {
            drop(take(&mut params.samplers.xtc_ignore_token_ids));
        }
        if !params.history.dry_sequence_breakers.is_empty() {
            drop(take(&mut params.history.dry_sequence_breakers));
        }
        if !params.history.dry_sequence_breaker_texts.is_empty() {
            drop(take(&mut params.history.dry_sequence_breaker_texts));
        }
        rules
    }

    fn prepared(mut params: SamplingParams, eos: Option<Vec<u32>>, base: Option<Arc<Self>>) -> Self {
        put_in_order(&mut params);
        let patterns = OwnPatterns::of(&params);
        // If the mark is that of the base, its table is used: making another takes milliseconds for the largest.
        let table = match base.as_ref().filter(|base| base.params.watermark() == params.watermark()) {
            Some(base) => base.table.clone(),
            None => params.watermark().and_then(watermark::table),
        };
        let (fixed, allowed, ends, vocabulary, grammar, room) = (None, None, Box::default(), None, None, None);
        let rules =
            Self { params, fixed, allowed, eos, ends, chain: None, vocabulary, patterns, table, base, grammar, room };
        let chain = OwnChain::of(&rules.params, rules.thinking_filters());
        let is_base = rules.base.is_none();
        let fixed = (is_base || rules.has_own_fixed()).then(|| rules.merge_fixed());
        let own = &rules.params.allowed_token_ids;
        let allowed = (is_base || !own.is_empty()).then(|| in_order(own.clone()));
        let ends = if rules.params.min_tokens > 0 {
            in_order([rules.eos(), rules.stop_tokens()].concat()).into_boxed_slice()
        } else {
            Box::default()
        };
        Self { fixed, allowed, ends, chain, ..rules }.with_ends()
    }

    /// Whether these rules adjust other tokens than their base does.
    fn has_own_fixed(&self) -> bool {
        let base = self.base.as_ref().map(|base| base.params.history.length_penalty.is_some());
        self.params.changes_tokens() || base != Some(self.params.history.length_penalty.is_some())
    }

    fn merge_fixed(&self) -> Vec<TokenAdjust> {
        let words = self.list(|params| &params.bad_words).iter().filter(|word| word.len() == 1).flatten();
        let bans = self.list(|params| &params.banned_token_ids).iter().chain(words);
        let bans = bans.map(|&token| TokenAdjust { token, flags: TokenAdjust::BANNED, ..TokenAdjust::default() });
        let biases = self.list(|params| &params.logit_bias).iter();
        let biases = biases.map(|&(token, bias)| TokenAdjust { token, bias, ..TokenAdjust::default() });
        let ends = self.inherited(|rules| rules.eos.as_deref()).unwrap_or_default();
        let ends = if self.params.history.length_penalty.is_some() { ends } else { &[] };
        let ends = ends.iter().map(|&token| TokenAdjust { token, flags: TokenAdjust::END, ..TokenAdjust::default() });
        merge(bans.chain(biases).chain(ends).collect())
    }

    /// The list of these parameters, or that of the base if it is empty.
    fn list<T>(&self, of: impl Fn(&SamplingParams) -> &Vec<T>) -> &[T] {
        match &self.base {
            Some(base) if of(&self.params).is_empty() => of(&base.params),
            _ => of(&self.params),
        }
    }

    /// The parameters. Rules with a base do not keep the lists that they have prepared.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Bans and biases, in the order that rows need.
    pub(super) fn fixed(&self) -> &[TokenAdjust] {
        self.inherited(|rules| rules.fixed.as_deref()).unwrap_or_default()
    }

    /// How many bans and biases are in force.
    #[must_use]
    pub fn fixed_entries(&self) -> usize {
        self.fixed().len()
    }

    fn allowed(&self) -> Option<&[u32]> {
        self.inherited(|rules| rules.allowed.as_deref()).filter(|ids| !ids.is_empty())
    }

    /// Tokens that end the sequence as EOS.
    fn eos(&self) -> &[u32] {
        if self.params.ignore_eos { &[] } else { self.inherited(|rules| rules.eos.as_deref()).unwrap_or_default() }
    }

    fn stop_tokens(&self) -> &[u32] {
        self.list(|params| &params.stop_token_ids)
    }

    fn logprobs(&self) -> Option<&LogprobsParams> {
        self.inherited(|rules| rules.params.logprobs.as_ref())
    }

    /// A value of these rules, or else that of the base.
    fn inherited<'a, T>(&'a self, of: impl Fn(&'a Self) -> Option<T>) -> Option<T> {
        of(self).or_else(|| of(self.base.as_deref()?))
    }

    /// Tokens that XTC never removes.
    fn protected(&self) -> &[u32] {
        self.inherited(|rules| rules.chain.as_ref()?.protected.as_deref()).unwrap_or_default()
    }

    /// Bad words; those of one token are also among the bans.
    pub(super) fn bad_words(&self) -> &[Vec<u32>] {
        self.list(|params| &params.bad_words)
    }

    /// Finds bad words of two or more tokens.
    pub(super) fn words(&self) -> Option<&Patterns> {
        self.inherited(|rules| rules.patterns.as_ref()?.words.as_ref())
    }

    /// Finds sequence biases.
    pub(super) fn biased(&self) -> Option<&Patterns> {
        self.inherited(|rules| rules.patterns.as_ref()?.biases.as_ref())
    }

    /// Whether biases are added after the penalties.
    pub(super) fn biases_late(&self) -> bool {
        self.params.biases_late()
    }

    /// DRY's sequence breakers.
    pub(super) fn breakers(&self) -> Breakers<'_> {
        let texts = self.breaker_texts().zip(self.vocabulary());
        Breakers { tokens: self.inherited(|rules| rules.patterns.as_ref()?.breakers.as_ref()), texts }
    }

    /// Those that are given as texts.
    fn breaker_texts(&self) -> Option<&Automaton> {
        self.inherited(|rules| rules.patterns.as_ref()?.breaker_texts.as_ref())
    }

    /// How DRY penalises.
    pub(super) fn dry(&self) -> Dry<'_> {
        let rules = self.params.samplers.sampler_order.rules();
        let (is_late, of_koboldcpp) = (rules.dry_is_late, rules.dry_of_koboldcpp);
        Dry { params: &self.params.history, breakers: self.breakers(), is_late, of_koboldcpp }
    }

    /// The setting of n-grams that may not come twice.
    pub(super) fn no_repeat_ngram(&self) -> Option<&NoRepeatNgram> {
        self.ngram_params().filter(|params| params.size > 0)
    }

    /// The setting of the prompt's n-grams that may not come again.
    pub(super) fn no_prompt_ngram(&self) -> Option<&NoRepeatNgram> {
        self.ngram_params().filter(|params| params.prompt_size > 0)
    }

    fn ngram_params(&self) -> Option<&NoRepeatNgram> {
        self.inherited(|rules| rules.params.history.no_repeat_ngram.as_deref())
    }

    pub(super) fn thinking_budget(&self) -> Option<&ThinkingBudget> {
        self.inherited(|rules| rules.params.history.thinking_budget.as_deref()).filter(|budget| !budget.is_off())
    }

    /// The filters for rows in which the text thinks.
    fn thinking_filters(&self) -> Option<&ThinkingFilters> {
        self.thinking_budget().map(|budget| &budget.filters)
    }

    pub(super) fn sequence_bias(&self) -> &[SequenceBias] {
        self.list(|params| &params.history.sequence_bias)
    }

    pub(super) fn stop_token_sequences(&self) -> &[Vec<u32>] {
        self.list(|params| &params.history.stop_token_sequences)
    }

    pub(super) fn ban_ranges(&self) -> &[TokenBanRange] {
        self.list(|params| &params.history.token_ban_ranges)
    }

    /// The token that has to be at this position of the output.
    pub(super) fn forced_at(&self, position: u64) -> Option<u32> {
        let (first, last) = (self.params.history.forced_first_token, self.params.history.forced_last_token);
        last.filter(|_| position + 1 == self.max_tokens()).or(first.filter(|_| position == 0))
    }

    /// The maximum length of the output; 0 means no limit.
    pub(super) fn max_tokens(&self) -> u64 {
        u64::from(self.params.max_tokens)
    }

    /// The rule by which draft tokens are accepted.
    pub(super) fn acceptance(&self) -> AcceptanceRule {
        self.params.acceptance
    }

    /// What the sequence remembers to propose draft tokens.
    pub(super) fn speculation(&self, prompt: &[u32], output: &[u32], predicted: &[u32]) -> Option<Box<Speculation>> {
        Speculation::new(&self.params, prompt, output, predicted)
    }

    /// How top-p decays.
    pub(super) fn top_p_decay(&self) -> top_p_decay::Decay<'_> {
        let samplers = &self.params.samplers;
        let reset = self.list(|params| &params.samplers.top_p_reset_token_ids);
        let (decay, least) = (samplers.top_p_decay, samplers.top_p_min);
        top_p_decay::Decay { top_p: self.params.top_p, decay, least, reset }
    }

    /// The steps of rows, except for thinking rows where those have [steps of their own](Self::thinking).
    pub(super) fn steps(&self) -> Option<&[ChainStep]> {
        self.chain.as_ref()?.steps.as_deref()
    }

    /// How rows are drawn while the text thinks, if differently from others.
    fn thinking(&self) -> Option<&InThinking> {
        self.chain.as_ref()?.thinking.as_ref()
    }

    /// How many of `vocab_size` tokens a row's chain leaves at most, if it has a chain. One value is for rows that do
    /// not think; another follows if thinking has filters of its own.
    pub(super) fn most_left(&self, vocab_size: usize) -> impl Iterator<Item = Option<usize>> {
        let least = self.params.samplers.min_keep;
        let thinking = self.thinking().map(|thinking| (thinking.steps.as_deref(), thinking.top_k()));
        let chains = [(self.steps(), self.params.top_k)].into_iter().chain(thinking);
        chains.map(move |(steps, top_k)| {
            let most = steps?.iter().filter_map(|step| match *step {
                ChainStep::AtMost(most) => Some(most.max(least) as usize),
                ChainStep::TopK => Some(top_k.max(least) as usize),
                _ => None,
            });
            Some(most.fold(vocab_size, usize::min))
        })
    }

    /// How far back penalties look; `None` means over the whole text.
    pub(super) fn window(&self) -> Option<Window> {
        Window::of(&self.params)
    }

    /// How many tokens at the start of the prompt penalties ignore.
    pub(super) fn prompt_ignored(&self) -> usize {
        self.params.history.prompt_ignore_length as usize
    }

    /// Whether prompt tokens change later rows.
    pub(super) fn remembers_prompt(&self) -> bool {
        self.params.repetition_penalty != 1.0 || self.counts_prompt()
    }

    /// Whether a frequency or presence penalty counts tokens of the prompt.
    pub(super) fn counts_prompt(&self) -> bool {
        self.params.counts_prompt()
    }

    /// Whether emitted tokens change the logits of later rows.
    pub(super) fn remembers_output(&self) -> bool {
        !self.params.penalties().is_off()
    }

    /// How many of the last output tokens are needed to recognise the longest bad word.
    pub(super) fn tail_len(&self) -> usize {
        self.words().map_or(0, Patterns::longest)
    }

    /// EOS and stop tokens, if they are banned at this position; otherwise empty.
    pub(super) fn ends_banned_at(&self, position: u64) -> &[u32] {
        if position < u64::from(self.params.min_tokens) { &self.ends } else { &[] }
    }

    /// The most tokens that may be banned at one position.
    pub(super) fn most_banned(&self) -> usize {
        let ranges = self.ban_ranges().iter().map(|range| range.token_ids.len()).sum::<usize>();
        self.ends.len() + self.words().map_or(0, Patterns::len) + ranges
    }

    /// Why the sequence ends with `token`, if it does; `here` is the text with this token. A stop token comes before
    /// EOS, because this sequence asked for it and it stays in force with `ignore_eos`. Both come before stop
    /// sequences, loops and the maximum length, because a text that ended by itself was not cut off. Stop sequences and
    /// loops do not end a text before `min_tokens`.
    pub(super) fn finish(&self, token: u32, here: HistoryView<'_>) -> Option<FinishReason> {
        if self.stop_tokens().contains(&token) {
            return Some(FinishReason::StopToken);
        }
        if self.eos().contains(&token) {
            return Some(FinishReason::Eos);
        }
        let len = here.position();
        if here.end().is_some() && len >= u64::from(self.params.min_tokens) {
            return here.end();
        }
        let max = self.max_tokens();
        (max > 0 && len >= max).then_some(FinishReason::MaxTokens)
    }
}

/// Sorts lists that are searched. Lists that are absent stay absent, since changing them would take memory.
fn put_in_order(params: &mut SamplingParams) {
    if params.history.no_repeat_ngram.is_some() {
        let whitelist = params.history.no_repeat_ngram.as_mut().map(|ngram| &mut ngram.whitelist);
        whitelist.into_iter().for_each(in_order_once);
    }
}

pub(super) fn in_order(mut tokens: Vec<u32>) -> Vec<u32> {
    in_order_once(&mut tokens);
    tokens.shrink_to_fit();
    tokens
}
