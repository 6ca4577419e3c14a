//! What a launch is asked about a row, and which rows have no kernel.

use super::abi;
use crate::backend::RowJob;
use crate::backend::cpu::{Proposed, Source};
use crate::sampling::logits::Logits;
use crate::sampling::row::{Action, LogprobsMode, RowSpec};
use crate::speculative::weights::Residual;

/// The most tokens that a mask may leave for kernels, which get them as a list: 64 KiB, an eighth of a row of 128,256
/// f32 logits.
const MAX_LEFT: usize = 4096;

/// Why a row has no kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoKernel {
    /// More alternatives are asked for than a list holds.
    TopLogprobs,
    /// What is known about its tokens takes more than a launch takes, or it has more logits than a team of blocks can
    /// hold.
    TooLarge,
    /// It has a chain of samplers, and either it is not on the device, or the kernels cannot begin the chain, or they
    /// cannot report all that is left of it.
    Chain,
    /// It has to report how its token was chosen.
    Report,
    /// Its text has a watermark.
    Watermark,
    /// A token has a bias before the penalties and one after them, as when DRY comes after them.
    TwoBiases,
    /// It has a mask that leaves many tokens, or none.
    TokenMask,
    /// Only some of its tokens are known.
    TopN,
    /// It wants logprobs of the distribution that the filters see.
    TemperedLogprobs,
    /// Its logits are in the host's memory, and [`HostRows::Cpu`] leaves such rows to the CPU.
    HostMemory,
    /// The kernel contradicted itself, which is a bug.
    Contradiction,
}

impl NoKernel {
    /// Every reason.
    pub const ALL: [NoKernel; 11] = [
        Self::TopLogprobs,
        Self::TooLarge,
        Self::Chain,
        Self::Report,
        Self::Watermark,
        Self::TwoBiases,
        Self::TokenMask,
        Self::TopN,
        Self::TemperedLogprobs,
        Self::HostMemory,
        Self::Contradiction,
    ];

    /// Its name as a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TopLogprobs => "top_logprobs",
            Self::TooLarge => "too_large",
            Self::Chain => "chain",
            Self::Report => "report",
            Self::Watermark => "watermark",
            Self::TwoBiases => "two_biases",
            Self::TokenMask => "token_mask",
            Self::TopN => "top_n",
            Self::TemperedLogprobs => "tempered_logprobs",
            Self::HostMemory => "host_memory",
            Self::Contradiction => "contradiction",
        }
    }
}

/// Who samples and verifies rows that are not on the device. The tokens are the same either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostRows {
    /// The CPU, where the rows are.
    Cpu,
    /// The device, to which the rows are brought.
    Cuda,
}

/// Which rows launches take, and how large a row may be.
#[derive(Debug, Clone, Copy)]
pub struct LaunchLimits {
    /// The most bytes of a row, with all that is known about it.
    pub bytes: usize,
    /// The most logits of a row.
    pub logits: usize,
    /// How many rows run at once.
    pub at_once: usize,
    /// Who takes rows that are not on the device.
    pub host_rows: HostRows,
}

impl LaunchLimits {
    /// Whether kernels may read a row, by where its logits are and of what kind.
    ///
    /// # Errors
    /// The reason why they may not.
    pub(super) fn check_logits(&self, row: &RowJob<'_>) -> Result<(), NoKernel> {
        if row.logits.listed().is_some() {
            Err(NoKernel::TopN)
        } else if self.host_rows == HostRows::Cpu && !row.logits.is_on_device() {
            Err(NoKernel::HostMemory)
        } else {
            Ok(())
        }
    }

    /// Whether a row fits that needs so many bytes of inputs.
    ///
    /// # Errors
    /// The reason why it does not.
    pub(super) fn check_size(&self, row: &RowJob<'_>, bytes: usize) -> Result<(), NoKernel> {
        let fits = bytes <= self.bytes && row.logits.vocab_size() <= self.logits;
        if fits { Ok(()) } else { Err(NoKernel::TooLarge) }
    }
}

/// Whether the kernels can do this row.
///
/// # Errors
/// The reason why they cannot.
pub fn has_kernel(spec: &RowSpec<'_>) -> Result<(), NoKernel> {
    match spec.logprobs {
        _ if spec.chain.is_some() && !has_idle_chain(spec) => Err(NoKernel::Chain),
        _ if spec.mark.is_some() => Err(NoKernel::Watermark),
        Some(wanted) if wanted.top_n > abi::LISTED => Err(NoKernel::TopLogprobs),
        Some(wanted) if wanted.mode == LogprobsMode::Tempered => Err(NoKernel::TemperedLogprobs),
        _ if spec.report.is_some() => Err(NoKernel::Report),
        _ if !leaves_few(spec) => Err(NoKernel::TokenMask),
        _ if spec.adjusts.have_two_biases(&spec.penalties) => Err(NoKernel::TwoBiases),
        _ => Ok(()),
    }
}

/// Whether a mask, if there is one, leaves some tokens and few enough for a list.
fn leaves_few(spec: &RowSpec<'_>) -> bool {
    let Some(mask) = spec.mask else { return true };
    let left = match spec.allowed {
        Some(allowed) => allowed.iter().filter(|&&token| mask.allows(token)).count(),
        None => mask.count(),
    };
    (1..=MAX_LEFT).contains(&left)
}

/// Whether nothing depends on the row's chain: it only scores a token, by its raw logprobs.
fn has_idle_chain(spec: &RowSpec<'_>) -> bool {
    spec.is_scored_raw() && spec.report.is_none()
}

/// A row of a launch, and what is asked about it.
#[derive(Debug)]
pub struct Asked<'a> {
    /// Its logits and parameters.
    pub row: RowJob<'a>,
    /// What is asked about it.
    pub(super) task: RowTask<'a>,
}

