//! The naive reference: distributions from the parameters' definitions and verification from the papers, in f64 over the whole vocabulary.
//! Random numbers are real numbers.

use croupier::params::SamplingParams;
use croupier::params::watermark::{SynthidParams, Watermark};
use croupier::sampling::watermark::greenlist::{Greenlist, Seeds};
use croupier::sampling::watermark::tournament::{self, Table, Tournament};

/// The distribution of a plain row: bans, bias, penalties, softmax, top-k, top-p, min-p, by definition.
pub fn probabilities(logits: &[f32], params: &SamplingParams, prompt: &[u32], output: &[u32]) -> Vec<f64> {
    let count = |tokens: &[u32], token| tokens.iter().filter(|&&t| t == token).count() as f64;
    let adjusted: Vec<f64> = (0..logits.len() as u32)
        .map(|token| {
            let allowed = params.allowed_token_ids.is_empty() || params.allowed_token_ids.contains(&token);
            let ended = |word: &Vec<u32>| {
                word.split_last().is_some_and(|(&last, before)| last == token && output.ends_with(before))
            };
            let too_early = output.len() < params.min_tokens as usize && params.stop_token_ids.contains(&token);
            if !allowed || params.banned_token_ids.contains(&token) || params.bad_words.iter().any(ended) || too_early {
                return f64::NEG_INFINITY;
            }
            let bias: f64 = params.logit_bias.iter().filter(|b| b.0 == token).map(|b| f64::from(b.1)).sum();
            let mut x = f64::from(logits[token as usize]) + bias;
            let times = count(output, token);
            let repetition = f64::from(params.repetition_penalty);
            if count(prompt, token) + times > 0.0 {
                x = if x > 0.0 { x / repetition } else { x * repetition };
            }
            let presence = if times > 0.0 { f64::from(params.presence_penalty) } else { 0.0 };
            x - times * f64::from(params.frequency_penalty) - presence + green(token, params, prompt, output)
        })
        .collect();
    let left = filtered(&adjusted, params);
    match params.watermark() {
        Some(Watermark::Synthid(synthid)) => played(left, synthid, output),
        _ => left,
    }
}

/// The amount that a greenlist adds to a logit. The code under test says which tokens are green.
fn green(token: u32, params: &SamplingParams, prompt: &[u32], output: &[u32]) -> f64 {
    let Some(Watermark::Kgw(kgw)) = params.watermark() else { return 0.0 };
    let text = [prompt, output].concat();
    let Some(from) = text.len().checked_sub(kgw.context_width as usize) else { return 0.0 };
    let greens = Greenlist::new(kgw, Seeds::new(kgw, text[from..].iter().copied()));
    if greens.is_green(token) { f64::from(kgw.bias) } else { 0.0 }
}

/// The probabilities after a tournament, which is left out if its context occurred before. The code under test says which bits are set.
fn played(probs: Vec<f64>, params: &SynthidParams, output: &[u32]) -> Vec<f64> {
    let width = params.ngram_len as usize - 1;
    let context = |n: usize| [vec![0; width], output[..n].to_vec()].concat()[n..].to_vec();
    let here = context(output.len());
    if (0..output.len()).any(|n| context(n) == here) {
        return probs;
    }
    let table = Table::of(params);
    let played = Tournament { context: tournament::context(here), keys: &params.keys, table: &table };
    (0..params.keys.len()).fold(probs, |probs, layer| {
        let g = |token: usize| (played.bits(token as u32) >> layer & 1) as f64;
        let set: f64 = probs.iter().enumerate().map(|(token, p)| g(token) * p).sum();
        probs.iter().enumerate().map(|(token, p)| p * (1.0 + g(token) - set)).collect()
    })
}

