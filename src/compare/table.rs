//! The comparison for people. Rows with the same changes share a line.

use super::changes::Change;
use super::curve::Softcap;
use super::diagnosis::{Is, Made};
use super::reshaped::Reshape;
use super::{ComparedRow, Comparison, MAX_LEFT_OUT, Side, advice};
use crate::output::{counted, grouped};
use std::fmt::Write as _;

/// Most spans of row numbers that a line names.
const SPANS: usize = 4;
/// Most blocks of columns whose order is written out.
const MAX_BLOCKS: usize = 16;
/// Most lines of the table. Rows with different tokens changed have lines of their own.
const MAX_LINES: usize = 30;

/// Rows that were changed in the same way.
struct Group<'a> {
    /// What the first of them says alone, without counts.
    what: String,
    rows: Vec<&'a ComparedRow>,
}

pub(super) fn of(compared: &Comparison) -> String {
    let mut text = format!("sent   {}\nplain  {}\n\n", side(&compared.sent), side(&compared.plain));
    let groups = groups(&compared.rows);
    let (shown, beyond) = groups.split_at(groups.len().min(MAX_LINES));
    let spans: Vec<String> = shown.iter().map(|group| spans(&group.rows)).collect();
    let wide = spans.iter().map(String::len).fold("rows".len(), usize::max);
    let _ = writeln!(text, "{:wide$}  likeliest  total variation  noise  what was sent", "rows");
    for (group, spans) in shown.iter().zip(&spans) {
        text += &format!("{spans:wide$}  {}\n", line(group));
    }
    if !beyond.is_empty() {
        let rows: usize = beyond.iter().map(|group| group.rows.len()).sum();
        let more = counted(rows as u64, "more row");
        let _ = writeln!(text, "... and {more}, changed in other ways; --json lists them all");
    }
    let (as_plain, all) = (compared.rows_as_plain as u64, compared.rows.len() as u64);
    let _ = writeln!(text, "\nrows that match the model: {} of {}", grouped(as_plain), grouped(all));
    advice::of(compared).iter().for_each(|line| text += &format!("- {line}\n"));
    text
}

/// A line of the table, behind its rows.
fn line(group: &Group<'_>) -> String {
    let count = group.rows.len();
    let has_likeliest = |row: &&&ComparedRow| !matches!(row.is, Is::AllMasked | Is::NotFinite { .. });
    let same = group.rows.iter().filter(|row| row.likeliest == row.plain_likeliest);
    let likeliest = if group.rows.iter().any(|row| has_likeliest(&row)) {
        format!("{} of {count}", same.filter(has_likeliest).count())
    } else {
        "-".to_owned()
    };
    let variation = group.rows.iter().map(|row| row.total_variation).sum::<f64>() / count as f64;
    let noise = group.rows.iter().filter_map(|row| noise(row)).reduce(f64::max);
    let noise = noise.map_or("-".to_owned(), |noise| format!("{noise:.3}"));
    format!("{likeliest:>9}  {variation:>15.4}  {noise:>5}  {}", what(&group.rows))
}

fn side(side: &Side) -> String {
    format!("{} of {} ({})", rows(side.rows), counted(side.vocab_size as u64, "logit"), side.dtype)
}

/// A number of rows in words.
pub(super) fn rows(count: usize) -> String {
    counted(count as u64, "row")
}