/// What is asked about a row.
#[derive(Debug)]
pub(super) enum RowTask<'a> {
    /// Its own action and report.
    Row,
    /// The same, but without ranks.
    Unranked,
    /// The sum over what is left of its distribution. The action is the draw from that.
    Weigh(Weigh<'a>),
}

/// How a row whose distribution is known is weighed.
#[derive(Debug)]
pub(super) struct Weigh<'a> {
    /// The last token that its filters left.
    pub(super) last_key: u64,
    /// The logit of mass one.
    pub(super) max: f32,
    /// The least mass that counts.
    pub(super) need: u64,
    pub(super) by: WeighBy<'a>,
}

#[derive(Debug)]
pub(super) enum WeighBy<'a> {
    /// By the terms of the entropy.
    Entropy,
    /// By the masses of a draft.
    Drafted(&'a Proposed<'a>),
    /// By what is left beyond these drafts, subtracted one after the other.
    Beyond(Vec<(&'a Proposed<'a>, Residual)>),
}

/// The kernels, by what they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// `sample_rows`.
    Sample,
    /// `weigh_rows`.
    Weigh,
}

impl Kernel {
    /// Every kernel.
    pub const ALL: [Self; 2] = [Self::Sample, Self::Weigh];

    /// The part of its name before the number format.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sample => "sample_rows",
            Self::Weigh => "weigh_rows",
        }
    }
}

impl<'a> Asked<'a> {
    /// A plain row.
    #[must_use]
    pub fn row(row: RowJob<'a>) -> Self {
        Self { row, task: RowTask::Row }
    }

    /// The same, without the rank of its token.
    #[must_use]
    pub fn unranked(row: RowJob<'a>) -> Self {
        Self { row, task: RowTask::Unranked }
    }

    /// The kernel that answers it.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        match self.task {
            RowTask::Row | RowTask::Unranked => Kernel::Sample,
            RowTask::Weigh(_) => Kernel::Weigh,
        }
    }

    pub(super) fn drafts(&self) -> impl ExactSizeIterator<Item = (&'a Proposed<'a>, Residual)> + '_ {
        let none = Residual { target: 0.0, draft: 0.0 };
        let (one, several) = match &self.task {
            RowTask::Row | RowTask::Unranked => (None, &[][..]),
            RowTask::Weigh(weigh) => match &weigh.by {
                WeighBy::Entropy => (None, &[][..]),
                WeighBy::Drafted(draft) => (Some(*draft), &[][..]),
                WeighBy::Beyond(drafts) => (None, drafts.as_slice()),
            },
        };
        (0..several.len() + usize::from(one.is_some())).map(move |i| one.map_or_else(|| several[i], |one| (one, none)))
    }

    /// The most tokens that the list of its distribution may have, if that is kept and the row is not greedy. A list
    /// takes no more memory than the row.
    pub(super) fn most_left(&self) -> Option<usize> {
        let RowJob { logits, spec } = &self.row;
        let keeps = matches!((&self.task, spec.action), (RowTask::Row, Action::Propose { .. }));
        let fitting = logits.byte_len() / size_of::<(u32, u64)>();
        let top_k = if spec.filters.top_k > 0 { spec.filters.top_k } else { u32::MAX };
        let most = fitting.min(abi::LISTED as usize).min(top_k as usize);
        // A greedy row has only one token, which is known.
        (keeps && spec.filters.temperature != 0.0).then_some(most)
    }

    /// How many bytes of the inputs it may need.
    #[must_use]
    pub fn room(&self) -> usize {
        room(&self.row, self.drafts().map(|(draft, _)| draft))
    }
}

/// How many bytes of the inputs a row may need, together with these drafts.
pub(super) fn room<'a>(job: &RowJob<'_>, drafts: impl Iterator<Item = &'a Proposed<'a>>) -> usize {
    let spec = &job.spec;
    let mut known = spec.adjusts.len_bound() + spec.banned.len() + spec.allowed.map_or(0, <[u32]>::len);
    known += spec.mask.map_or(0, |mask| mask.count().min(MAX_LEFT));
    let (mut rows, mut count) = (0, 0);
    for draft in drafts {
        known += listed(draft).count();
        rows += row_of(draft).map_or(0, |row| row.bytes().len()) + 16 + size_of::<abi::DraftRow>();
        count += 1;
    }
    let wanted = spec.logprobs.map_or(0, |wanted| wanted.tokens.len());
    job.logits.byte_len() + table_bytes(&job.logits) + rows + (16 + 8 * count) * known + 4 * wanted + 1024
}

/// How many bytes the tokens of a row take that is spread on the device.
pub(super) fn table_bytes(row: &Logits<'_>) -> usize {
    row.spread().filter(|_| row.is_on_device()).map_or(0, |spread| size_of_val(spread.token_ids))
}

/// The tokens whose masses in a draft do not come from the draft's row.
pub(super) fn listed<'a>(draft: &'a Proposed<'_>) -> impl Iterator<Item = u32> + 'a {
    let (entries, patches) = match &draft.source {
        Source::List(entries) => (&entries[..], &[][..]),
        Source::Row(row) => (&[][..], &row.patches[..]),
        Source::Sent(_) => (&[][..], &[][..]),
    };
    entries.iter().map(|entry| entry.0).chain(patches.iter().map(|patch| patch.0))
}

/// The row that all other masses of a draft come from.
pub(super) fn row_of<'a>(draft: &'a Proposed<'_>) -> Option<Logits<'a>> {
    match &draft.source {
        Source::List(_) => None,
        Source::Row(row) => Some(row.logits()),
        Source::Sent(probs) => Some(*probs),
    }
}
