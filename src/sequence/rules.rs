//! What never changes in a sequence: its parameters, prepared once for the rows to come. Shared by all
//! sequences of a stream that have the same ones.

mod needs;
mod reports;
mod room;
mod rows;

use super::chain::{InThinking, OwnChain};
use super::dry::Dry;
use super::history::{Here, merge};
use super::mark;
use super::patterns::{OwnPatterns, Patterns};
use super::speculation::Speculation;
use super::window::Window;
use super::{FinishReason, in_order_once};
use crate::automaton::Automaton;
use crate::grammar::Grammar;
use crate::params::acceptance::AcceptanceRule;
use crate::params::steering::{NoRepeatNgram, SequenceBias, ThinkingBudget, TokenBanRange};
use crate::params::{LogprobsParams, SamplingParams, Step, ThinkingFilters};
use crate::permits::Permit;
use crate::sampling::adjust::TokenAdjust;
use crate::sampling::mark::tournament::Table;
use crate::sampling::samplers::top_p_decay;
use crate::vocabulary::Vocabulary;
use std::mem::take;
use std::sync::Arc;

/// Checked parameters and what follows from them.
#[derive(Debug)]
pub struct Rules {
    params: SamplingParams,
    /// Bans and biases, in the order rows take them; `None`: those of the base.
    fixed: Option<Vec<TokenAdjust>>,
    /// Ascending, each once; `None`: those of the base.
    allowed: Option<Vec<u32>>,
    /// EOS tokens of the stream, whether or not they are ignored; `None`: those of the base.
    eos: Option<Vec<u32>>,
    /// EOS and stop tokens, in order: what `min_tokens` bans.
    ends: Box<[u32]>,
    /// For a chain of samplers; `None` where the filters alone will do, and the base has all the lists.
    chain: Option<Box<OwnChain>>,
    /// Texts of tokens, where the server has them and there is no base.
    vocabulary: Option<Arc<Vocabulary>>,
    /// Sequence breakers, bad words and sequence biases, of those that there are; others are those of the base.
    patterns: Option<Box<OwnPatterns>>,
    /// Of SynthID.
    table: Option<Arc<Table>>,
    /// Whose lists are in force where these rules have none of their own, so that a stream's long default
    /// lists are there once.
    base: Option<Arc<Rules>>,
    /// What texts have to match; `None`: that of the base, if the parameters say that there is one.
    grammar: Option<Arc<Grammar>>,
    /// Room for what they take.
    room: Option<Permit>,
}

impl Rules {
    /// Prepares parameters that were [checked](SamplingParams::validate).
    #[must_use]
    pub fn new(params: SamplingParams, eos_token_ids: &[u32]) -> Self {
        Self::prepared(params, Some(eos_token_ids.to_vec()), None)
    }

    /// The same, where an empty list and absent logprobs stand for those of `base`.
    #[must_use]
    pub fn over(base: &Arc<Self>, params: SamplingParams) -> Self {
        let mut rules = Self::prepared(params, None, Some(Arc::clone(base)));
        // Prepared; nobody is based on these rules, so the originals would only take memory.
        let params = &mut rules.params;
        drop((take(&mut params.banned_token_ids), take(&mut params.logit_bias), take(&mut params.allowed_token_ids)));
        if !params.samplers.xtc_ignore_token_ids.is_empty() {
            drop(take(&mut params.samplers.xtc_ignore_token_ids));
        }
        if !params.history.dry_sequence_breakers.is_empty() {
            drop(take(&mut params.history.dry_sequence_breakers));
        }
        rules
    }

