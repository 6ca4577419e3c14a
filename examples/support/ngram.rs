//! A small language model with exact probabilities: an interpolated n-gram model.
//!
//! Every order discounts each count by a constant and gives the discounted mass to the next lower order, down to the
//! uniform distribution. So every token of the vocabulary has a probability above zero, and every row sums to one.
//! Lower orders count in how many contexts a token was seen, not how often (Kneser and Ney, 1995). The discount is
//! chosen for text that is fun to read, not for perplexity.
//!
//! Tokens that were never seen in a context keep their unigram probability times one factor. So a row is a shifted copy
//! of the unigram row, with a few hundred patched entries. Making it costs about as much as a memcpy.

// Each example includes this file and uses only a part of it.
#![allow(dead_code)]

use std::collections::HashMap;
use std::sync::Arc;

/// Longest n-gram. Three context tokens of 21 bits fill a key.
pub(crate) const MAX_ORDER: usize = 4;
const TOKEN_BITS: u32 = 21;
/// Subtracted from every count. It is large enough for texts to wander from one source into another.
const DISCOUNT: f64 = 0.4;

/// The tokens that followed one context.
#[derive(Debug)]
struct Node {
    /// The discounted probability of each token that followed, in token order.
    seen: Vec<(u32, f64)>,
    /// The probability that the discounts left for the next lower order.
    rest: f64,
}

/// The model. Clones and views share its tables.
#[derive(Debug, Clone)]
pub(crate) struct NgramModel {
    order: usize,
    unigram: Arc<[f32]>,
    unigram_probs: Arc<[f64]>,
    /// By packed context of 1 ..= order − 1 tokens.
    nodes: Arc<HashMap<u64, Node>>,
}

/// Counts of the n-grams of one order, by packed context and next token.
type Counts = HashMap<(u64, u32), u64>;

impl NgramModel {
    /// Learns from `tokens`. Contexts are up to `order` − 1 tokens long. Separate documents by an end-of-text token,
    /// and begin with one.
    ///
    /// # Panics
    /// If `order` is not in 1 ..= [`MAX_ORDER`], or a token is not in the vocabulary.
    pub(crate) fn train(tokens: &[u32], order: usize, vocab_size: usize) -> Self {
        assert!((1..=MAX_ORDER).contains(&order), "order {order} is not in 1 ..= {MAX_ORDER}");
        assert!(vocab_size < 1 << TOKEN_BITS && tokens.iter().all(|&t| (t as usize) < vocab_size));
        let mut nodes = HashMap::new();
        let mut counts = count(tokens, order);
        for length in (1..order).rev() {
            let lower = continuations(&counts, length);
            insert_nodes(&mut nodes, counts);
            counts = lower;
        }
        let unigram_probs = unigram(&counts, vocab_size);
        Self {
            order,
            unigram: unigram_probs.iter().map(|p| p.ln() as f32).collect(),
            unigram_probs: unigram_probs.into(),
            nodes: Arc::new(nodes),
        }
    }

    /// Number of logits in a row.
    pub(crate) fn vocab_size(&self) -> usize {
        self.unigram.len()
    }

    /// The same model with shorter contexts: a cheaper and worse one, such as a draft model.
    #[must_use]
    pub(crate) fn with_max_order(&self, order: usize) -> Self {
        Self { order: order.clamp(1, self.order), ..self.clone() }
    }

    /// The logprobs of all tokens without any context.
    pub(crate) fn unigram(&self) -> &[f32] {
        &self.unigram
    }

    /// Fills `row` with the logprobs of the token after `context`.
    ///
    /// # Panics
    /// If the row's length is not that of the vocabulary.
    pub(crate) fn logits(&self, context: &[u32], row: &mut [f32]) {
        assert_eq!(row.len(), self.vocab_size(), "the row's length is not the vocabulary's");
        let mut patches = Vec::new();
        let shift = self.patches(context, &mut patches);
        for (logit, unigram) in row.iter_mut().zip(self.unigram.iter()) {
            *logit = unigram + shift;
        }
        for (token, logprob) in patches {
            row[token as usize] = logprob;
        }
    }