/// The groups, in the order of their first rows.
fn groups(rows: &[ComparedRow]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in rows {
        let what = what_of(row, &|_| "others".to_owned());
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

/// A row's noise in logits of the plain row, so that it can be compared between temperatures.
fn noise(row: &ComparedRow) -> Option<f64> {
    match &row.is {
        Is::Plain(made) => Some(made.noise * made.temperature.unwrap_or(1.0)),
        _ => None,
    }
}

/// What a group of rows is. Counts that differ between its rows are given as a span.
fn what(rows: &[&ComparedRow]) -> String {
    let others = |change: usize| {
        let of_row = |row: &&ComparedRow| match &row.is {
            Is::Plain(made) => made.changes.get(change)?.named().map(|(tokens, first)| tokens - first.len()),
            _ => None,
        };
        let counts = || rows.iter().filter_map(of_row);
        let (least, most) = (counts().min().unwrap_or_default(), counts().max().unwrap_or_default());
        let most_others = counted(most as u64, "other");
        if least == most { most_others } else { format!("{} to {most_others}", grouped(least as u64)) }
    };
    rows.first().map(|row| what_of(row, &others)).unwrap_or_default()
}

/// What a row is. `others` says how many tokens a change, given by its place, has beyond those that it names.
fn what_of(row: &ComparedRow, others: &dyn Fn(usize) -> String) -> String {
    match &row.is {
        Is::Same if row.left_out > MAX_LEFT_OUT => {
            format!(
                "the plain row without its last columns, which have {:.1} % of the probability",
                100.0 * row.left_out
            )
        }
        Is::Same => "the plain row, number for number".to_owned(),
        Is::Plain(made) => made_of(row.row, made, others),
        Is::Probabilities => "probabilities instead of logits".to_owned(),
        Is::Blocks { order } => {
            let order: Vec<String> = order.iter().take(MAX_BLOCKS).map(usize::to_string).collect();
            format!("the plain row's columns in blocks, in the order {}", order.join(", "))
        }
        Is::Alike => "nearly the plain row's distribution, with different logits".to_owned(),
        Is::Reshaped { by: Reshape::Format { bits_of, read_as } } => {
            format!("the plain row, but the bits are {bits_of} and were read as {read_as}")
        }
        Is::Reshaped { by: Reshape::Curve } => "different numbers in nearly the plain row's order: a curve".to_owned(),
        Is::Unknown => "unlike any plain row".to_owned(),
        Is::AllMasked => "no token: every logit is -infinity".to_owned(),
        Is::NotFinite { token } => format!("a NaN or +infinity (token {token})"),
    }
}

fn made_of(row: usize, made: &Made, others: &dyn Fn(usize) -> String) -> String {
    let mut parts = vec![match (made.plain_row, row) {
        (plain, row) if plain == row && made.precise => "the plain row".to_owned(),
        (plain, row) if plain == row => "roughly the plain row".to_owned(),
        (plain, row) if plain + 1 == row => "the plain row of the previous position".to_owned(),
        (plain, row) if plain == row + 1 => "the plain row of the next position".to_owned(),
        (plain, _) => format!("plain row {plain}"),
    }];
    parts.extend(made.softcap.map(|softcap| match softcap {
        Softcap::Applied { cap } => format!("through a softcap of {}", cap_of(cap)),
        Softcap::Missing { cap } => format!("without its softcap of {}", cap_of(cap)),
    }));
    parts.extend(
        made.temperature.map(|temperature| format!("divided by a temperature of {}", temperature_of(temperature))),
    );
    parts.extend(made.shift.map(|_| "all logits shifted by a constant".to_owned()));
    parts.extend(made.changes.iter().enumerate().map(|(at, of)| change(of, &others(at))));
    parts.join(", ")
}

/// Describes a change.
fn change(change: &Change, others: &str) -> String {
    let named = |tokens, first| named(tokens, first, others);
    match change {
        Change::Filtered { tokens_left: 1 } => "only the likeliest token left".to_owned(),
        Change::Filtered { tokens_left } => format!("only the {} likeliest left", grouped(*tokens_left as u64)),
        Change::Masked { tokens, first } => format!("{} masked", named(*tokens, first)),
        Change::Unmasked { tokens, first } => format!("{} not masked", named(*tokens, first)),
        Change::Padding { from, columns: 1, beyond: true } => format!("column {from} lies beyond the plain row"),
        Change::Padding { from, columns, beyond: true } => {
            format!("the last {columns} columns (from {from} on) lie beyond the plain row")
        }
        Change::Padding { from, columns: 1, .. } => format!("a different number in the last column ({from})"),
        Change::Padding { from, columns, .. } => {
            format!("different numbers in the last {columns} columns (from {from} on)")
        }
        Change::RepetitionPenalty { penalty, tokens, in_text } => {
            format!("a repetition penalty of {penalty:.2}{}", of_text(*tokens, *in_text))
        }
        Change::CountPenalty { presence, frequency, subtracted_first, .. } => {
            let of = |kind: &str, penalty: f64| (penalty != 0.0).then(|| format!("a {kind} penalty of {penalty:.2}"));
            let parts = [of("presence", *presence), of("frequency", *frequency)];
            let order = if *subtracted_first { " before it" } else { "" };
            parts.into_iter().flatten().collect::<Vec<_>>().join(" and ") + order
        }
        Change::Bias { bias, tokens, in_text, first } => {
            format!("{bias:+.2} on {}{}", named(*tokens, first), of_text(*tokens, *in_text))
        }
        Change::Changed { tokens, in_text, first, .. } => {
            format!("{} changed{}", named(*tokens, first), of_text(*tokens, *in_text))
        }
    }
}

/// Such as `tokens 5, 7, 9 and 31 others`.
fn named(tokens: usize, first: &[u32], others: &str) -> String {
    let names: Vec<String> = first.iter().map(u32::to_string).collect();
    let others = if tokens > first.len() { format!(" and {others}") } else { String::new() };
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

/// A temperature near 1 with one digit more, and a small one with two digits that are not 0.
fn temperature_of(temperature: f64) -> String {
    if temperature < 0.1 {
        // Rounded first: 0.0099999 has as many zeros as 0.01.
        let zeros = format!("{temperature:.1e}").split_once('e').and_then(|(_, power)| power.parse::<i32>().ok());
        let digits = zeros.map_or(2, |power| 1 + power.unsigned_abs() as usize);
        format!("{temperature:.digits$}")
    } else if (temperature - 1.0).abs() < 0.1 {
        format!("{temperature:.3}")
    } else {
        format!("{temperature:.2}")
    }
}

/// A cap. Caps are whole numbers, and rounding hides the last percent of one.
fn cap_of(cap: f64) -> String {
    if (cap - cap.round()).abs() <= 0.01 * cap { format!("{cap:.0}") } else { format!("{cap:.1}") }
}