    fn prepared(mut params: SamplingParams, eos: Option<Vec<u32>>, base: Option<Arc<Self>>) -> Self {
        put_in_order(&mut params);
        let patterns = OwnPatterns::of(&params);
        // Of the base's mark there is one already; another is made, which takes milliseconds at its largest.
        let table = match base.as_ref().filter(|base| base.params.watermark() == params.watermark()) {
            Some(base) => base.table.clone(),
            None => params.watermark().and_then(mark::table),
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

    /// Whether these rules change other tokens than those they are over.
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

    /// The list of these parameters, or that of the base when it is empty.
    fn list<T>(&self, of: impl Fn(&SamplingParams) -> &Vec<T>) -> &[T] {
        match &self.base {
            Some(base) if of(&self.params).is_empty() => of(&base.params),
            _ => of(&self.params),
        }
    }

    /// The parameters; of rules over others without the lists that were prepared.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Bans and biases, in the order rows take them.
    pub(super) fn fixed(&self) -> &[TokenAdjust] {
        self.inherited(|rules| rules.fixed.as_deref()).unwrap_or_default()
    }

    /// Bans and biases in force.
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

    /// What these rules have, or else the base.
    fn inherited<'a, T>(&'a self, of: impl Fn(&'a Self) -> Option<T>) -> Option<T> {
        of(self).or_else(|| of(self.base.as_deref()?))
    }

    /// Tokens that XTC leaves alone.
    fn protected(&self) -> &[u32] {
        self.inherited(|rules| rules.chain.as_ref()?.protected.as_deref()).unwrap_or_default()
    }

    /// Bad words, of which those of one token are bans.
    pub(super) fn bad_words(&self) -> &[Vec<u32>] {
        self.list(|params| &params.bad_words)
    }

    /// Where bad words of two or more tokens stand.
    pub(super) fn words(&self) -> Option<&Patterns> {
        self.inherited(|rules| rules.patterns.as_ref()?.words.as_ref())
    }

    /// Where sequence biases stand.
    pub(super) fn biased(&self) -> Option<&Patterns> {
        self.inherited(|rules| rules.patterns.as_ref()?.biases.as_ref())
    }

    /// DRY's sequence breakers.
    pub(super) fn breakers(&self) -> Option<&Automaton> {
        self.inherited(|rules| rules.patterns.as_ref()?.breakers.as_ref())
    }

    /// How DRY penalises.
    pub(super) fn dry(&self) -> Dry<'_> {
        let rules = self.params.samplers.sampler_order.rules();
        let (is_late, of_koboldcpp) = (rules.dry_is_late, rules.dry_of_koboldcpp);
        Dry { params: &self.params.history, breakers: self.breakers(), is_late, of_koboldcpp }
    }

    /// What n-gram may not come twice.
    pub(super) fn no_repeat_ngram(&self) -> Option<&NoRepeatNgram> {
        self.ngram_params().filter(|params| params.size > 0)
    }

    /// What n-gram of the prompt may not come again.
    pub(super) fn no_prompt_ngram(&self) -> Option<&NoRepeatNgram> {
        self.ngram_params().filter(|params| params.prompt_size > 0)
    }

    fn ngram_params(&self) -> Option<&NoRepeatNgram> {
        self.inherited(|rules| rules.params.history.no_repeat_ngram.as_deref())
    }

    pub(super) fn thinking_budget(&self) -> Option<&ThinkingBudget> {
        self.inherited(|rules| rules.params.history.thinking_budget.as_deref()).filter(|budget| !budget.is_off())
    }

    /// Filters of texts that think.
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

    /// The token that this position of the output has to have.
    pub(super) fn forced_at(&self, position: u64) -> Option<u32> {
        let (first, last) = (self.params.history.forced_first_token, self.params.history.forced_last_token);
        last.filter(|_| position + 1 == self.max_tokens()).or(first.filter(|_| position == 0))
    }

    /// The longest output; 0: no limit.
    pub(super) fn max_tokens(&self) -> u64 {
        u64::from(self.params.max_tokens)
    }

    /// How draft tokens are accepted.
    pub(super) fn acceptance(&self) -> AcceptanceRule {
        self.params.acceptance
    }

    /// What the sequence remembers to propose draft tokens.
    pub(super) fn speculation(&self, prompt: &[u32], output: &[u32]) -> Option<Box<Speculation>> {
        Speculation::new(&self.params, prompt, output)
    }

    /// How top-p decays.
    pub(super) fn top_p_decay(&self) -> top_p_decay::Decay<'_> {
        let samplers = &self.params.samplers;
        let reset = self.list(|params| &params.samplers.top_p_reset_token_ids);
        let (decay, least) = (samplers.top_p_decay, samplers.top_p_min);
        top_p_decay::Decay { top_p: self.params.top_p, decay, least, reset }
    }

    /// The steps of rows, but of those that think where these have [others](Self::thinking).
    pub(super) fn steps(&self) -> Option<&[Step]> {
        self.chain.as_ref()?.steps.as_deref()
    }

    /// How rows are drawn that think, if otherwise than others.
    fn thinking(&self) -> Option<&InThinking> {
        self.chain.as_ref()?.thinking.as_ref()
    }

    /// How many of so many tokens the chain of a row leaves at most, where there is one: in thinking, and elsewhere.
    pub(super) fn most_left(&self, vocab_size: usize) -> impl Iterator<Item = Option<usize>> {
        let least = self.params.samplers.min_keep;
        let thinking = self.thinking().map(|thinking| (thinking.steps.as_deref(), thinking.top_k()));
        let chains = [(self.steps(), self.params.top_k)].into_iter().chain(thinking);
        chains.map(move |(steps, top_k)| {
            let most = steps?.iter().filter_map(|step| match *step {
                Step::AtMost(most) => Some(most.max(least) as usize),
                Step::TopK => Some(top_k.max(least) as usize),
                _ => None,
            });
            Some(most.fold(vocab_size, usize::min))
        })
    }

    /// How far back penalties look; `None`: over the whole text.
    pub(super) fn window(&self) -> Option<Window> {
        Window::of(&self.params)
    }

    /// How many tokens at the start of the prompt penalties do not see.
    pub(super) fn prompt_ignored(&self) -> usize {
        self.params.history.prompt_ignore_length as usize
    }

    /// Whether tokens of the prompt change later rows.
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

    /// How many of the last output tokens the longest bad word needs.
    pub(super) fn tail_len(&self) -> usize {
        self.words().map_or(0, Patterns::longest)
    }

    /// EOS and stop tokens, if they are banned at this position.
    pub(super) fn ends_banned_at(&self, position: u64) -> &[u32] {
        if position < u64::from(self.params.min_tokens) { &self.ends } else { &[] }
    }

    /// Most tokens that may be banned at one position.
    pub(super) fn most_banned(&self) -> usize {
        let ranges = self.ban_ranges().iter().map(|range| range.token_ids.len()).sum::<usize>();
        self.ends.len() + self.words().map_or(0, Patterns::len) + ranges
    }

    /// Why the sequence ends with `token`, its output then being `len` long and ending `by_text`. A stop token goes
    /// before EOS, since it was asked for by this sequence and stays in force with `ignore_eos`; both go before
    /// what several tokens tell and the length, since a text that ended by itself was not cut off. Several tokens end
    /// nothing before `min_tokens`.
    pub(super) fn finish(&self, token: u32, here: Here<'_>) -> Option<FinishReason> {
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

/// What is looked up by its tokens. Only where there is something, since what is changed takes memory.
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
