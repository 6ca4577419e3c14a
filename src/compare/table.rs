//! The comparison for people. Rows with the same changes share a line.

use super::changes::Change;
use super::{ComparedRow, Comparison, Is, Made, Side};
use crate::output::grouped;
use std::fmt::Write as _;

/// Most spans of row numbers that a line names.
const SPANS: usize = 4;

/// Rows that were changed in the same way.
struct Group<'a> {
    what: String,
    rows: Vec<&'a ComparedRow>,
}

pub(super) fn of(compared: &Comparison) -> String {
    let mut text = format!("sent   {}\nplain  {}\n\n", side(&compared.sent), side(&compared.plain));
    let groups = groups(&compared.rows);
    let spans: Vec<String> = groups.iter().map(|group| spans(&group.rows)).collect();
    let wide = spans.iter().map(String::len).fold("rows".len(), usize::max);
    let _ = writeln!(text, "{:wide$}  likeliest  total variation  noise  what was sent", "rows");
    for (group, spans) in groups.iter().zip(&spans) {
        let likeliest = group.rows.iter().filter(|row| row.likeliest == row.plain_likeliest).count();
        let likeliest = format!("{likeliest} of {}", group.rows.len());
        let variation = group.rows.iter().map(|row| row.total_variation).sum::<f64>() / group.rows.len() as f64;
        let noise = group.rows.iter().filter_map(|row| noise(row)).reduce(f64::max);
        let noise = noise.map_or("-".to_owned(), |noise| format!("{noise:.3}"));
        let _ = writeln!(text, "{spans:wide$}  {likeliest:>9}  {variation:>15.4}  {noise:>5}  {}", group.what);
    }
    let (as_plain, all) = (compared.rows_as_plain, compared.rows.len());
    let _ = writeln!(text, "\n{as_plain} of {all} rows {} what the model gives", if all == 1 { "is" } else { "are" });
    advice(compared).iter().for_each(|line| text += &format!("- {line}\n"));
    text
}

fn side(side: &Side) -> String {
    let rows = if side.rows == 1 { "row" } else { "rows" };
    format!("{} {rows} of {} logits ({})", grouped(side.rows as u64), grouped(side.vocab_size as u64), side.dtype)
}

/// The groups, in the order of their first rows.
fn groups(rows: &[ComparedRow]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in rows {
        let what = what(row);
        match groups.iter_mut().find(|group| group.what == what) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { what, rows: vec![row] }),
        }
    }
    groups
}

/// Row numbers such as `0-3, 7`.
fn spans(rows: &[&ComparedRow]) -> String {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for row in rows.iter().map(|row| row.row) {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == row => *last = row,
            _ => spans.push((row, row)),
        }
    }
    let shown = spans.iter().take(SPANS).map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    if spans.len() > SPANS { format!("{shown}, ...") } else { shown }
}

fn noise(row: &ComparedRow) -> Option<f64> {
    match &row.is {
        Is::Plain(made) => Some(made.noise),
        _ => None,
    }
}

fn what(row: &ComparedRow) -> String {
    match &row.is {
        Is::Same => "the plain row, number for number".to_owned(),
        Is::Plain(made) => made_of(row.row, made),
        Is::Probabilities => "probabilities in place of logits".to_owned(),
        Is::Unknown => "no plain row".to_owned(),
        Is::NotFinite { token } => format!("a NaN or +infinity (token {token})"),
    }
}

fn made_of(row: usize, made: &Made) -> String {
    let mut parts = vec![match (made.plain_row, row) {
        (plain, row) if plain == row && made.precise => "the plain row".to_owned(),
        (plain, row) if plain == row => "the plain row, but roughly".to_owned(),
        (plain, row) if plain + 1 == row => "the plain row of the place before".to_owned(),
        (plain, row) if plain == row + 1 => "the plain row of the place behind".to_owned(),
        (plain, _) => format!("plain row {plain}"),
    }];
    parts.extend(made.temperature.map(|temperature| format!("divided by a temperature of {temperature:.2}")));
    parts.extend(made.shift.map(|_| "all logits shifted by one number".to_owned()));
    parts.extend(made.changes.iter().map(change));
    parts.join(", ")
}

