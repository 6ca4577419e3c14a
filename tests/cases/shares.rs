//! Rows of which a share is known to the unit of mass: top-p needs one unit more than some tokens have, or just what they have, and
//! min-p just what a token has.

use super::Case;
use croupier::sampling::logits::Dtype;
use croupier::sampling::mass::{MASS_BITS, MASS_ONE, exponent, fraction, mass, scale, top_p_need};
use croupier::sampling::row::{Action, Filters, LogprobsMode};

/// At this temperature a token n below the first has a mass of exactly 2^-n of the first one's.
const EXACT: f32 = std::f32::consts::LOG2_E;

fn mass_of(logit: f32) -> u64 {
    mass(exponent(logit, 0.0, scale(EXACT)))
}

/// The tokens of `head`, and behind them as many as it takes for top-p to need exactly `need`. The last token that is left is drawn.
fn with_need(head: &[f32], top_p: f32, need: u64) -> Case {
    let total = ((u128::from(need) << 32) / u128::from(fraction(top_p))) as u64;
    assert_eq!(top_p_need(top_p, total), need);
    let rest = total - head.iter().map(|&x| mass_of(x)).sum::<u64>();
    let mut logits = head.to_vec();
    // Half a mass of one each, and what remains bit by bit.
    logits.extend((0..rest / (MASS_ONE / 2)).map(|_| -1.0));
    logits.extend((2..=MASS_BITS).filter(|n| rest >> (MASS_BITS - n) & 1 == 1).map(|n| -(n as f32)));
    assert_eq!(logits.iter().map(|&x| mass_of(x)).sum::<u64>(), total);
    let filters = Filters { temperature: EXACT, top_p, ..Filters::OFF };
    Case { filters, action: Action::Draw { uniform: u64::MAX }, ..Case::new(Dtype::F32, &logits) }
}

/// What the first `count` tokens weigh.
fn first(head: &[f32], count: usize) -> u64 {
    head[..count].iter().map(|&x| mass_of(x)).sum()
}

/// Two neighbours of the order of which the second has more mass, just the least that min-p keeps, and is beyond the bound by which
/// a kernel lists two tokens: the second token that is left is not among the first ones.
fn beyond_one_that_min_p_cuts() -> Case {
    // Kernels list down to a distance from the first token that has five bits behind the leading one.
    let bounds = (0x3D80_0000..0x3F00_0000).step_by(1 << 18).map(f32::from_bits);
    let temperatures = (0..1000).map(|i| 1.0 + i as f32 / 1024.0);
    let tries = temperatures.flat_map(|temperature| bounds.clone().map(move |bound| (temperature, bound)));
    let found = tries.into_iter().find_map(|(temperature, bound)| {
        let (before, after) = (-bound.next_down(), -bound.next_up());
        let mass_of = |logit| mass(exponent(logit, 0.0, scale(temperature)));
        (mass_of(before) < mass_of(after)).then(|| (temperature, before, after, mass_of(after)))
    });
    let (temperature, before, after, least) = found.expect("masses fall at one in some thousand floats");
    // Each is another thread's.
    let mut logits = vec![-30.0; 300];
    (logits[0], logits[40], logits[80]) = (0.0, before, after);
    let filters = Filters { temperature, min_p: least as f32 / MASS_ONE as f32, ..Filters::OFF };
    Case { filters, logprobs: Some((2, LogprobsMode::Processed, vec![40, 80])), ..Case::new(Dtype::F32, &logits) }
}

pub(super) fn edges() -> Vec<(&'static str, Case)> {
    let ties = |count| vec![0.0; count];
    // Near each other, so that bins by mass do not tell them apart.
    let steps: Vec<f32> = (0..3000).map(|i| if i < 2000 { 0.0 } else { -0.001 }).collect();
    let slope: Vec<f32> = (0..1900).map(|i| if i < 1500 { 0.0 } else { -0.001 - 1e-6 * (i - 1500) as f32 }).collect();
    let beyond = |head: &[f32], count| with_need(head, 0.6, first(head, count) + 1);
    vec![
        ("min_p that cuts a token before one that is not listed", beyond_one_that_min_p_cuts()),
        ("top_p one unit beyond the tokens of a long list", beyond(&ties(150), 150)),
        ("top_p one unit beyond many equal tokens", beyond(&steps, 2000)),
        ("top_p one unit beyond tokens amid many that are near each other", beyond(&slope, 1700)),
        ("top_p just what many equal tokens have", with_need(&ties(3000), 0.6, 2500 * MASS_ONE)),
        // The share's low half is so close to 2^64 that rounding it up carries into the high half.
        ("top_p whose share is rounded up to 2^40 + 2^32", with_need(&[0.0], 0.7, MASS_ONE + (1 << 32))),
    ]
}
