//! Watermarks: parameters that mark a text, so that whoever has the key can later tell it from text that was not made
//! here. The formulas of each mark are documented at its file in [`mark`](crate::sampling::watermark). The ranges are
//! checked here.

use super::acceptance::AcceptanceRule;
use super::check::in_range;
use super::{FieldError, SamplingParams};

/// Longest context of a mark, in tokens.
pub const MAX_CONTEXT_WIDTH: u32 = 8;
/// Largest bias of a greenlist.
pub const MAX_GREEN_BIAS: f32 = 100.0;
/// Least share of the vocabulary that is on a greenlist. The largest share is 1 less this.
pub const MIN_GREENLIST_RATIO: f32 = 0.001;
/// Longest n-gram of SynthID.
pub const MAX_NGRAM_LEN: u32 = 16;
/// Most layers of a tournament.
pub const MAX_LAYERS: usize = 64;
/// Most earlier contexts that are looked at for a position. It bounds the cost of a token.
pub const MAX_CONTEXT_HISTORY: u32 = 1 << 14;
/// Largest table of SynthID, in bits.
pub const MAX_TABLE_SIZE: u32 = 1 << 20;

/// A watermarking scheme and its parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum Watermark {
    /// Kirchenbauer et al. 2023: tokens of a greenlist are favoured.
    Kgw(KgwParams),
    /// Dathathri et al. 2024: a tournament among the tokens.
    Synthid(SynthidParams),
    /// Aaronson 2022: the draw itself follows the key.
    Gumbel(GumbelParams),
}

/// What a greenlist depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SeedingScheme {
    /// The tokens before.
    #[default]
    Lefthash,
    /// For each token, on the token itself and on one of the tokens before it.
    Selfhash,
}

/// Parameters of KGW. [`Default`] has the values of Hugging Face Transformers.
#[derive(Debug, Clone, PartialEq)]
pub struct KgwParams {
    /// The secret.
    pub hashing_key: u64,
    /// Share of the vocabulary that is green. 0.001 ..= 0.999; rounded to 2^-16.
    pub greenlist_ratio: f32,
    /// Added to the logits of green tokens. 0 ..= 100.
    pub bias: f32,
    /// What the greenlist depends on.
    pub seeding_scheme: SeedingScheme,
    /// How many tokens before a token its greenlist depends on. 1 ..= 8.
    pub context_width: u32,
}

impl Default for KgwParams {
    fn default() -> Self {
        Self::with_scheme(SeedingScheme::Lefthash)
    }
}

impl KgwParams {
    /// The defaults of a scheme. Each scheme's width is the one that its papers recommend.
    #[must_use]
    pub fn with_scheme(seeding_scheme: SeedingScheme) -> Self {
        let context_width = if seeding_scheme == SeedingScheme::Lefthash { 1 } else { 4 };
        Self { hashing_key: 15_485_863, greenlist_ratio: 0.25, bias: 2.0, seeding_scheme, context_width }
    }
}

/// Parameters of SynthID.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthidParams {
    /// The secret: one key for each layer. 1 to 64.
    pub keys: Vec<u64>,
    /// Length of an n-gram in tokens: the next token and the tokens before it that decide its marks. 2 ..= 16.
    pub ngram_len: u32,
    /// A context that appeared at most this many tokens ago is not marked again. 0 ..= 16,384.
    pub context_history_size: u32,
    /// Bits of the table that g-values come from. 2 ..= 2^20.
    pub sampling_table_size: u32,
    /// The seed of that table.
    pub sampling_table_seed: u32,
    /// The first `ngram_len - 1` tokens are not marked.
    pub skip_first_ngram_calls: bool,
}

impl SynthidParams {
    /// Parameters with these keys, and otherwise the defaults of Hugging Face Transformers.
    #[must_use]
    pub fn new(keys: Vec<u64>) -> Self {
        Self {
            keys,
            ngram_len: 5,
            context_history_size: 1024,
            sampling_table_size: 1 << 16,
            sampling_table_seed: 0,
            skip_first_ngram_calls: false,
        }
    }
}

/// Parameters of the Gumbel mark.
#[derive(Debug, Clone, PartialEq)]
pub struct GumbelParams {
    /// The secret.
    pub key: u64,
    /// The number of preceding tokens that the draw depends on. 1 ..= 8.
    pub context_width: u32,
    /// A context that appeared at most this many tokens ago is not marked again. 0 ..= 16,384.
    pub context_history_size: u32,
}

