//! What the tools that look back remember of a text, and what they say about the next row.
//!
//! [`Memory`] is the long part, built from emitted tokens, and exists only if a tool needs it. [`PositionState`] is the
//! short part that every token changes: looking ahead copies it and leaves the memory as it is. Both depend on
//! parameters and tokens alone, not on how the tokens came.

use super::dry::{self, breakers::BreakerDistance};
use super::ngram::{self, NgramIndex, PromptNgrams};
use super::repeat_index::RepeatIndex;
use super::repeats::{self, Match};
use super::rules::Rules;
use super::text::TextView;
use super::text_end::end;
use super::thinking::Thinking;
use super::watermark;
use super::{FinishReason, bias, in_order_once};
use crate::automaton::Node;
use crate::growth::{after_growth, push};
use crate::sampling::adjust::Nudge;
use crate::speculative::propose::grams::Grams;

/// How many tokens beyond those needed are kept before they are dropped together.
const SLACK: usize = 256;

/// The tokens of a text that some tool looks back at.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Memory {
    /// The last tokens of prompt and output.
    tokens: Vec<u32>,
    look_back: LookBack,
    grams: Index,
    now: PositionState,
}

/// Where tokens stood before, for each tool.
#[derive(Debug, Clone, PartialEq, Default)]
struct Index {
    dry: Option<RepeatIndex>,
    /// The places of each token, if DRY counts them.
    counted: Option<Grams>,
    ngram: Option<NgramIndex>,
    /// The n-grams of the prompt.
    prompt: Option<Box<PromptNgrams>>,
}

/// A memory with some more tokens, looked ahead at.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MemoryAhead {
    tokens: Vec<u32>,
    now: PositionState,
}

/// What holds at one position.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct PositionState {
    /// Where the end of the text stood before.
    matches: Vec<Match>,
    /// How far the text's end is behind its sequence breakers.
    since: BreakerDistance,
    /// The state of the automaton of sequence biases.
    biased: Node,
    thinking: Thinking,
    nudges: Vec<Nudge>,
    /// The token that has to come next.
    forced: Option<u32>,
    /// Why the text ends by its last tokens, if it does.
    end: Option<FinishReason>,
    /// What the watermark of the next token depends on.
    mark: watermark::MarkContext,
}

/// How far back tools look.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LookBack {
    /// The context of DRY's grams, and its window.
    dry: Option<(usize, usize)>,
    /// The context of the n-grams, and their window.
    ngram: Option<(usize, usize)>,
    /// How many tokens the tools need.
    keep: usize,
}

impl LookBack {
    fn new(rules: &Rules) -> Self {
        let params = &rules.params().history;
        let dry = params.dry_window().map(|window| (dry::context(params), window));
        // Extra tokens, because a breaker may end where the window begins.
        let for_dry = dry.map_or(0, |(_, window)| window.saturating_add(rules.breakers().longest()));
        let ngram = rules.no_repeat_ngram().map(|params| (ngram::context(params), ngram::window(params)));
        let keep = [
            for_dry,
            ngram.map_or(0, |(_, window)| window),
            rules.no_prompt_ngram().map_or(0, |params| params.prompt_size as usize),
            // One more, because the token that leaves the window of penalties is needed too.
            rules.window().map_or(0, |window| window.len + 1),
            bias::reach(rules.biased()),
            params.repetition_detection.map_or(0, |detection| detection.span()),
            rules.stop_token_sequences().iter().map(Vec::len).max().unwrap_or(0),
            rules.thinking_budget().map_or(0, Thinking::reach),
            rules.params().watermark().map_or(0, watermark::reach),
        ];
        Self { dry, ngram, keep: keep.into_iter().max().unwrap_or(0) }
    }

    /// The most tokens that are kept.
    fn most(&self) -> usize {
        self.keep.saturating_mul(2).saturating_add(SLACK)
    }
}