    /// The row after `context`, as differences: the logprob of every token that was seen in the context. Every other
    /// token has its [`unigram`](Self::unigram) logprob plus the returned shift.
    pub(crate) fn patches(&self, context: &[u32], patches: &mut Vec<(u32, f32)>) -> f32 {
        let mut probs: Vec<(u32, f64)> = Vec::new();
        let mut rest = 1.0;
        for length in 1..self.order.min(context.len() + 1) {
            // If a context was never seen, no longer context that ends with it was seen either.
            let Some(node) = self.nodes.get(&pack(&context[context.len() - length..])) else { break };
            if length == 1 {
                let below = |&(token, p): &(u32, f64)| (token, p + node.rest * self.unigram_probs[token as usize]);
                probs = node.seen.iter().map(below).collect();
            } else {
                raise(&mut probs, node);
            }
            rest *= node.rest;
        }
        patches.clear();
        patches.extend(probs.iter().map(|&(token, p)| (token, p.ln() as f32)));
        rest.ln() as f32
    }
}

/// Raises probabilities by one order. The tokens that followed the longer context are among those that followed the
/// shorter one.
fn raise(probs: &mut [(u32, f64)], node: &Node) {
    let mut seen = node.seen.iter().peekable();
    for (token, p) in probs {
        *p *= node.rest;
        if let Some((_, discounted)) = seen.next_if(|(t, _)| t == token) {
            *p += discounted;
        }
    }
    debug_assert!(seen.next().is_none(), "a longer context saw a token that the shorter one did not");
}

fn count(tokens: &[u32], order: usize) -> Counts {
    let mut counts = Counts::new();
    for gram in tokens.windows(order) {
        *counts.entry((pack(&gram[..order - 1]), gram[order - 1])).or_default() += 1;
    }
    // The first tokens of the text have too few tokens before them for a full context. Without them, a shorter context
    // would lack tokens that a longer one has seen. As n-grams after token 0 they do no harm.
    for end in 1..order.min(tokens.len() + 1) {
        let mut gram = vec![0; order - end];
        gram.extend_from_slice(&tokens[..end]);
        *counts.entry((pack(&gram[..order - 1]), gram[order - 1])).or_default() += 1;
    }
    counts
}

/// Counts for the next lower order: in how many contexts of `length` tokens each shorter n-gram was seen.
fn continuations(counts: &Counts, length: usize) -> Counts {
    let mut lower = Counts::new();
    let mask = (1 << (TOKEN_BITS * (length as u32 - 1))) - 1;
    for &(context, token) in counts.keys() {
        // Dropping the oldest token clears the highest bits, and the length marker moves down.
        let shorter = if length == 1 { 0 } else { (context & mask) | marker(length - 1) };
        *lower.entry((shorter, token)).or_default() += 1;
    }
    lower
}

fn insert_nodes(nodes: &mut HashMap<u64, Node>, counts: Counts) {
    let mut by_context: HashMap<u64, Vec<(u32, u64)>> = HashMap::new();
    for ((context, token), count) in counts {
        by_context.entry(context).or_default().push((token, count));
    }
    for (context, mut followers) in by_context {
        // The order of the map is random, but the model must not be.
        followers.sort_unstable();
        let total = followers.iter().map(|&(_, count)| count).sum::<u64>() as f64;
        let rest = DISCOUNT * followers.len() as f64 / total;
        let seen = followers.iter().map(|&(token, count)| (token, (count as f64 - DISCOUNT) / total)).collect();
        nodes.insert(context, Node { seen, rest });
    }
}

fn unigram(counts: &Counts, vocab_size: usize) -> Vec<f64> {
    let total = counts.values().sum::<u64>() as f64;
    // Without any text, the model is the uniform distribution.
    let rest = if counts.is_empty() { 1.0 } else { DISCOUNT * counts.len() as f64 / total };
    let mut probs = vec![rest / vocab_size as f64; vocab_size];
    for (&(_, token), &count) in counts {
        probs[token as usize] += (count as f64 - DISCOUNT) / total;
    }
    probs
}

/// One number for a context of 1 ..= 3 tokens. Contexts of different lengths never have the same number.
fn pack(context: &[u32]) -> u64 {
    if context.is_empty() {
        return 0;
    }
    context.iter().fold(0, |key, &token| key << TOKEN_BITS | u64::from(token)) | marker(context.len())
}

/// The bit above the tokens. It distinguishes contexts of different lengths.
fn marker(length: usize) -> u64 {
    1 << (TOKEN_BITS * length as u32)
}
