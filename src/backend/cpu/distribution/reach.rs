//! Which logits reach a mass.

use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{NO_MASS_Y, Weigh};
use crate::sampling::mass::{MASS_ONE, exponent, mass};

/// How far off its place a mass may be found, in exponents. Masses are off by less than 2e-7 of themselves, which is
/// 3e-7 of an exponent.
const DOUBT: f64 = 1e-6;
/// Above this exponent hundreds of floats lie within [`DOUBT`].
const HIGHEST: f64 = -1.0 / 16.0;

/// A logit at or below which no mass reaches `need`, so only logits above it are weighed. It is a little low, to be
/// safe from rounding; the masses themselves decide.
pub(in crate::backend::cpu) fn reach_of(weigh: Weigh, need: u64) -> f32 {
    if need == 0 {
        return f32::NEG_INFINITY;
    }
    let y = libm::log2(need as f64 / MASS_ONE as f64) - 1e-3;
    let logit = (f64::from(weigh.max) + y / f64::from(weigh.scale)) as f32;
    logit.next_down()
}

/// The least logit whose mass reaches `need`, if all above reach it too: then a least mass is a cut in the order.
/// `None` if they do not, or if it takes long to find out.
pub(in crate::backend::cpu) fn least_reaching(weigh: Weigh, need: u64) -> Option<f32> {
    let least = least_exponent(need)?;
    Some(keys::least(weigh.max, |logit| exponent(logit, weigh.max, weigh.scale) >= least))
}

/// The least exponent whose mass reaches `need`, if all above reach it too. Masses are not known to rise with
/// exponents, but those that may be out of order are so close to each other that all of them are tried.
fn least_exponent(need: u64) -> Option<f32> {
    let about = libm::log2(need as f64 / MASS_ONE as f64);
    if !(f64::from(NO_MASS_Y)..HIGHEST).contains(&about) {
        return None;
    }
    let (low, high) = (((about - DOUBT) as f32).next_down(), ((about + DOUBT) as f32).next_up());
    let near = || std::iter::successors(Some(low), |y| Some(y.next_up())).take_while(|&y| y <= high);
    let least = near().find(|&y| mass(y) >= need)?;
    near().skip_while(|&y| y < least).all(|y| mass(y) >= need).then_some(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::mass::{min_p_need, scale};

    /// Checks the masses of floats in a wide range around the cut.
    #[test]
    fn a_least_mass_is_a_least_logit() {
        let mut cuts = 0;
        for i in 1..400 {
            let need = if i < 200 { min_p_need(i as f32 / 200.0) } else { (1 << (i / 5 - 40)) + i * i };
            for (max, temperature) in [(5.0, 1.0), (19.3, 0.8), (-0.25, 1.7), (3e-4, 0.01), (-1234.5, 30.0)] {
                let weigh = Weigh { max, scale: scale(temperature) };
                let Some(cut) = least_reaching(weigh, need) else { continue };
                cuts += 1;
                let from = keys::ascending(cut);
                for logit in (from - 300..from + 300).map(keys::from_ascending).filter(|&logit| logit <= max) {
                    let reaches = mass(exponent(logit, weigh.max, weigh.scale)) >= need;
                    assert_eq!(reaches, logit >= cut, "{need} {weigh:?} {logit}");
                }
            }
        }
        assert!(cuts > 1800, "{cuts}");
    }

    #[test]
    fn what_all_or_none_reach_is_no_cut() {
        for need in [0, MASS_ONE, MASS_ONE + 1, u64::MAX] {
            assert_eq!(least_reaching(Weigh { max: 1.0, scale: 1.0 }, need), None);
        }
    }
}
