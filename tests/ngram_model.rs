//! The language model of the examples: its rows are probabilities, and contexts have the effect that they should.

#[path = "../examples/support/ngram.rs"]
mod ngram;

use ngram::NgramModel;

const VOCAB: usize = 1000;
const END: u32 = 999;

/// "1 2 3 4" 20 times, "5 2 3 6" once.
fn model() -> NgramModel {
    let mut tokens = vec![END];
    for _ in 0..20 {
        tokens.extend([1, 2, 3, 4, 7, END]);
    }
    tokens.extend([5, 2, 3, 6, 8, END]);
    NgramModel::train(&tokens, 4, VOCAB)
}

fn row(model: &NgramModel, context: &[u32]) -> Vec<f32> {
    let mut row = vec![f32::NAN; model.vocab_size()];
    model.logits(context, &mut row);
    row
}

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a row")
}

#[test]
fn every_row_is_a_distribution_without_zeros() {
    let model = model();
    let contexts: [&[u32]; 8] = [&[], &[3], &[2, 3], &[1, 2, 3], &[9, 9, 1, 2, 3], &[500], &[500, 2, 3], &[END, 5, 2]];
    for order in 1..=4 {
        for context in contexts {
            let row = row(&model.with_max_order(order), context);
            let sum: f64 = row.iter().map(|&logprob| f64::from(logprob).exp()).sum();
            assert!(sum.ln().abs() < 1e-3, "order {order}, context {context:?}: sums to {sum}");
            assert!(row.iter().all(|logprob| logprob.is_finite()), "order {order}, context {context:?}");
        }
    }
}

#[test]
fn the_longest_context_decides() {
    let model = model();
    assert_eq!(argmax(&row(&model, &[1, 2, 3])), 4);
    assert_eq!(argmax(&row(&model, &[5, 2, 3])), 6, "one token further back tells the two apart");
    assert!(row(&model, &[1, 2, 3])[4] > 0.9f32.ln(), "twenty observations dominate");
    assert_eq!(argmax(&row(&model, &[4, 7])), END as usize);
}

#[test]
fn an_unseen_context_backs_off() {
    let model = model();
    assert_eq!(row(&model, &[500, 2, 3]), row(&model, &[2, 3]), "the unseen token is forgotten");
    assert_eq!(row(&model, &[1, 500]), row(&model, &[]), "nothing known: the unigram row");
    assert_eq!(row(&model, &[]), model.unigram());
    assert_eq!(row(&model.with_max_order(3), &[5, 2, 3]), row(&model, &[2, 3]), "a lower order sees less");
}

#[test]
fn patches_and_shift_are_the_row() {
    let model = model();
    let mut patches = vec![(0, 0.0)];
    let shift = model.patches(&[1, 2], &mut patches);
    let mut patched: Vec<f32> = model.unigram().iter().map(|unigram| unigram + shift).collect();
    for &(token, logprob) in &patches {
        patched[token as usize] = logprob;
    }
    assert_eq!(patched, row(&model, &[1, 2]));
    assert!(patches.len() < 5 && patches.is_sorted_by_key(|&(token, _)| token));
}

#[test]
fn training_is_deterministic_and_survives_little_text() {
    assert_eq!(row(&model(), &[2, 3]), row(&model(), &[2, 3]));
    for tokens in [&[][..], &[1], &[1, 2], &[1, 2, 3, 4, 5]] {
        for order in 1..=4 {
            let model = NgramModel::train(tokens, order, VOCAB);
            let sum: f64 = row(&model, &[1, 2, 3]).iter().map(|&logprob| f64::from(logprob).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-3, "{tokens:?}, order {order}: sums to {sum}");
        }
    }
}
