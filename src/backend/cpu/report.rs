//! The report on a row: [`sampling::report`](crate::sampling::report), computed from the distribution that the row
//! already has. What became of single tokens comes from the specification.

use super::distribution::{Distribution, Store};
use super::passes::{Terms, Weigh};
use super::view::View;
use crate::backend::RowJob;
use crate::sampling::entropy::entropy;
use crate::sampling::mass;
use crate::sampling::report::{Report, ReportSpec, why_not};
use crate::sampling::row::RowError;

/// Makes the report on a row.
pub(super) fn report(
    job: &RowJob<'_>,
    raw: &View<'_>,
    adjusted: &View<'_>,
    processed: &Distribution,
    wanted: &ReportSpec<'_>,
    store: &Store,
) -> Result<Report, RowError> {
    let support = processed.support(adjusted, store);
    let entropies = || {
        let weigh = Weigh { max: raw.max, scale: mass::scale(1.0) };
        let Terms { terms, total, .. } = raw.terms(weigh);
        let of_raw = entropy(terms, total);
        (processed.entropy(store).unwrap_or_else(|| processed.entropy_of(&support)), of_raw)
    };
    let entropy = wanted.params.entropy.then(entropies);
    let (support_size, most) = (support.len() as u32, wanted.params.max_surviving_token_ids as usize);
    let surviving = super::keys::first(support, most);
    Ok(Report { support_size, surviving, entropy, why_not: why_not(&job.logits, &job.spec)? })
}
