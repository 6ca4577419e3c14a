use super::*;
use crate::params::state::SamplerState;
use crate::sampling::chain::{Chain, ChainStep};
use crate::sampling::row::{Action, Filters, RowError, RowSpec};
use crate::sampling::samplers::infill::Infill;
use crate::vocabulary::Vocabulary;

fn entries(logits: &[(u32, f32)]) -> Vec<Candidate> {
    logits.iter().map(|&(token, logit)| Candidate { token, logit }).collect()
}

fn listed(logits: &[(u32, f32)], rest: f32) -> Result<Listed, ListedError> {
    Listed::new(10, entries(logits), rest, false, BeyondTopN::Refuse)
}

#[test]
fn mistakes_are_told_apart() {
    let infinity = f32::INFINITY;
    assert!(listed(&[(3, 1.0), (0, 2.0)], 0.5).is_ok());
    assert_eq!(listed(&[], 0.5), Err(ListedError::Count(0, 10)));
    let too_many: Vec<_> = (0..11).map(|token| (token, 1.0)).collect();
    assert_eq!(listed(&too_many, -infinity), Err(ListedError::Count(11, 10)));
    assert_eq!(listed(&[(3, 1.0), (10, 0.0)], 0.5), Err(ListedError::OutOfRange(10, 10)));
    assert_eq!(listed(&[(3, 1.0), (1, 0.0), (3, 1.0)], 0.5), Err(ListedError::Twice(3)));
    assert!(matches!(listed(&[(3, 1.0)], f32::NAN), Err(ListedError::Rest(_))));
    assert_eq!(listed(&[(3, 1.0)], infinity), Err(ListedError::Rest(infinity)));
    // Nine others of at most 1: ln 9 + 1 = 3.197, plus rounding of the sum.
    assert!(listed(&[(3, 1.0)], 3.2).is_ok());
    assert!(matches!(listed(&[(3, 1.0)], 3.3), Err(ListedError::TooMuch(..))));
    // No other token is left, or none is above minus infinity.
    assert!(matches!(listed(&too_many[..10], -1e30), Err(ListedError::TooMuch(..))));
    assert!(matches!(listed(&[(3, -infinity)], -1e30), Err(ListedError::TooMuch(..))));
    assert!(listed(&too_many[..10], -infinity).is_ok());
    // Invalid logits are an error of the row, not of the list.
    assert!(listed(&[(3, f32::NAN), (4, infinity)], 1e30).is_ok());
}

#[test]
fn ranks_are_those_of_a_row_of_minus_infinity_elsewhere() {
    let row = Listed::new(
        7,
        entries(&[(5, 1.0), (1, 1.0), (3, 2.0), (2, f32::NEG_INFINITY)]),
        f32::NEG_INFINITY,
        false,
        BeyondTopN::Mark,
    )
    .expect("a row");
    let whole: Vec<f32> =
        row.expanded().chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four"))).collect();
    let ranks = Ranks::new(row.entries().to_vec());
    for token in 0..7 {
        assert_eq!(ranks.rank(token), Some(crate::sampling::order::rank(&whole, token)), "{token}");
    }
}

/// The token drawn from eight tokens, six of which are listed with about a sixth each, cut to these by top-k, if infill
/// ends the text with these tokens.
fn ended(ends: &[u32], banned: &[u32], beyond: BeyondTopN) -> Result<u32, RowError> {
    let texts: Vec<_> = (0..8u8).map(|token| Some(vec![b'a' + token])).collect();
    let infill = Some(Infill { vocabulary: &Vocabulary::new(&texts, b""), ends });
    let (state, steps) = (SamplerState::default(), [ChainStep::TopK, ChainStep::Infill]);
    let chain = Chain { steps: &steps, min_keep: 1, protected: &[], eos: &[], xtc: 0, state, infill, tournament: None };
    let spec = RowSpec {
        chain: Some(chain),
        banned,
        ..RowSpec::plain(Filters { temperature: 1.0, top_k: 6, top_p: 1.0, min_p: 0.0 }, Action::Draw { uniform: 0 })
    };
    let logits: Vec<(u32, f32)> = (0..7).map(|token| (token, if token < 6 { 1.0 } else { -9.0 })).collect();
    let row = Listed::new(8, entries(&logits), -10.0, false, beyond).expect("a row");
    sample_row(&row, &spec).map(|output| output.token)
}

#[test]
fn a_text_that_ends_with_a_token_that_is_not_listed_is_refused() {
    let refused = Err(RowError::Beyond(NeedsUnlisted::Sampler(Sampler::Infill)));
    assert_eq!(ended(&[6], &[], BeyondTopN::Refuse), Ok(6), "it is listed, and comes back");
    assert_eq!(ended(&[7], &[], BeyondTopN::Refuse), refused);
    assert_eq!(ended(&[7, 6], &[], BeyondTopN::Refuse), refused, "7 would come first");
    assert_eq!(ended(&[7, 6], &[7], BeyondTopN::Refuse), Ok(6), "7 cannot be emitted");
    assert_eq!(ended(&[7, 6], &[], BeyondTopN::Mark), Ok(6));
    assert_eq!(ended(&[7], &[7], BeyondTopN::Refuse), Ok(0), "nothing may end it, so nothing happens");
}