impl Memory {
    /// The memory after `prompt` and `output`; `None` if no tool looks back. `banned` gives the list to add bans to,
    /// and is called only if there is a memory.
    pub(super) fn new<'a>(
        rules: &Rules,
        prompt: &[u32],
        output: &[u32],
        banned: impl FnOnce() -> &'a mut Vec<u32>,
    ) -> Option<Box<Self>> {
        let look_back = LookBack::new(rules);
        (look_back.keep > 0).then(|| {
            let skipped = (prompt.len() + output.len()).saturating_sub(look_back.keep);
            let (of_prompt, of_output) = (skipped.min(prompt.len()), skipped.saturating_sub(prompt.len()));
            let tokens = [&prompt[of_prompt..], &output[of_output..]].concat();
            let mut memory = Self { tokens, look_back, grams: Index::default(), now: PositionState::default() };
            if let Some(params) = rules.thinking_budget() {
                memory.now.thinking = Thinking::after(params, prompt, output, rules.grammar_position());
            }
            memory.index(rules);
            memory.grams.prompt = rules.no_prompt_ngram().map(|params| Box::new(PromptNgrams::new(params, prompt)));
            memory.look(rules, output.len() as u64, banned());
            Box::new(memory)
        })
    }

    /// Rebuilds the index of all kept tokens.
    fn index(&mut self, rules: &Rules) {
        let look_back = self.look_back;
        self.grams.ngram = look_back.ngram.map(|(context, _)| NgramIndex::latest(context, &self.tokens));
        if let Some(biased) = rules.biased() {
            self.now.biased = biased.after(&self.tokens);
        }
        if let Some((context, window)) = look_back.dry {
            let places = RepeatIndex::new(context, dry::longest(&rules.params().history), &self.tokens);
            self.now.matches = repeats::all(&self.tokens, &places, window);
            self.now.since = BreakerDistance::after(&self.tokens, rules.breakers(), window);
            self.grams.dry = Some(places);
            self.grams.counted = dry::bounds::counted(&rules.params().history, &self.tokens);
        }
    }

    /// Appends an emitted token, with which the output has `output` tokens. Bans are added to `banned`.
    pub(super) fn push(&mut self, rules: &Rules, token: u32, output: u64, banned: &mut Vec<u32>) {
        if let Some(places) = &mut self.grams.dry {
            places.push(&self.tokens, token);
        }
        if let Some(grams) = &mut self.grams.counted {
            grams.push(&self.tokens, token);
        }
        if let Some(index) = &mut self.grams.ngram {
            index.push_over(&self.tokens, token);
        }
        push(&mut self.tokens, token);
        self.now.append(rules, &self.look_back, &TextView::new(&self.tokens, &[]), &self.grams, output);
        if self.tokens.len() > self.look_back.most() {
            self.tokens.drain(..self.tokens.len() - self.look_back.keep);
            self.index(rules);
        }
        self.look(rules, output, banned);
    }

    fn look(&mut self, rules: &Rules, output: u64, banned: &mut Vec<u32>) {
        self.now.look(rules, &TextView::new(&self.tokens, &[]), &self.grams, output, banned);
    }

    pub(super) fn ahead(&self) -> Box<MemoryAhead> {
        Box::new(MemoryAhead { tokens: Vec::new(), now: self.now.clone() })
    }

    pub(super) fn now(&self) -> &PositionState {
        &self.now
    }

    pub(super) fn text(&self) -> TextView<'_> {
        TextView::new(&self.tokens, &[])
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.tokens.capacity() * size_of::<u32>() + self.grams.bytes() + self.now.bytes()
    }

    /// The most bytes it may take once `more` tokens are appended.
    pub(super) fn bytes_after(&self, rules: &Rules, more: usize) -> usize {
        let look_back = self.look_back;
        let len = self.tokens.len().saturating_add(more).min(look_back.most().saturating_add(1));
        let tokens = after_growth(self.tokens.capacity(), len) * size_of::<u32>();
        let grams = self.grams.bytes_after(len);
        let matches = look_back.dry.map_or(0, |(_, window)| repeats::most_bytes(len, window));
        // There are at most as many penalised tokens as matches.
        let nudges = matches / size_of::<Match>() + rules.sequence_bias().len();
        size_of::<Self>() + tokens + grams + matches.max(self.now.bytes()) + nudges * size_of::<Nudge>()
    }

    /// The most tokens that it may ban once `more` tokens are appended.
    pub(super) fn most_banned(&self, more: usize) -> usize {
        let of_prompt = self.grams.prompt.as_ref().map_or(0, |prompt| prompt.most_banned());
        of_prompt + self.look_back.ngram.map_or(0, |(_, window)| self.tokens.len().saturating_add(more).min(window))
    }
}

impl Index {
    fn bytes(&self) -> usize {
        let grams = self.ngram.as_ref().map_or(0, NgramIndex::bytes) + self.counted.as_ref().map_or(0, Grams::bytes);
        self.dry.as_ref().map_or(0, RepeatIndex::bytes) + grams + self.prompt_bytes()
    }

    fn prompt_bytes(&self) -> usize {
        self.prompt.as_ref().map_or(0, |prompt| size_of::<PromptNgrams>() + prompt.bytes())
    }

