//! Presets: named sets of parameters that fill in fields which a sequence or stream leaves absent.

use super::watermark::Watermark;
use super::{FieldError, GivenFilters, SamplingParams};

/// Copies one parameter from one set to another.
pub type CopyParameter = fn(&SamplingParams, &mut SamplingParams);

/// A named set of parameters.
#[derive(Debug, Clone)]
pub struct Preset {
    /// The name by which it is chosen.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Its parameters as text for people, one per line.
    pub written: String,
    params: SamplingParams,
    copies: Vec<CopyParameter>,
    pattern_tokens: usize,
    entries: usize,
    filters: GivenFilters,
}

impl Preset {
    /// A preset that sets the parameters that `copies` copy, to their values in `params`.
    #[must_use]
    pub fn new(
        (name, description, written): (String, String, String),
        params: SamplingParams,
        copies: Vec<CopyParameter>,
    ) -> Self {
        let (pattern_tokens, entries) = (params.pattern_tokens(), params.listed_entries());
        let filters = GivenFilters::by(|to| copies.iter().for_each(|copy| copy(&params, to)));
        Self { name, description, written, params, copies, pattern_tokens, entries, filters }
    }

    /// The number of tokens in its sequence breakers, bad words, sequence biases and starts of grammars. They are
    /// prepared again for each sequence that is opened with the preset.
    #[must_use]
    pub fn pattern_tokens(&self) -> usize {
        self.pattern_tokens
    }

    /// The number of entries in its other lists. They are copied for each such sequence.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Whether the preset bans or biases single tokens, or favours tokens that end the text.
    #[must_use]
    pub fn changes_tokens(&self) -> bool {
        self.params.changes_tokens()
    }

    /// The watermark that it sets. `None`: it turns watermarks off, or does not set one.
    #[must_use]
    pub fn watermark(&self) -> Option<&Watermark> {
        self.params.watermark()
    }

    /// Which filters the preset sets.
    #[must_use]
    pub fn filters(&self) -> GivenFilters {
        self.filters
    }

    /// Sets the preset's parameters in `to`. Other parameters keep their values.
    pub fn apply(&self, to: &mut SamplingParams) {
        self.copies.iter().for_each(|copy| copy(&self.params, to));
    }
}

/// A name as an error message repeats it: quoted, and only its beginning if it is long.
fn told(name: &str) -> String {
    const TOLD: usize = 64;
    match name.char_indices().nth(TOLD) {
        Some((end, _)) => format!("{:?}...", &name[..end]),
        None => format!("{name:?}"),
    }
}

/// The presets of a server, by name.
#[derive(Debug, Clone, Default)]
pub struct Presets(Vec<Preset>);

impl Presets {
    /// Most presets of a server.
    pub const MAX: usize = 256;

    /// These presets, sorted by name.
    #[must_use]
    pub fn new(mut presets: Vec<Preset>) -> Self {
        presets.sort_by(|a, b| a.name.cmp(&b.name));
        Self(presets)
    }

    /// The preset called `name`.
    ///
    /// # Errors
    /// There is no preset of that name. The error lists the names that exist.
    pub fn get(&self, name: &str) -> Result<&Preset, FieldError> {
        self.0.iter().find(|preset| preset.name == name).ok_or_else(|| {
            FieldError::new("preset", format!("{} is not a preset of this server; {}", told(name), self.listed()))
        })
    }

    /// The names, or as many of them as fit in an error message.
    fn listed(&self) -> String {
        const LISTED: usize = 16;
        let names: Vec<&str> = self.0.iter().take(LISTED).map(|preset| preset.name.as_str()).collect();
        match self.0.len() {
            0 => "it has none".to_owned(),
            count if count <= LISTED => format!("known: {}", names.join(", ")),
            count => format!("known: {} and {} more, which GetServerInfo lists", names.join(", "), count - LISTED),
        }
    }

    /// All presets.
    pub fn iter(&self) -> impl Iterator<Item = &Preset> {
        self.0.iter()
    }
}

impl SamplingParams {
    /// Number of tokens and bytes in the lists that an automaton is made of.
    fn pattern_tokens(&self) -> usize {
        let patterns = self.bad_words.iter().chain(&self.history.dry_sequence_breakers);
        let patterns = patterns.chain(self.history.sequence_bias.iter().map(|bias| &bias.token_ids)).map(Vec::as_slice);
        let starts = self.history.grammar.iter().flat_map(|grammar| grammar.start.starts());
        let tokens: usize = patterns.chain(starts).map(<[u32]>::len).sum();
        // An automaton over texts has a node for each byte.
        tokens + self.history.dry_sequence_breaker_texts.iter().map(String::len).sum::<usize>()
    }

    /// Number of entries in all other lists.
    fn listed_entries(&self) -> usize {
        let (samplers, history) = (&self.samplers, &self.history);
        let own = [&self.allowed_token_ids, &self.banned_token_ids, &self.stop_token_ids];
        let own = own.into_iter().chain([&samplers.xtc_ignore_token_ids, &samplers.top_p_reset_token_ids]);
        let own = own.chain(self.logprobs.as_ref().map(|logprobs| &logprobs.token_ids));
        let own = own.chain(samplers.report.as_ref().map(|report| &report.why_not_token_ids));
        let own = own.chain(history.no_repeat_ngram.as_ref().map(|ngram| &ngram.whitelist));
        let own = own
            .chain(history.token_ban_ranges.iter().map(|range| &range.token_ids))
            .chain(&history.stop_token_sequences)
            .chain(history.thinking_budget.iter().flat_map(|thinking| thinking.lists()));
        self.logit_bias.len() + own.map(Vec::len).sum::<usize>()
    }
}

/// Two sets of presets are equal if they set every parameter to the same value.
impl PartialEq for Presets {
    fn eq(&self, other: &Self) -> bool {
        let told = |preset: &Preset| {
            let mut params = SamplingParams::default();
            preset.apply(&mut params);
            (preset.name.clone(), preset.description.clone(), params)
        };
        self.0.iter().map(told).eq(other.0.iter().map(told))
    }
}
