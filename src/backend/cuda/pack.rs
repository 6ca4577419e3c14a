//! Jobs of a batch as the kernels take them, and results back from what they wrote. Plain data and arithmetic: the same
//! with a GPU and in the tests that run the kernels on a CPU.

use super::abi::{self, ReportedToken, RowResult as Written};
use crate::backend::RowJob;
use crate::sampling::adjust::{Penalties, TokenAdjust};
use crate::sampling::mass;
use crate::sampling::row::{Action, LogprobsMode, RowError, RowOutput, RowResult, RowSpec, TokenLogprobs};
use bytemuck::bytes_of;
use std::iter::Peekable;

/// Rows begin at multiples of this many bytes and may be read up to one.
const ALIGNMENT: usize = 16;

/// Why a row has no kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoKernel {
    /// More alternatives are asked for than a list holds.
    TopLogprobs,
    /// The distribution that a draft token is drawn from has to be kept.
    Propose,
    /// All that is known about its tokens is more than a launch takes.
    TooLarge,
    /// It has a chain of samplers.
    Chain,
    /// Verification of drafts.
    Verify,
    /// A penalty whose strength depends on distance, the encoder repetition penalty or the length penalty.
    History,
    /// The kernel contradicted itself, which is a bug.
    Contradiction,
}

impl NoKernel {
    /// Every reason.
    pub const ALL: [NoKernel; 7] = [
        Self::TopLogprobs,
        Self::Propose,
        Self::TooLarge,
        Self::Chain,
        Self::Verify,
        Self::History,
        Self::Contradiction,
    ];

    /// Its name as a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TopLogprobs => "top_logprobs",
            Self::Propose => "propose",
            Self::TooLarge => "too_large",
            Self::Chain => "chain",
            Self::Verify => "verify",
            Self::History => "history",
            Self::Contradiction => "contradiction",
        }
    }
}

/// Whether the kernels can do this row.
///
/// # Errors
/// With the reason when they cannot.
pub fn has_kernel(spec: &RowSpec<'_>) -> Result<(), NoKernel> {
    match spec.action {
        Action::Propose { .. } => Err(NoKernel::Propose),
        _ if spec.chain.is_some() => Err(NoKernel::Chain),
        _ if spec.logprobs.is_some_and(|wanted| wanted.top_n > abi::LISTED) => Err(NoKernel::TopLogprobs),
        _ if has_history(&spec.penalties) => Err(NoKernel::History),
        _ => Ok(()),
    }
}

/// Whether penalties do more than the kernels know of.
fn has_history(penalties: &Penalties) -> bool {
    penalties.encoder != 1.0 || penalties.decay.decay_n > 0 || penalties.length != 0.0
}

/// Gathers rows of one launch. Its lists are kept from launch to launch.
#[derive(Debug)]
pub struct Packer {
    /// Tokens of a chunk.
    chunk: u32,
    rows: Vec<abi::RowJob>,
    adjusts: Vec<TokenAdjust>,
    /// First adjusts of chunks, then requested tokens, of each row.
    words: Vec<u32>,
    logits_bytes: usize,
    reported: usize,
}

impl Packer {
    /// For kernels that cut rows into chunks of this many tokens.
    #[must_use]
    pub fn new(chunk: u32) -> Self {
        Self { chunk, rows: vec![], adjusts: vec![], words: vec![], logits_bytes: 0, reported: 0 }
    }