/// Describes a change. Counts that differ between rows with the same change are left out; the JSON has them.
fn change(change: &Change) -> String {
    match change {
        Change::Filtered { tokens_left } => format!("only the {} likeliest left", grouped(*tokens_left as u64)),
        Change::Masked { tokens, first } => format!("{} masked", named(*tokens, first)),
        Change::Unmasked { tokens, first } => format!("{} not masked", named(*tokens, first)),
        Change::Padding { from, columns } => format!("other numbers in the last {columns} columns (from {from} on)"),
        Change::RepetitionPenalty { penalty, tokens, in_text } => {
            format!("a repetition penalty of {penalty:.2}{}", of_text(*tokens, *in_text))
        }
        Change::CountPenalty { presence, frequency, .. } => {
            format!("a presence penalty of {presence:.2} and a frequency penalty of {frequency:.2}")
        }
        Change::Bias { bias, tokens, in_text, first } => {
            format!("{bias:+.2} on {}{}", named(*tokens, first), of_text(*tokens, *in_text))
        }
        Change::Changed { tokens, in_text, first, .. } => {
            format!("{} changed{}", named(*tokens, first), of_text(*tokens, *in_text))
        }
    }
}

/// Such as `tokens 5, 7, 9 and others`.
fn named(tokens: usize, first: &[u32]) -> String {
    let names: Vec<String> = first.iter().map(u32::to_string).collect();
    let others = if tokens > first.len() { " and others" } else { "" };
    format!("{} {}{others}", if tokens == 1 { "token" } else { "tokens" }, names.join(", "))
}

fn of_text(tokens: usize, in_text: Option<usize>) -> &'static str {
    match in_text {
        None => "",
        Some(0) => " (none in the text)",
        Some(all) if all == tokens => " (all in the text)",
        Some(_) => " (some in the text)",
    }
}

/// Advice for each kind of difference, once.
fn advice(compared: &Comparison) -> Vec<&'static str> {
    let is = |test: &dyn Fn(&ComparedRow) -> bool| compared.rows.iter().any(test);
    let made = |test: &dyn Fn(&Made, usize) -> bool| {
        is(&|row: &ComparedRow| matches!(&row.is, Is::Plain(made) if test(made, row.row)))
    };
    let changed = |test: &dyn Fn(&Change) -> bool| made(&|made, _| made.changes.iter().any(test));
    let noted = [
        (
            made(&|made, row| made.plain_row != row),
            "Row i is for the token behind the first i tokens of the input: look which positions the worker gathers.",
        ),
        (
            made(&|made, _| made.temperature.is_some()),
            "Send logits before the temperature: the sidecar divides by it, so it counts twice.",
        ),
        (
            changed(&|change| {
                matches!(change, Change::RepetitionPenalty { .. } | Change::CountPenalty { .. } | Change::Bias { .. })
            }),
            "Send logits before penalties and biases: the sidecar applies those of the sequence, so they count twice.",
        ),
        (
            changed(&|change| matches!(change, Change::Filtered { .. })),
            "Send the whole row: a filter that ran before the sidecar's own sees another distribution than it should.",
        ),
        (
            changed(&|change| matches!(change, Change::Changed { .. })),
            "Look what touches these tokens before rows are sent: a bias, a penalty, a list of words. --text tells more.",
        ),
        (
            changed(&|change| matches!(change, Change::Masked { .. } | Change::Unmasked { .. })),
            "Masks are no fault where they are meant; a mask can also go beside the row (Work.token_masks).",
        ),
        (
            changed(&|change| matches!(change, Change::Padding { .. })),
            "Columns that stand for no token have to be -infinity, or beyond vocab_size (InlineLogits.row_stride).",
        ),
        (
            made(&|made, _| made.shift.is_some()),
            "Log-probabilities are as good as logits, but for repetition_penalty, which goes by the sign of a logit.",
        ),
        (
            made(&|made, _| !made.precise),
            "So much noise is not of rounding: another precision, or a quantized model or cache. Compare with a pass of the same.",
        ),
        (is(&|row| row.is == Is::Probabilities), "Send logits or log-probabilities, not probabilities."),
        (
            is(&|row| row.is == Is::Unknown),
            "A row that is no plain row came of another text, another model or another mask of attention. In a tree, look \
             whether a node sees the siblings before it; after a rejection, whether the KV cache was cut back.",
        ),
    ];
    noted.into_iter().filter(|(applies, _)| *applies).map(|(_, advice)| advice).collect()
}
