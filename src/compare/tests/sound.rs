//! Rows that are the model's, with all the noise that honest workers make: nothing may be said of them that is not so.

use super::*;

/// A transformer's last step: hidden states of some width times weights, with a bias by frequency. Noise in the hidden
/// states then moves all logits together, and not each by itself.
struct LastStep {
    weights: Vec<Vec<f32>>,
    biases: Vec<f32>,
}

const WIDTH: usize = 24;
const VOCABULARY: usize = 1500;

impl LastStep {
    fn new(normal: &mut Normal) -> Self {
        let weights = (0..VOCABULARY).map(|_| (0..WIDTH).map(|_| 0.5 * normal.next()).collect()).collect();
        let biases = (0..VOCABULARY).map(|at| 6.0 - 1.2 * ((at * 7919 % VOCABULARY + 1) as f32).ln()).collect();
        Self { weights, biases }
    }

    fn row(&self, hidden: &[f32]) -> Vec<f32> {
        let sum = |weights: &Vec<f32>| weights.iter().zip(hidden).map(|(a, b)| a * b).sum::<f32>();
        self.weights.iter().zip(&self.biases).map(|(weights, bias)| sum(weights) + bias).collect()
    }

    /// With weights of so many levels for the largest of each token.
    fn quantized(&self, levels: f32) -> Self {
        let of = |row: &Vec<f32>| {
            let step = row.iter().fold(0.0, |most: f32, weight| weight.abs().max(most)) / levels;
            row.iter().map(|weight| (weight / step).round() * step).collect()
        };
        Self { weights: self.weights.iter().map(of).collect(), biases: self.biases.clone() }
    }
}

fn rounded(row: &[f32], format: usize) -> Vec<f32> {
    let round = |&logit: &f32| match format {
        0 => logit,
        1 => f16::from_f32(logit).to_f32(),
        _ => bf16::from_f32(logit).to_f32(),
    };
    row.iter().map(round).collect()
}

/// Sent and plain rows of one kind of noise. Each row is a case of its own.
fn pairs(seed: u64) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let mut normal = Normal(5000 + seed);
    let model = LastStep::new(&mut normal);
    let kind = seed as usize;
    let worker = match kind % 3 {
        0 => model.quantized(127.0),
        _ => LastStep { weights: model.weights.clone(), biases: model.biases.clone() },
    };
    let noise = [0.0, 1e-6, 1e-4, 1e-3, 4e-3][kind % 5];
    let shift = if kind % 7 == 3 { -11.0 } else { 0.0 };
    let pair = |_| {
        let hidden: Vec<f32> = (0..WIDTH).map(|_| normal.next()).collect();
        let other: Vec<f32> = hidden.iter().map(|x| x + noise * normal.next()).collect();
        let sent: Vec<f32> = worker.row(&other).iter().map(|logit| logit + shift).collect();
        (rounded(&sent, kind / 2 % 3), rounded(&model.row(&hidden), kind / 6 % 3))
    };
    (0..ROWS).map(pair).unzip()
}

#[test]
fn honest_rows_are_the_model_s() {
    for seed in 0..90 {
        let (sent, plain) = pairs(seed);
        let compared = compared(&sent, &plain, &TEXT[..5]);
        assert_eq!(compared.rows_as_plain, ROWS, "{seed}: {}", table::of(&compared));
    }
}

#[test]
fn coarse_weights_are_noise_and_nothing_else() {
    for seed in 0..30 {
        let mut normal = Normal(7000 + seed);
        let model = LastStep::new(&mut normal);
        let worker = model.quantized([7.0, 15.0][seed as usize % 2]);
        let hidden: Vec<Vec<f32>> = (0..ROWS).map(|_| (0..WIDTH).map(|_| normal.next()).collect()).collect();
        let plain: Vec<Vec<f32>> = hidden.iter().map(|hidden| model.row(hidden)).collect();
        let sent: Vec<Vec<f32>> = hidden.iter().map(|hidden| rounded(&worker.row(hidden), seed as usize % 3)).collect();
        for row in &compared(&sent, &plain, &TEXT[..5]).rows {
            let Is::Plain(made) = &row.is else { panic!("{seed}: {row:?}") };
            let what = (made.plain_row, made.temperature, made.softcap, made.changes.len());
            assert_eq!(what, (row.row, None, None, 0), "{seed}: {made:?}");
        }
    }
}

#[test]
fn honest_rows_of_a_few_logits_are_the_model_s() {
    let mut normal = Normal(8000);
    for seed in 0..60 {
        let columns = [64, 96, 200, 1000][seed as usize % 4];
        let plain: Vec<Vec<f32>> = model(6000 + seed).iter().map(|row| row[..columns].to_vec()).collect();
        let sent = each(&plain, |_, logit| logit + [1e-6, 1e-3, 1e-2][seed as usize % 3] * normal.next());
        let sent: Vec<Vec<f32>> = sent.iter().map(|row| rounded(row, seed as usize / 4 % 3)).collect();
        let compared = compared(&sent, &plain, &[]);
        assert_eq!(compared.rows_as_plain, ROWS, "{seed}: {}", table::of(&compared));
    }
}