    fn bytes_after(&self, len: usize) -> usize {
        let dry = self.dry.as_ref().map_or(0, |places| places.bytes_after(len));
        let ngram = self.ngram.as_ref().map_or(0, |index| index.bytes_after(len));
        let counted = self.counted.as_ref().map_or(0, |grams| grams.bytes_after(len));
        dry + ngram + counted + self.prompt_bytes()
    }
}

impl MemoryAhead {
    /// Appends a token to what grew from `memory`, with which the output would have `output` tokens. Bans are added to
    /// `banned`.
    pub(super) fn push(&mut self, rules: &Rules, memory: &Memory, token: u32, output: u64, banned: &mut Vec<u32>) {
        self.tokens.push(token);
        let text = TextView::new(&memory.tokens, &self.tokens);
        self.now.append(rules, &memory.look_back, &text, &memory.grams, output);
        self.now.look(rules, &text, &memory.grams, output, banned);
    }

    pub(super) fn now(&self) -> &PositionState {
        &self.now
    }

    /// The text of `memory` and the tokens ahead.
    pub(super) fn text<'a>(&'a self, memory: &'a Memory) -> TextView<'a> {
        TextView::new(&memory.tokens, &self.tokens)
    }

    /// How many entries a copy has to copy.
    pub(super) fn weight(&self) -> usize {
        self.tokens.len() + self.now.matches.len() + self.now.nudges.len()
    }
}

impl PositionState {
    /// Takes in the last token of `text`, with which the output has `output` tokens.
    fn append(&mut self, rules: &Rules, look_back: &LookBack, text: &TextView<'_>, grams: &Index, output: u64) {
        if let (Some((_, window)), Some(places)) = (look_back.dry, &grams.dry) {
            self.matches = repeats::appended(&self.matches, text, places, window);
            if let Some(last) = text.last(1).next() {
                self.since.push(last, rules.breakers());
            }
        }
        if let (Some(biased), Some(last)) = (rules.biased(), text.last(1).next()) {
            self.biased = biased.next(self.biased, last);
        }
        if let Some(params) = rules.thinking_budget() {
            self.thinking.append(params, text, output == rules.grammar_position());
        }
    }

    /// Computes what holds for the next row, after `output` emitted tokens; adds bans to `banned`.
    fn look(&mut self, rules: &Rules, text: &TextView<'_>, grams: &Index, output: u64, banned: &mut Vec<u32>) {
        self.nudges = Vec::new();
        if let Some(biased) = rules.biased() {
            let holding = biased.holding(self.biased);
            bias::add(rules.sequence_bias(), &holding, rules.biases_late(), &mut self.nudges);
        }
        let counted = grams.counted.as_ref();
        dry::penalise(rules.dry(), text, &self.matches, self.since, counted, &mut self.nudges);
        bias::sum(&mut self.nudges);
        self.nudges.shrink_to_fit();
        if let (Some(params), Some(index)) = (rules.no_repeat_ngram(), &grams.ngram) {
            ngram::ban(params, text, index, banned);
            in_order_once(banned);
        }
        if let (Some(params), Some(prompt)) = (rules.no_prompt_ngram(), &grams.prompt) {
            prompt.ban(params, text, banned);
            in_order_once(banned);
        }
        self.forced = rules.thinking_budget().and_then(|params| self.thinking.forced(params));
        self.end = end(rules, text, output);
        self.mark = rules
            .params()
            .watermark()
            .map_or(watermark::MarkContext::Unmarked, |params| watermark::context_at(params, text, output));
    }

    /// The token that has to come next.
    pub(super) fn forced(&self) -> &[u32] {
        self.forced.as_slice()
    }

    /// Whether one of the next `count` tokens may be a forced one.
    pub(super) fn may_force_within(&self, rules: &Rules, count: usize) -> bool {
        rules.thinking_budget().is_some_and(|params| self.thinking.may_force_within(params, count))
    }

    /// What the mark of the next token depends on.
    pub(super) fn mark(&self) -> watermark::MarkContext {
        self.mark
    }

    /// Why the text ends by its last tokens, if it does.
    pub(super) fn end(&self) -> Option<FinishReason> {
        self.end
    }

    /// Whether the text thinks.
    pub(super) fn thinks(&self) -> bool {
        self.thinking.is_inside()
    }

    /// What is added to single logits, in token order.
    pub(super) fn nudges(&self) -> &[Nudge] {
        &self.nudges
    }

    fn bytes(&self) -> usize {
        self.matches.capacity() * size_of::<Match>() + self.nudges.capacity() * size_of::<Nudge>()
    }
}
