//! What a launch is asked about a row, and what there is no kernel for.

use super::abi;
use crate::backend::RowJob;
use crate::backend::cpu::{Proposed, Source};
use crate::sampling::adjust::Penalties;
use crate::sampling::row::{Action, RowSpec};
use crate::speculative::weights::Residual;

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
    /// A penalty whose strength depends on distance, the encoder repetition penalty or the length penalty.
    History,
    /// It is to say how its token was chosen.
    Report,
    /// Its text is marked.
    Watermark,
    /// The kernel contradicted itself, which is a bug.
    Contradiction,
}

impl NoKernel {
    /// Every reason.
    pub const ALL: [NoKernel; 8] = [
        Self::TopLogprobs,
        Self::Propose,
        Self::TooLarge,
        Self::Chain,
        Self::History,
        Self::Report,
        Self::Watermark,
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
            Self::History => "history",
            Self::Report => "report",
            Self::Watermark => "watermark",
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
        _ if spec.mark.is_some() => Err(NoKernel::Watermark),
        _ if spec.logprobs.is_some_and(|wanted| wanted.top_n > abi::LISTED) => Err(NoKernel::TopLogprobs),
        _ if has_history(&spec.penalties) => Err(NoKernel::History),
        _ if spec.report.is_some() => Err(NoKernel::Report),
        _ => Ok(()),
    }
}

/// Whether penalties do more than the kernels know of.
fn has_history(penalties: &Penalties) -> bool {
    penalties.encoder != 1.0 || penalties.decay.decay_n > 0 || penalties.length != 0.0
}

/// A row of a launch.
#[derive(Debug)]
pub struct Asked<'a> {
    /// Its logits and parameters.
    pub row: RowJob<'a>,
    /// What is asked.
    pub(super) what: What<'a>,
}

/// What is asked of a row.
#[derive(Debug)]
pub(super) enum What<'a> {
    /// Its own action and report.
    Row,
    /// The same; nothing is ranked.
    Unranked,
    /// What it leaves is weighed. Its action is the draw from that.
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
    /// Terms of the entropy.
    Entropy,
    /// The masses of a draft.
    Drafted(&'a Proposed<'a>),
    /// What is left beyond drafts, one after the other.
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

    /// Its name before that of the number format.
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
        Self { row, what: What::Row }
    }

    /// Who answers it.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        match self.what {
            What::Row | What::Unranked => Kernel::Sample,
            What::Weigh(_) => Kernel::Weigh,
        }
    }

    pub(super) fn drafts(&self) -> impl ExactSizeIterator<Item = (&'a Proposed<'a>, Residual)> + '_ {
        let none = Residual { target: 0.0, draft: 0.0 };
        let (one, several) = match &self.what {
            What::Row | What::Unranked => (None, &[][..]),
            What::Weigh(weigh) => match &weigh.by {
                WeighBy::Entropy => (None, &[][..]),
                WeighBy::Drafted(draft) => (Some(*draft), &[][..]),
                WeighBy::Beyond(drafts) => (None, drafts.as_slice()),
            },
        };
        (0..several.len() + usize::from(one.is_some())).map(move |i| one.map_or_else(|| several[i], |one| (one, none)))
    }

    /// Bytes of the inputs that it may need.
    #[must_use]
    pub fn room(&self) -> usize {
        room(&self.row, self.drafts().map(|(draft, _)| draft))
    }
}

/// Bytes of the inputs that a row may need beside these drafts.
pub(super) fn room<'a>(job: &RowJob<'_>, drafts: impl Iterator<Item = &'a Proposed<'a>>) -> usize {
    let spec = &job.spec;
    let mut known = spec.adjusts.len_bound() + spec.banned.len() + spec.allowed.map_or(0, <[u32]>::len);
    let (mut rows, mut count) = (0, 0);
    for draft in drafts {
        known += listed(draft).count();
        rows += row_of(draft).map_or(0, |row| row.bytes().len()) + 16 + size_of::<abi::DraftRow>();
        count += 1;
    }
    let wanted = spec.logprobs.map_or(0, |wanted| wanted.tokens.len());
    job.logits.byte_len() + rows + (16 + 8 * count) * known + 4 * wanted + 1024
}

/// The tokens of which a draft's masses are not those of its row.
pub(super) fn listed<'a>(draft: &'a Proposed<'_>) -> impl Iterator<Item = u32> + 'a {
    let (entries, patches) = match &draft.source {
        Source::List(entries) => (&entries[..], &[][..]),
        Source::Row(row) => (&[][..], &row.patches[..]),
        Source::Sent(_) => (&[][..], &[][..]),
    };
    entries.iter().map(|entry| entry.0).chain(patches.iter().map(|patch| patch.0))
}

/// The row that a draft's other masses are from.
pub(super) fn row_of<'a>(draft: &'a Proposed<'_>) -> Option<crate::sampling::logits::Logits<'a>> {
    match &draft.source {
        Source::List(_) => None,
        Source::Row(row) => Some(row.logits()),
        Source::Sent(probs) => Some(*probs),
    }
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
            mark: None,
            action,
            logprobs: None,
            report: None,
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
