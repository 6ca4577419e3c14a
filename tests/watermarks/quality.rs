//! Over all keys, SynthID's tokens and those of the Gumbel race have the same probabilities as without a watermark;
//! those of a greenlist do not. False alarms: [`FALSE_ALARM`] for each comparison.

use crate::chi_square::{DEVIATE, FALSE_ALARM, deviate};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, RowJob};
use croupier::params::state::SamplerState;
use croupier::params::watermark::{KgwParams, SynthidParams};
use croupier::sampling::chain::{Chain, ChainStep};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, Filters, RowSpec};
use croupier::sampling::watermark::RowWatermark;
use croupier::sampling::watermark::greenlist::{Greenlist, Seeds};
use croupier::sampling::watermark::race::Race;
use croupier::sampling::watermark::tournament::{Table, Tournament};

const DRAWS: u64 = 60_000;
const TOKENS: usize = 60;

fn logits() -> Vec<f32> {
    (0..TOKENS as u64).map(|i| (uniform(8, i, Purpose::Measure) as f64 / 2f64.powi(64) * 5.0) as f32).collect()
}

fn probabilities(logits: &[f32]) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&x| f64::from(x).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// How often each token is drawn, each time with another key.
fn counts(mark: impl Fn(u64, &mut dyn FnMut(Option<RowWatermark>, Option<Tournament<'_>>))) -> Vec<u64> {
    let bytes = Dtype::F32.encode(&logits());
    let (mut backend, mut counts) = (CpuBackend::new(1), vec![0; TOKENS]);
    for draw in 0..DRAWS {
        mark(draw, &mut |mark, tournament| {
            let chain = tournament.map(|tournament| Chain {
                steps: &[ChainStep::Tournament],
                min_keep: 1,
                protected: &[],
                eos: &[],
                xtc: 0,
                state: SamplerState::default(),
                infill: None,
                tournament: Some(tournament),
            });
            let spec = RowSpec {
                chain,
                mark,
                ..RowSpec::plain(Filters::OFF, Action::Draw { uniform: uniform(4, draw, Purpose::Sample) })
            };
            let result = backend.run(&[RowJob { logits: Logits::new(Dtype::F32, &bytes), spec }]).remove(0);
            counts[result.unwrap().token as usize] += 1;
        });
    }
    counts
}

fn any(draw: u64, index: u64) -> u64 {
    uniform(draw, index, Purpose::Measure)
}

#[test]
fn a_race_keeps_probabilities() {
    let counts = counts(|draw, run| {
        run(Some(RowWatermark::Race(Some(Race { key: any(draw, 1), context: any(draw, 2) }))), None);
    });
    let found = deviate(&counts, &probabilities(&logits()));
    println!("race: {found:+.2} standard deviations (false alarms {FALSE_ALARM})");
    assert!(found < DEVIATE, "{found}");
    // The test has power: it notices a tail that is 20 % off.
    let right = probabilities(&logits());
    let mut sorted = right.clone();
    sorted.sort_by(f64::total_cmp);
    let off: Vec<f64> = right.iter().map(|&p| if p < sorted[TOKENS / 2] { p * 0.8 } else { p }).collect();
    let total: f64 = off.iter().sum();
    let seen = deviate(&counts, &off.iter().map(|p| p / total).collect::<Vec<_>>());
    println!("a tail that is 20 % off: {seen:+.2} standard deviations");
    assert!(seen > DEVIATE, "{seen}");
}

#[test]
fn a_tournament_keeps_probabilities() {
    let table = Table::of(&SynthidParams::new(vec![]));
    let counts = counts(|draw, run| {
        let keys: Vec<u64> = (0..20).map(|layer| any(draw, layer)).collect();
        run(None, Some(Tournament { context: any(draw, 99), keys: &keys, table: &table }));
    });
    let found = deviate(&counts, &probabilities(&logits()));
    println!("tournament: {found:+.2} standard deviations");
    assert!(found < DEVIATE, "{found}");
    // With a single set of keys and a single context, the distribution differs.
    let counts = self::counts(|_, run| {
        run(None, Some(Tournament { context: 3, keys: &[1, 2, 3, 4, 5], table: &table }));
    });
    assert!(deviate(&counts, &probabilities(&logits())) > DEVIATE, "the tournament does nothing");
}

#[test]
fn a_greenlist_has_the_formulas_probabilities() {
    let params = KgwParams { greenlist_ratio: 0.5, ..KgwParams::default() };
    let greens = Greenlist::new(&params, Seeds::new(&params, [7]));
    let counts = counts(|_, run| run(Some(RowWatermark::Green(greens)), None));
    let raised: Vec<f32> = (0..).zip(logits()).map(|(t, x)| if greens.is_green(t) { x + 2.0 } else { x }).collect();
    let (right, plain) = (deviate(&counts, &probabilities(&raised)), deviate(&counts, &probabilities(&logits())));
    println!("greenlist: {right:+.2} standard deviations, {plain:+.2} from the text without it");
    assert!(right < DEVIATE && plain > DEVIATE);
}
