//! Rows that have the plain row's logits in another form: columns in blocks of another order, as ranks of a
//! tensor-parallel worker make them if they are gathered in the wrong order, and numbers that went through a curve or
//! were read in another format.

use super::line::{Line, Pair, Points, is_masked};
use half::{bf16, f16};
use serde::Serialize;

/// Into how many blocks a row may be cut.
const BLOCKS: [usize; 6] = [2, 4, 8, 16, 32, 64];
/// Columns by which two blocks are compared, spread over them, and the fewest that tell.
const COLUMNS: usize = 256;
const FEWEST: usize = 16;
/// The least correlation of two blocks that are the same.
const SAME: f64 = 0.98;
/// Columns by which orders are compared.
const RANKED: usize = 4096;
/// The least correlation of ranks of two rows in the same order.
const IN_ORDER: f64 = 0.995;

/// How far from 1 the scale of a row may be that is read in its own format.
const NEAR: f64 = 0.2;

/// What gave a row other numbers in about the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(super) enum Reshape {
    /// The bits are numbers of one format and were read as those of another.
    Format { bits_of: &'static str, read_as: &'static str },
    /// A curve that is no softcap.
    Curve,
}

/// Whether the row as sent is the plain row if its bits are read in the other 16-bit format.
pub(super) fn misread(pair: &Pair<'_>) -> Option<Reshape> {
    let is_plain = |sent: &[f32]| {
        let line = Points::of(&Pair { sent, ..*pair }).map(|points| Line::through(&points));
        line.is_some_and(|line| (line.scale - 1.0).abs() < NEAR && line.is_precise())
    };
    let as_bf16 = |&read: &f32| {
        let bits = f16::from_f32(read);
        (bits.is_nan() || bits.to_f32() == read).then(|| bf16::from_bits(bits.to_bits()).to_f32())
    };
    let as_f16 = |&read: &f32| {
        let bits = bf16::from_f32(read);
        (bits.is_nan() || bits.to_f32() == read).then(|| f16::from_bits(bits.to_bits()).to_f32())
    };
    let is_finite = |sent: &[f32]| sent.iter().all(|logit| *logit < f32::INFINITY);
    let fits = |other: Option<Vec<f32>>| other.is_some_and(|sent| is_finite(&sent) && is_plain(&sent));
    let found = if fits(pair.sent.iter().map(as_bf16).collect()) {
        Reshape::Format { bits_of: "bf16", read_as: "f16" }
    } else if fits(pair.sent.iter().map(as_f16).collect()) {
        Reshape::Format { bits_of: "f16", read_as: "bf16" }
    } else {
        return None;
    };
    // Where all logits are nearly equal, other bits can be nearly as good as the right ones.
    (!is_finite(pair.sent) || !is_plain(pair.sent)).then_some(found)
}

/// The order of the plain row's blocks in the row as sent, if it has them all in another order.
pub(super) fn order_of_blocks(pair: &Pair<'_>) -> Option<Vec<usize>> {
    BLOCKS.iter().find_map(|&count| order_of(pair, count))
}

fn order_of(pair: &Pair<'_>, count: usize) -> Option<Vec<usize>> {
    let columns = pair.sent.len();
    if !columns.is_multiple_of(count) || columns / count < FEWEST {
        return None;
    }
    let size = columns / count;
    let step = size.div_ceil(COLUMNS);
    let block =
        |row: &[f32], at: usize| -> Vec<f32> { row[at * size..][..size].iter().copied().step_by(step).collect() };
    let plain: Vec<Vec<f32>> = (0..count).map(|at| block(pair.plain, at)).collect();
    let source = |at: usize| {
        let sent = block(pair.sent, at);
        let alike = plain.iter().enumerate().map(|(from, plain)| (from, correlation(&sent, plain)));
        let (from, alike) = alike.filter(|(_, alike)| !alike.is_nan()).max_by(|a, b| a.1.total_cmp(&b.1))?;
        (alike >= SAME).then_some(from)
    };
    let order: Vec<usize> = (0..count).map(source).collect::<Option<_>>()?;
    order.iter().enumerate().any(|(at, &from)| at != from).then_some(order)
}

/// Whether both rows have about the same order of tokens, by Spearman's rank correlation.
pub(super) fn is_in_order(pair: &Pair<'_>) -> bool {
    let tokens: Vec<usize> = pair.common().collect();
    let some: Vec<usize> = tokens.iter().copied().step_by(tokens.len().div_ceil(RANKED).max(1)).collect();
    if some.len() < FEWEST {
        return false;
    }
    let ranks = |row: &[f32]| {
        let mut order: Vec<usize> = (0..some.len()).collect();
        order.sort_by(|&a, &b| row[some[a]].total_cmp(&row[some[b]]));
        let mut ranks = vec![0.0; some.len()];
        order.iter().enumerate().for_each(|(rank, &at)| ranks[at] = rank as f32);
        ranks
    };
    correlation(&ranks(pair.sent), &ranks(pair.plain)) >= IN_ORDER
}

/// Pearson's correlation, over columns that neither row masks.
pub(super) fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let pairs: Vec<(f64, f64)> = a
        .iter()
        .zip(b)
        .filter(|(a, b)| !is_masked(**a) && !is_masked(**b))
        .map(|(&a, &b)| (a.into(), b.into()))
        .collect();
    let of = pairs.len() as f64;
    let (x, y) = (pairs.iter().map(|p| p.0).sum::<f64>() / of, pairs.iter().map(|p| p.1).sum::<f64>() / of);
    let sum = |of: fn(f64, f64) -> f64| pairs.iter().map(|p| of(p.0 - x, p.1 - y)).sum::<f64>();
    sum(|x, y| x * y) / (sum(|x, _| x * x) * sum(|_, y| y * y)).sqrt()
}
