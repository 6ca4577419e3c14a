//! An explanation as tables for people.

use super::{ExplainedStage, ExplainedToken, Explanation, GREEDY};
use crate::output::{counted, cut, grouped, padded};
use std::fmt::Write as _;

/// Width of the bar of the most likely token.
const BAR: f32 = 24.0;
/// Width of a token's text.
const TEXT: usize = 16;
/// Least width of a stage.
const STAGE: usize = 24;

pub(super) fn render(explanation: &Explanation) -> String {
    let (row, last) = (explanation.row, explanation.rows - 1);
    let which = if last > 0 { format!("row {row} of rows 0 to {last}: ") } else { String::new() };
    let mut table = format!(
        "{which}{} ({}), {} of them -infinity; position {}, seed {}\n\n",
        counted(explanation.vocab_size as u64, "logit"),
        explanation.dtype,
        grouped(explanation.masked_as_sent as u64),
        explanation.position,
        explanation.seed
    );
    table += &stage_lines(&explanation.stages);
    let has_texts = explanation.tokens.iter().any(|token| token.text.is_some());
    let text = if has_texts { format!("  {:TEXT$}", "text") } else { String::new() };
    let columns = [
        format!("{:>9}{text}", "token"),
        format!("{:>10} {:>10}", "logit", "adjusted"),
        format!("{:>8} {:>8}", "raw", "drawn"),
    ];
    let _ = writeln!(table, "\n{}", columns.join(" "));
    let most = explanation.tokens.iter().map(|token| token.probability).fold(f32::MIN_POSITIVE, f32::max);
    explanation.tokens.iter().for_each(|token| table += &token_line(token, explanation.token, most, has_texts));
    let end = explanation.finish_reason.map_or(String::new(), |reason| format!("; it ends the text ({reason})"));
    let _ = writeln!(
        table,
        "\nThe token is {}: logprob {:.4}, as sent {:.4}, rank {}{end}",
        explanation.token, explanation.logprob, explanation.raw_logprob, explanation.rank
    );
    table
}

fn stage_lines(stages: &[ExplainedStage]) -> String {
    let names: Vec<String> = stages.iter().map(name).collect();
    let width = names.iter().map(String::len).fold(STAGE, usize::max);
    let mut lines = format!("{:width$} {:>11} {:>9} {:>13}\n", "stage", "tokens left", "kept", "entropy, bits");
    for (stage, name) in stages.iter().zip(names) {
        let (left, kept) = (grouped(stage.tokens_left as u64), format!("{:.2} %", stage.kept * 100.0));
        let _ = writeln!(lines, "{name:width$} {left:>11} {kept:>9} {:>13.3}", stage.entropy_bits);
    }
    lines
}

/// The name of a stage, and the values of its parameter if that was not used as it was given.
fn name(stage: &ExplainedStage) -> String {
    match (&stage.changed, stage.stage) {
        (None, name) => name.to_owned(),
        (Some(changed), GREEDY) => format!("{GREEDY} (temperature {} given)", changed.given),
        (Some(changed), name) => format!("{name} {} ({} given)", changed.used, changed.given),
    }
}

fn token_line(token: &ExplainedToken, drawn: u32, most: f32, has_texts: bool) -> String {
    let text = token.text.as_deref().map(shown).unwrap_or_default();
    let text = if has_texts { format!("  {}", padded(&text, TEXT)) } else { String::new() };
    let logits = [token.logit, token.adjusted_logit].map(logit).join(" ");
    let shares = format!("{:>8.5} {:>8.5}", token.raw_probability, token.probability);
    let fate = match token.removed_by {
        Some(by) => format!("removed by {by}"),
        None => "█".repeat((token.probability / most * BAR).round() as usize),
    };
    let mark = if token.token == drawn { ">" } else { " " };
    let line = format!("{mark}{:>8}{text} {logits} {shares}  {fate}", token.token);
    format!("{}\n", line.trim_end())
}

/// A logit formatted for its column.
fn logit(logit: f32) -> String {
    if logit.is_finite() && logit.abs() >= 1e5 { format!("{logit:>10.2e}") } else { format!("{logit:>10.4}") }
}

/// A token's text on one line. Quotes make spaces visible.
fn shown(text: &str) -> String {
    cut(&format!("{text:?}"), TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn columns_stand_below_each_other_whatever_the_letters() {
        let line = |text: &str| {
            let token = ExplainedToken {
                token: 7,
                text: Some(text.to_owned()),
                logit: 1.0,
                adjusted_logit: 1.0,
                raw_probability: 0.5,
                probability: 0.0,
                removed_by: Some("top_k"),
            };
            token_line(&token, 7, 1.0, true)
        };
        let column = |text: &str| line(text).split_once("1.0000").unwrap().0.width();
        for text in ["模型", "한국어 단어가 길다 아주 길다", "🙂🙂", "é", "\x1b[31m\n", "a very long text of a token"]
        {
            assert_eq!(column(text), column("a"), "{text:?}");
        }
        assert!(line("模型").contains("\"模型\"") && !line("\x1b").contains('\x1b'));
    }
}