impl GumbelParams {
    /// Parameters with this key, and otherwise the defaults.
    #[must_use]
    pub fn new(key: u64) -> Self {
        Self { key, context_width: 4, context_history_size: 1024 }
    }
}

impl Watermark {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to the mark.
    pub fn validate(&self) -> Result<(), FieldError> {
        match self {
            Self::Kgw(kgw) => kgw.validate(),
            Self::Synthid(synthid) => synthid.validate(),
            Self::Gumbel(gumbel) => gumbel.validate(),
        }
        .map_err(|e| e.within(self.name()))
    }

    /// The scheme's name in the schema.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kgw(_) => "kgw",
            Self::Synthid(_) => "synthid",
            Self::Gumbel(_) => "gumbel",
        }
    }

    /// Size and seed of the table that the scheme needs. `None`: it needs no table.
    #[must_use]
    pub fn table(&self) -> Option<(u32, u32)> {
        match self {
            Self::Synthid(synthid) => Some((synthid.sampling_table_size, synthid.sampling_table_seed)),
            Self::Kgw(_) | Self::Gumbel(_) => None,
        }
    }

    /// Bytes that the mark takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let keys = if let Self::Synthid(synthid) = self { synthid.keys.capacity() } else { 0 };
        size_of::<Self>() + keys * size_of::<u64>()
    }
}

impl KgwParams {
    fn validate(&self) -> Result<(), FieldError> {
        in_range("greenlist_ratio", self.greenlist_ratio, MIN_GREENLIST_RATIO, 1.0 - MIN_GREENLIST_RATIO, "")?;
        in_range("bias", self.bias, 0.0, MAX_GREEN_BIAS, "")?;
        in_range("context_width", self.context_width, 1, MAX_CONTEXT_WIDTH, "")
    }
}

impl SynthidParams {
    fn validate(&self) -> Result<(), FieldError> {
        if self.keys.is_empty() || self.keys.len() > MAX_LAYERS {
            let message = format!("has {} entries, must have 1 to {MAX_LAYERS}, one for each layer", self.keys.len());
            return Err(FieldError::new("keys", message));
        }
        let again = |i: &usize| self.keys[..*i].contains(&self.keys[*i]);
        if let Some(i) = (1..self.keys.len()).find(again) {
            let message = "repeats an earlier key; equal keys are one layer counted twice, which no detector can correct; use another key";
            return Err(FieldError::new(format!("keys[{i}]"), message));
        }
        in_range("ngram_len", self.ngram_len, 2, MAX_NGRAM_LEN, "")?;
        in_range("context_history_size", self.context_history_size, 0, MAX_CONTEXT_HISTORY, "")?;
        in_range("sampling_table_size", self.sampling_table_size, 2, MAX_TABLE_SIZE, "")
    }
}

impl GumbelParams {
    fn validate(&self) -> Result<(), FieldError> {
        in_range("context_width", self.context_width, 1, MAX_CONTEXT_WIDTH, "")?;
        in_range("context_history_size", self.context_history_size, 0, MAX_CONTEXT_HISTORY, "")
    }
}

impl SamplingParams {
    /// The watermark of the text. `None`: no watermark.
    #[must_use]
    pub fn watermark(&self) -> Option<&Watermark> {
        self.history.watermark.as_deref()
    }