    /// Forgets the rows.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.adjusts.clear();
        self.words.clear();
        self.logits_bytes = 0;
        self.reported = 0;
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Adds a row that [`has_kernel`].
    pub fn push(&mut self, job: &RowJob<'_>) {
        let spec = &job.spec;
        let vocab_size = job.logits.vocab_size() as u32;
        let first_adjust = self.adjusts.len();
        let only_listed = merge(spec, &mut self.adjusts);
        let adjusts = &self.adjusts[first_adjust..];
        let index_at = self.words.len();
        if !adjusts.is_empty() {
            let chunks = vocab_size.div_ceil(self.chunk);
            self.words.extend((0..=chunks).map(|c| adjusts.partition_point(|a| a.token < c * self.chunk) as u32));
        }
        let requested_at = self.words.len();
        let (report, top_n, requested) = match spec.logprobs {
            None => (0, 0, &[][..]),
            Some(wanted) if wanted.mode == LogprobsMode::Raw => (abi::REPORT_RAW, wanted.top_n, wanted.tokens),
            Some(wanted) => (abi::REPORT_PROCESSED, wanted.top_n, wanted.tokens),
        };
        self.words.extend_from_slice(requested);
        let (uniform, token, score) = match spec.action {
            Action::Draw { uniform } | Action::Propose { uniform } => (uniform, 0, 0),
            Action::Score { token } => (0, token, abi::SCORE),
        };
        let greedy = if spec.filters.temperature == 0.0 { abi::GREEDY } else { 0 };
        self.rows.push(abi::RowJob {
            // Offsets within their parts, until they are written.
            logits: self.logits_bytes as u64,
            adjusts: (first_adjust * size_of::<TokenAdjust>()) as u64,
            adjust_index: (index_at * size_of::<u32>()) as u64,
            requested: (requested_at * size_of::<u32>()) as u64,
            report: (self.reported * size_of::<ReportedToken>()) as u64,
            uniform,
            min_p_need: if spec.filters.min_p > 0.0 { mass::min_p_need(spec.filters.min_p) } else { 0 },
            top_p_fraction: mass::fraction(spec.filters.top_p.min(1.0)),
            vocab_size,
            flags: greedy | score | report | if only_listed { abi::ONLY_LISTED } else { 0 },
            top_k: spec.filters.top_k,
            adjust_count: adjusts.len() as u32,
            scale: scale(spec),
            raw_scale: mass::scale(1.0),
            repetition: spec.penalties.repetition,
            frequency: spec.penalties.frequency,
            presence: spec.penalties.presence,
            token,
            top_n,
            requested_count: requested.len() as u32,
        });
        self.logits_bytes += job.logits.bytes().len().next_multiple_of(ALIGNMENT);
        self.reported += top_n as usize + requested.len();
    }

    /// Bytes of the inputs.
    #[must_use]
    pub fn inputs_bytes(&self) -> usize {
        self.logits_at() + self.logits_bytes
    }

    /// Bytes of the outputs.
    #[must_use]
    pub fn outputs_bytes(&self) -> usize {
        self.reports_at() + self.reported * size_of::<ReportedToken>()
    }

    /// Writes the inputs. `jobs` are those that were pushed.
    ///
    /// # Panics
    /// If `to` is shorter than [`Self::inputs_bytes`].
    pub fn write<'a>(&self, jobs: impl Iterator<Item = &'a RowJob<'a>>, to: &mut [u8]) {
        let (adjusts_at, words_at, logits_at) = (self.adjusts_at(), self.words_at(), self.logits_at());
        let (rows, rest) = to[..self.inputs_bytes()].split_at_mut(adjusts_at);
        for ((row, job), place) in self.rows.iter().zip(jobs).zip(rows.chunks_exact_mut(size_of::<abi::RowJob>())) {
            let placed = abi::RowJob {
                logits: row.logits + logits_at as u64,
                adjusts: row.adjusts + adjusts_at as u64,
                adjust_index: row.adjust_index + words_at as u64,
                requested: row.requested + words_at as u64,
                report: row.report + self.reports_at() as u64,
                ..*row
            };
            place.copy_from_slice(bytes_of(&placed));
            let from = logits_at - adjusts_at + row.logits as usize;
            let bytes = job.logits.bytes();
            rest[from..from + bytes.len()].copy_from_slice(bytes);
        }
        for (adjust, place) in self.adjusts.iter().zip(rest.chunks_exact_mut(size_of::<TokenAdjust>())) {
            // Written field by field: the type is the specification's, which knows nothing of bytes.
            place[0..4].copy_from_slice(&adjust.token.to_le_bytes());
            place[4..8].copy_from_slice(&adjust.flags.to_le_bytes());
            place[8..12].copy_from_slice(&adjust.bias.to_le_bytes());
            place[12..16].copy_from_slice(&adjust.output_count.to_le_bytes());
        }
        let words: &[u8] = bytemuck::cast_slice(&self.words);
        rest[words_at - adjusts_at..][..words.len()].copy_from_slice(words);
    }

    /// The result of the row that was pushed as number `row`. `None` when the kernel contradicted itself.
    ///
    /// # Panics
    /// If `outputs` is shorter than [`Self::outputs_bytes`].
    #[must_use]
    pub fn result(&self, row: usize, job: &RowJob<'_>, outputs: &[u8]) -> Option<RowResult> {
        let at = row * size_of::<Written>();
        let written: Written = bytemuck::pod_read_unaligned(&outputs[at..at + size_of::<Written>()]);
        Some(match written.status {
            abi::OK => Ok(self.output(row, job, &written, outputs)),
            abi::NAN => Err(RowError::Nan),
            abi::POSITIVE_INFINITY => Err(RowError::PositiveInfinity),
            abi::ALL_MASKED => Err(RowError::AllMasked),
            _ => return None,
        })
    }

    fn output(&self, row: usize, job: &RowJob<'_>, written: &Written, outputs: &[u8]) -> RowOutput {
        let logprobs = job.spec.logprobs.map(|wanted| {
            let scale = if wanted.mode == LogprobsMode::Raw { mass::scale(1.0) } else { scale(&job.spec) };
            let log_total = mass::log_total(written.total);
            let logprob = |logit| mass::logprob(mass::exponent(logit, written.max, scale), log_total);
            let reported = |i: usize| -> ReportedToken {
                let at = self.reports_at() + self.rows[row].report as usize + i * size_of::<ReportedToken>();
                bytemuck::pod_read_unaligned(&outputs[at..at + size_of::<ReportedToken>()])
            };
            let top = (0..written.top_count as usize).map(reported).map(|r| (r.token, logprob(r.logit))).collect();
            let requested = 0..wanted.tokens.len();
            let requested = requested.map(|i| logprob(reported(wanted.top_n as usize + i).logit)).collect();
            TokenLogprobs { logprob: logprob(written.logit), rank: written.rank, top, requested }
        });
        RowOutput { token: written.token, logprobs, kept: None }
    }

    fn adjusts_at(&self) -> usize {
        self.rows.len() * size_of::<abi::RowJob>()
    }

    fn words_at(&self) -> usize {
        self.adjusts_at() + self.adjusts.len() * size_of::<TokenAdjust>()
    }

    fn logits_at(&self) -> usize {
        (self.words_at() + self.words.len() * size_of::<u32>()).next_multiple_of(ALIGNMENT)
    }

    fn reports_at(&self) -> usize {
        self.rows.len() * size_of::<Written>()
    }
}