fn filtered(adjusted: &[f64], params: &SamplingParams) -> Vec<f64> {
    let mut order: Vec<usize> = (0..adjusted.len()).collect();
    order.sort_by(|&a, &b| adjusted[b].total_cmp(&adjusted[a]).then(a.cmp(&b)));
    let max = adjusted[order[0]];
    if params.temperature == 0.0 {
        return one_hot(order[0], adjusted.len());
    }
    let mut weights: Vec<f64> = adjusted.iter().map(|x| ((x - max) / f64::from(params.temperature)).exp()).collect();
    let mut keep = if params.top_k == 0 { order.len() } else { order.len().min(params.top_k as usize) };
    if params.top_p < 1.0 {
        let total: f64 = order[..keep].iter().map(|&t| weights[t]).sum();
        let mut sum = 0.0;
        let crossing = order[..keep].iter().position(|&t| {
            sum += weights[t];
            sum >= f64::from(params.top_p) * total
        });
        keep = crossing.map_or(keep, |at| at + 1);
    }
    order[keep..].iter().for_each(|&t| weights[t] = 0.0);
    weights.iter_mut().for_each(|w| *w = if *w >= f64::from(params.min_p) { *w } else { 0.0 });
    let (mut left, s) = (normalised(&weights), &params.samplers);
    if s.top_n_sigma > 0.0 {
        left = within_deviations(&left, f64::from(s.top_n_sigma));
    }
    if s.typical_p < 1.0 {
        left = typical(&left, f64::from(s.typical_p));
    }
    if s.top_a > 0.0 {
        let most = left.iter().copied().fold(0.0, f64::max);
        left = normalised(&kept(&left, |p| p >= f64::from(s.top_a) * most * most));
    }
    if s.xtc_probability > 0.0 && s.xtc_expected == Some(true) {
        left = excluded(&left, f64::from(s.xtc_probability), f64::from(s.xtc_threshold));
    }
    if s.skew == 0.0 { left } else { skewed(&left, f64::from(s.skew)) }
}

fn kept(probs: &[f64], stays: impl Fn(f64) -> bool) -> Vec<f64> {
    probs.iter().map(|&p| if p > 0.0 && stays(p) { p } else { 0.0 }).collect()
}

/// Tokens by decreasing probability.
fn falling(probs: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..probs.len()).filter(|&t| probs[t] > 0.0).collect();
    order.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]).then(a.cmp(&b)));
    order
}

/// Top-n-sigma. Logits differ from the logarithms of probabilities by a constant.
fn within_deviations(probs: &[f64], n: f64) -> Vec<f64> {
    let logits: Vec<f64> = probs.iter().filter(|&&p| p > 0.0).map(|p| p.ln()).collect();
    let mean = logits.iter().sum::<f64>() / logits.len() as f64;
    let deviation = (logits.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / logits.len() as f64).sqrt();
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    normalised(&kept(probs, |p| p.ln() >= most - n * deviation))
}

/// XTC on average: a mixture of the whole row and of the row without all choices but the last.
fn excluded(probs: &[f64], probability: f64, threshold: f64) -> Vec<f64> {
    let mut choices = falling(probs);
    choices.retain(|&t| probs[t] >= threshold);
    choices.pop();
    let without: Vec<f64> = (0..probs.len()).map(|t| if choices.contains(&t) { 0.0 } else { probs[t] }).collect();
    let mixed = probs.iter().zip(normalised(&without));
    mixed.map(|(as_it_is, without)| (1.0 - probability) * as_it_is + probability * without).collect()
}

/// The share of the first tokens, raised to a power.
fn skewed(probs: &[f64], skew: f64) -> Vec<f64> {
    let (mut skewed, mut sum) = (vec![0.0; probs.len()], 0.0f64);
    for token in falling(probs) {
        let before = sum.powf(skew.exp());
        sum = (sum + probs[token]).min(1.0);
        skewed[token] = sum.powf(skew.exp()) - before;
    }
    skewed
}