    /// Checks that the text can be marked as requested. A mark that cannot be applied must be refused, not silently
    /// left out.
    pub(super) fn validate_watermark(&self) -> Result<(), FieldError> {
        let Some(mark) = self.watermark() else { return Ok(()) };
        let refused = |message: &str| Err(FieldError::new(format!("watermark.{}", mark.name()), message));
        match mark {
            Watermark::Kgw(_) => Ok(()),
            _ if self.is_greedy() => {
                refused("needs a temperature above 0, since greedy tokens cannot carry it; set temperature, or use kgw")
            }
            Watermark::Synthid(_) if self.samplers.mirostat > 0 => {
                refused("cannot be combined with mirostat, which would learn from the mark; turn one of them off")
            }
            Watermark::Gumbel(_) if !matches!(self.acceptance, AcceptanceRule::Rejection | AcceptanceRule::Block) => {
                refused("needs acceptance rule REJECTION or BLOCK: the others emit draft tokens that carry no mark")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::acceptance::Synthetic;
    use super::*;
    use std::sync::Arc;

    fn fault(mark: Watermark, change: impl FnOnce(&mut SamplingParams)) -> Option<String> {
        let mut params = SamplingParams::default();
        params.history.watermark = Some(Arc::new(mark));
        change(&mut params);
        params.validate(100, 20).err().map(|e| e.field)
    }

    #[test]
    fn each_range_is_checked_and_named() {
        let kgw = |change: fn(&mut KgwParams)| {
            let mut params = KgwParams::default();
            change(&mut params);
            fault(Watermark::Kgw(params), |_| ())
        };
        assert_eq!(kgw(|_| ()), None);
        for ratio in [0.0f32, 1.0, -0.5, f32::NAN] {
            let params = KgwParams { greenlist_ratio: ratio, ..KgwParams::default() };
            assert_eq!(fault(Watermark::Kgw(params), |_| ()).as_deref(), Some("watermark.kgw.greenlist_ratio"));
        }
        assert_eq!(kgw(|p| p.bias = -1.0).as_deref(), Some("watermark.kgw.bias"));
        assert_eq!(kgw(|p| p.bias = f32::INFINITY).as_deref(), Some("watermark.kgw.bias"));
        assert_eq!(kgw(|p| p.context_width = 0).as_deref(), Some("watermark.kgw.context_width"));
        assert_eq!(kgw(|p| p.context_width = 9).as_deref(), Some("watermark.kgw.context_width"));
        let synthid = |change: fn(&mut SynthidParams)| {
            let mut params = SynthidParams::new(vec![1, 2]);
            change(&mut params);
            fault(Watermark::Synthid(params), |_| ())
        };
        assert_eq!(synthid(|_| ()), None);
        assert_eq!(synthid(|p| p.keys = vec![]).as_deref(), Some("watermark.synthid.keys"));
        assert_eq!(synthid(|p| p.keys = vec![1; 65]).as_deref(), Some("watermark.synthid.keys"));
        assert_eq!(synthid(|p| p.keys = vec![7, 1, 7]).as_deref(), Some("watermark.synthid.keys[2]"));
        assert_eq!(synthid(|p| p.ngram_len = 1).as_deref(), Some("watermark.synthid.ngram_len"));
        assert_eq!(synthid(|p| p.ngram_len = 17).as_deref(), Some("watermark.synthid.ngram_len"));
        let history = Some("watermark.synthid.context_history_size");
        assert_eq!(synthid(|p| p.context_history_size = 1 << 15).as_deref(), history);
        assert_eq!(synthid(|p| p.sampling_table_size = 1).as_deref(), Some("watermark.synthid.sampling_table_size"));
        let gumbel = |change: fn(&mut GumbelParams)| {
            let mut params = GumbelParams::new(7);
            change(&mut params);
            fault(Watermark::Gumbel(params), |_| ())
        };
        assert_eq!(gumbel(|_| ()), None);
        assert_eq!(gumbel(|p| p.context_width = 9).as_deref(), Some("watermark.gumbel.context_width"));
        let history = Some("watermark.gumbel.context_history_size");
        assert_eq!(gumbel(|p| p.context_history_size = u32::MAX).as_deref(), history);
    }

    #[test]
    fn what_could_not_be_marked_is_refused_by_name() {
        let (kgw, synthid) = (Watermark::Kgw(KgwParams::default()), Watermark::Synthid(SynthidParams::new(vec![1])));
        let gumbel = Watermark::Gumbel(GumbelParams::new(1));
        let greedy = |p: &mut SamplingParams| p.temperature = 0.0;
        assert_eq!(fault(kgw.clone(), greedy), None);
        assert_eq!(fault(synthid.clone(), greedy).as_deref(), Some("watermark.synthid"));
        assert_eq!(fault(gumbel.clone(), greedy).as_deref(), Some("watermark.gumbel"));
        assert_eq!(fault(synthid.clone(), |p| p.samplers.mirostat = 2).as_deref(), Some("watermark.synthid"));
        assert_eq!(fault(gumbel.clone(), |p| p.samplers.mirostat = 2), None);
        for rule in [AcceptanceRule::Greedy, AcceptanceRule::Synthetic(Synthetic { rate: 0.5 })] {
            assert_eq!(fault(gumbel.clone(), |p| p.acceptance = rule).as_deref(), Some("watermark.gumbel"));
            assert_eq!(
                (fault(kgw.clone(), |p| p.acceptance = rule), fault(synthid.clone(), |p| p.acceptance = rule)),
                (None, None)
            );
        }
        assert_eq!(fault(gumbel, |p| p.acceptance = AcceptanceRule::Block), None);
    }
}