/// The exponent scale of what a row is drawn from. Greedy has one token, of mass one at any scale.
fn scale(spec: &RowSpec<'_>) -> f32 {
    if spec.filters.temperature == 0.0 { 1.0 } else { mass::scale(spec.filters.temperature) }
}

/// All that is known about single tokens as one ascending list, appended to `to`. True when only those may be emitted.
fn merge(spec: &RowSpec<'_>, to: &mut Vec<TokenAdjust>) -> bool {
    let mut known = spec.adjusts.iter().peekable();
    let mut banned = spec.banned.iter().copied().peekable();
    if let Some(allowed) = spec.allowed {
        to.extend(allowed.iter().map(|&token| take(token, &mut known, &mut banned)));
        return true;
    }
    loop {
        let next = [known.peek().map(|adjust| adjust.token), banned.peek().copied()].into_iter().flatten().min();
        let Some(token) = next else { return false };
        to.push(take(token, &mut known, &mut banned));
    }
}

/// What is known about a token; what is known about those before it is passed over.
fn take(
    token: u32,
    known: &mut Peekable<impl Iterator<Item = TokenAdjust>>,
    banned: &mut Peekable<impl Iterator<Item = u32>>,
) -> TokenAdjust {
    while known.next_if(|adjust| adjust.token < token).is_some() {}
    while banned.next_if(|&b| b < token).is_some() {}
    let adjust = known.next_if(|adjust| adjust.token == token);
    let adjust = adjust.unwrap_or(TokenAdjust { token, ..TokenAdjust::default() });
    let ban = if banned.next_if_eq(&token).is_some() { TokenAdjust::BANNED } else { 0 };
    TokenAdjust { flags: adjust.flags | ban, ..adjust }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Decay;
    use crate::sampling::adjust::Adjusts;
    use crate::sampling::row::Filters;

    #[test]
    fn penalties_that_kernels_do_not_know_are_handed_over() {
        let filters = Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
        let (adjusts, action) = (Adjusts::default(), Action::Draw { uniform: 0 });
        let row = |penalties| RowSpec {
            filters,
            chain: None,
            penalties,
            adjusts,
            banned: &[],
            allowed: None,
            action,
            logprobs: None,
        };
        let off = Penalties { repetition: 1.2, frequency: 0.1, presence: 0.1, ..Penalties::OFF };
        assert_eq!(has_kernel(&row(off)), Ok(()));
        let decay = Decay { place: 3, last_n: 1, decay_n: 1 };
        for unknown in
            [Penalties { encoder: 1.1, ..off }, Penalties { decay, ..off }, Penalties { length: -0.5, ..off }]
        {
            assert_eq!(has_kernel(&row(unknown)), Err(NoKernel::History), "{unknown:?}");
        }
    }
}