/// Meister et al. 2023: the tokens whose surprise is nearest to the entropy, until they have `share` of the mass.
fn typical(probs: &[f64], share: f64) -> Vec<f64> {
    let possible = || (0..probs.len()).filter(|&t| probs[t] > 0.0);
    let entropy: f64 = possible().map(|t| -probs[t] * probs[t].ln()).sum();
    let deviation = |t: usize| (-probs[t].ln() - entropy).abs();
    let mut nearest: Vec<usize> = possible().collect();
    nearest.sort_by(|&a, &b| deviation(a).total_cmp(&deviation(b)));
    let (mut kept, mut sum) = (vec![0.0; probs.len()], 0.0);
    for token in nearest {
        kept[token] = probs[token];
        sum += probs[token];
        if sum >= share {
            break;
        }
    }
    normalised(&kept)
}

pub fn one_hot(token: usize, len: usize) -> Vec<f64> {
    (0..len).map(|t| if t == token { 1.0 } else { 0.0 }).collect()
}

pub fn normalised(weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// `max(factor * target - draft, 0)`.
pub fn beyond(factor: f64, target: &[f64], draft: &[f64]) -> Vec<f64> {
    target.iter().zip(draft).map(|(t, d)| (factor * t - d).max(0.0)).collect()
}

/// Inverse CDF.
pub fn draw(distribution: &[f64], u: f64) -> u32 {
    let total: f64 = distribution.iter().sum();
    let mut sum = 0.0;
    let drawn = distribution.iter().position(|w| {
        sum += w / total;
        sum > u
    });
    drawn.unwrap_or(distribution.len() - 1) as u32
}

/// Leviathan et al. 2023, algorithm 1, with Chen et al.'s order of tests: the number of accepted tokens, and the distribution of the next
/// token. `targets` has one row more than `drafts`.
pub fn rejection(tokens: &[u32], drafts: &[Vec<f64>], targets: &[Vec<f64>], u: &[f64]) -> (usize, Vec<f64>) {
    for (i, &token) in tokens.iter().enumerate() {
        let (t, d) = (targets[i][token as usize], drafts[i][token as usize]);
        if u[i] >= t / d {
            return (i, normalised(&beyond(1.0, &targets[i], &drafts[i])));
        }
    }
    (tokens.len(), targets[tokens.len()].clone())
}

/// `p_i` and `h_i` of Sun et al. 2025 for i = 1 .. k.
pub fn block_tests(tokens: &[u32], drafts: &[Vec<f64>], targets: &[Vec<f64>]) -> Vec<(f64, f64)> {
    let k = tokens.len();
    let mut p = 1.0f64;
    (0..k)
        .map(|i| {
            p = (p * targets[i][tokens[i] as usize] / drafts[i][tokens[i] as usize]).min(1.0);
            let h = if i + 1 == k {
                p
            } else {
                let z: f64 = beyond(p, &targets[i + 1], &drafts[i + 1]).iter().sum();
                if p == 1.0 { 1.0 } else { z / (z + 1.0 - p) }
            };
            (p, h)
        })
        .collect()
}

/// Sun et al. 2025, algorithm 2.
pub fn block(tokens: &[u32], drafts: &[Vec<f64>], targets: &[Vec<f64>], u: &[f64]) -> (usize, Vec<f64>) {
    let tests = block_tests(tokens, drafts, targets);
    let accepted = (0..tokens.len()).rev().find(|&i| u[i] < tests[i].1).map_or(0, |i| i + 1);
    if accepted == tokens.len() {
        return (accepted, targets[accepted].clone());
    }
    let p = if accepted == 0 { 1.0 } else { tests[accepted - 1].0 };
    (accepted, normalised(&beyond(p, &targets[accepted], &drafts[accepted])))
}

/// SpecInfer, algorithm 2, at one node: which sibling is accepted, or the distribution of the token that is emitted instead.
pub fn siblings(tokens: &[u32], drafts: &[Vec<f64>], target: &[f64], u: &[f64]) -> Result<usize, Vec<f64>> {
    let mut left = target.to_vec();
    for (i, &token) in tokens.iter().enumerate() {
        if u[i] < left[token as usize] / drafts[i][token as usize] {
            return Ok(i);
        }
        left = normalised(&beyond(1.0, &left, &drafts[i]));
    }
    Err(left)
}
