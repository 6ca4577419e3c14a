//! The report at the end: a text of each lane, the figures side by side, verdicts, checks, the metrics.

use crate::board::Seen;
use crate::lanes::{Drafts, Lane, Prompts};
use crate::shift::{SHIFTS, Shift};
use crate::support::screen::{LABEL_WIDTH, Style, excerpt, grouped, wrap};
use crate::support::{corpus, scrape};
use crate::tally::{MAX_STANDARD_ERRORS, Tally};
use crate::view::pair;
use crate::worker::World;
use std::fmt::Write as _;

const EXCERPT_LINES: usize = 3;
/// The metrics that are shown. The URL has all of them.
const SHOWN_METRICS: [&str; 2] = ["num_draft_tokens_total", "num_accepted_tokens_total"];
/// The metrics that are shown for the first position in a draft.
const SHOWN_OF_FIRST: [&str; 3] =
    ["expected_acceptance_count", "expected_acceptance_sum", "num_measured_accepted_tokens_per_pos_total"];

/// Each lane's figures and the beginning of its first text.
pub(crate) fn cards(lanes: &[Lane], seen: &[Seen], world: &World, style: Style) -> String {
    let width = style.width() - LABEL_WIDTH - 1;
    let mut out = String::new();
    for (i, (lane, seen)) in lanes.iter().zip(seen).enumerate() {
        let prompt = world.prompts.get(world.seed, 0);
        let text: Vec<u32> =
            Prompts::shown(&prompt).iter().chain(seen.texts.iter().take(1).flatten()).copied().collect();
        let mut label = lane.label;
        for line in wrap(&lane.summary, width) {
            let _ = writeln!(out, "{}{}", style.label(i, label), style.bold(&line));
            label = "";
        }
        for line in excerpt(&corpus::text(&world.tokenizer, &text), width, EXCERPT_LINES) {
            let _ = writeln!(out, "{}{line}", " ".repeat(LABEL_WIDTH));
        }
    }
    out
}

/// The gain of each lane.
pub(crate) fn table(seen: &[Seen], draft_cost: f32, verify_cost: f32, style: Style) -> String {
    let head = format!(
        "{:LABEL_WIDTH$}{:>7}{:>7}{:>7}{:>7}{:>8}{:>7}{:>8}{:>8}{:>6}",
        "", "", "target", "target", "draft", "tokens", "", "accept.", "", ""
    );
    let more = format!(
        "{:LABEL_WIDTH$}{:>7}{:>7}{:>7}{:>7}{:>8}{:>7}{:>8}{:>8}{:>6}",
        "", "tokens", "steps", "rows", "rows", "/step", "/row", "/draft", "advised", "speed"
    );
    let mut out = format!("{}\n{}\n", style.dim(&head), style.dim(&more));
    for (i, seen) in seen.iter().enumerate() {
        let (drafts, dash) = (seen.drafts > 0, || "-".to_owned());
        let accepted = if drafts { format!("{:.2}", seen.accepted_length()) } else { dash() };
        let advised = seen.advised.map_or_else(dash, |_| format!("{:.1}", seen.mean_advised()));
        let _ = writeln!(
            out,
            "{}{:>7}{:>7}{:>7}{:>7}{:>8.2}{:>7.2}{accepted:>8}{advised:>8}{:>6.2}",
            style.label(i, seen.label),
            grouped(seen.tokens),
            grouped(seen.steps),
            grouped(seen.rows),
            grouped(seen.draft_rows),
            seen.tokens_per_step(),
            seen.tokens_per_row(),
            seen.speed(draft_cost.into(), verify_cost.into()),
        );
    }
    out + &style.dim(&format!(
        " speed: tokens in the time of a target step, if a draft row takes {draft_cost} of it and a further target row \
         {verify_cost}\n"
    ))
}

/// Observed and expected acceptance by position.
pub(crate) fn positions(seen: &[Seen], style: Style) -> String {
    let most = seen.iter().map(|seen| seen.positions.len()).max().unwrap_or_default();
    let fit = most.min((style.width() - LABEL_WIDTH) / 8);
    let numbers: String = (1..=fit).map(|position| format!("{position:>8}")).collect();
    let mut out = style.dim(&format!("{:LABEL_WIDTH$}{numbers}", " accepted/"));
    out += &style.dim("\n expected at position\n");
    for (i, seen) in seen.iter().enumerate().filter(|(_, seen)| !seen.positions.is_empty()) {
        let pairs: String = seen.positions.iter().take(fit).map(|tally| format!("{:>8}", pair(tally))).collect();
        let _ = writeln!(out, "{}{pairs}", style.label(i, seen.label));
    }
    out
}

/// For each lane with drafts: whether its acceptance is as expected and its tokens are drawn as claimed, and what it
/// means if not.
pub(crate) fn verdicts(lanes: &[Lane], seen: &[Seen], style: Style) -> String {
    let mut out = String::new();
    for (i, (lane, seen)) in lanes.iter().zip(seen).enumerate() {
        let mut label = lane.label;
        let acceptance = verdict("observed", "expected", "as expected", &seen.acceptance());
        let drawn = verdict("drawn", "claimed", "as claimed", &seen.drawn);
        for (verdict, is_honest) in acceptance.into_iter().chain(drawn) {
            for line in wrap(&verdict, style.width() - LABEL_WIDTH - 1) {
                let line = if is_honest { line } else { style.bold(&line) };
                let _ = writeln!(out, "{}{line}", style.label(i, label));
                label = "";
            }
        }
    }
    out
}

/// The verdict on tests, if there were any, and whether they came out as expected.
fn verdict(is: &str, has_to_be: &str, fine: &str, tally: &Tally) -> Option<(String, bool)> {
    let (observed, expected) = tally.shares();
    let meaning = match tally.is_honest() {
        true => fine,
        false => "the draft tokens were not drawn from the distribution that was sent",
    };
    let errors = tally.standard_errors();
    let text = format!("{is} {observed:.3}, {has_to_be} {expected:.3}, {errors:+.1} standard errors: {meaning}");
    (tally.tests > 0).then(|| (text, tally.is_honest()))
}

/// A claim, the details, and whether it is true.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) claim: String,
    pub(crate) detail: String,
    pub(crate) holds: bool,
}

/// Claims about the lanes that must be true.
pub(crate) fn checks(lanes: &[Lane], seen: &[Seen], temperature: f64, page: &str) -> Vec<Check> {
    let mut checks = Vec::new();
    for (lane, own) in lanes.iter().zip(seen) {
        let honest = lane.is_honest(temperature);
        match lane.drafts {
            Drafts::Nowhere => continue,
            Drafts::Proposed(_) => checks.push(same_text(lane, own, &seen[0])),
            Drafts::Kept | Drafts::Sent { .. } if honest => checks.push(same_distribution(lane, own)),
            _ => {}
        }
        let (claim, detail) = match honest {
            true => (format!("{}: acceptance within {MAX_STANDARD_ERRORS} standard errors", lane.label), String::new()),
            false => (format!("{}: detected by its acceptance", lane.label), first_tokens(own)),
        };
        checks.push(Check { claim, detail, holds: own.acceptance().is_honest() == honest });
        if own.drawn.tests > 0 {
            let claim = match honest {
                true => format!("{}: drawn as claimed, within {MAX_STANDARD_ERRORS} standard errors", lane.label),
                false => format!("{}: detected by what it draws", lane.label),
            };
            checks.push(Check { claim, detail: String::new(), holds: own.drawn.is_honest() == honest });
        }
    }
    checks.extend(shift_checks(lanes, seen, None));
    let told = |seen: &Seen| (seen.acceptance().tests as f64, seen.acceptance().observed);
    let claim = "the metrics count the tests and acceptances that the replies reported".into();
    let holds = lanes.iter().zip(seen).all(|(lane, seen)| counted(page, lane) == told(seen));
    checks.push(Check { claim, detail: String::new(), holds });
    checks
}

/// Checks that rows one place off are detected in every lane with drafts, and nowhere else.
pub(crate) fn shift_checks(lanes: &[Lane], seen: &[Seen], shift: Option<Shift>) -> Vec<Check> {
    let mut checks = Vec::new();
    for (lane, seen) in lanes.iter().zip(seen).filter(|(lane, _)| lane.drafts != Drafts::Nowhere) {
        let claim = match shift {
            None => format!("{}: drafts fit the rows that they are compared with", lane.label),
            Some(shift) => format!("{}: rows that are one {} are detected", lane.label, shift.name()),
        };
        let fit = SHIFTS.iter().zip(&seen.shifts).map(|(fits, overlap)| {
            let (own, shifted) = overlap.means();
            let errors = overlap.standard_errors();
            format!("if rows were one {}: overlap {shifted:.2}, not {own:.2}, {errors:+.1} se", fits.name())
        });
        let detail = fit.collect::<Vec<_>>().join("; ");
        let holds = SHIFTS.iter().zip(&seen.shifts).all(|(&fits, fit)| fit.is_shifted() == (shift == Some(fits)));
        checks.push(Check { claim, detail, holds });
    }
    checks
}

fn same_text(lane: &Lane, seen: &Seen, plain: &Seen) -> Check {
    let (tokens, same) = (common(&plain.texts, &seen.texts), equal(&plain.texts, &seen.texts));
    let detail = format!(
        "{} of {} tokens are the same. Its drafts involve no chance, so one random number decides: the one that draws \
         plain's token.",
        grouped(same),
        grouped(tokens)
    );
    let holds = same == tokens && tokens > 0 && seen.lossy == 0;
    Check { claim: format!("{}: the text of plain, token for token", lane.label), detail, holds }
}

fn same_distribution(lane: &Lane, seen: &Seen) -> Check {
    let why = match lane.drafts {
        Drafts::Kept => {
            "A drawn draft uses different random numbers, for its acceptance and for what replaces it. So the seed gives a \
             different text than plain's, from the same distribution: "
        }
        _ => "",
    };
    let detail = format!("{why}{}", first_tokens(seen));
    let holds = seen.first.is_honest() && seen.lossy == 0;
    Check { claim: format!("{}: another text, the target's distribution", lane.label), detail, holds }
}

/// Whether the emitted tokens are those that the target would emit.
fn first_tokens(seen: &Seen) -> String {
    let (observed, expected) = seen.first.shares();
    let errors = seen.first.standard_errors();
    format!(
        "the target's likeliest token is emitted {observed:.3} of the time, expected {expected:.3}, {errors:+.1} se."
    )
}

/// A lane's numbers of tests and acceptances, from the metrics.
fn counted(page: &str, lane: &Lane) -> (f64, f64) {
    let sum = |name: &str| {
        let begin = format!("croupier_spec_decode_{name}{{model=\"{}\"", lane.model);
        let lines = page.lines().filter(|line| line.starts_with(&begin));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    (sum("expected_acceptance_count"), sum("num_measured_accepted_tokens_per_pos_total"))
}

/// Number of tokens that can be compared: a lane may have got further in its last text, or have more texts.
fn common(a: &[Vec<u32>], b: &[Vec<u32>]) -> u64 {
    a.iter().zip(b).map(|(a, b)| a.len().min(b.len()) as u64).sum()
}

/// Number of those tokens that are equal.
fn equal(a: &[Vec<u32>], b: &[Vec<u32>]) -> u64 {
    let same = |(a, b): (&Vec<u32>, &Vec<u32>)| a.iter().zip(b).filter(|(a, b)| a == b).count() as u64;
    a.iter().zip(b).map(same).sum()
}

/// The relevant lines of the metrics.
pub(crate) fn metrics(page: &str) -> Vec<String> {
    let all = SHOWN_METRICS.map(|name| format!("croupier_spec_decode_{name}{{model=\"spec-"));
    let first = SHOWN_OF_FIRST.map(|name| format!("croupier_spec_decode_{name}{{model=\"spec-"));
    let [all, first] = [&all[..], &first[..]].map(|begins| {
        let begins: Vec<&str> = begins.iter().map(String::as_str).collect();
        scrape::lines(page, &begins)
    });
    let first = first.into_iter().filter(|line| line.contains("position=\"0\""));
    let mut lines: Vec<String> = all.into_iter().chain(first).collect();
    lines.sort();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_compared_as_far_as_both_go() {
        let (a, b) = (vec![vec![1, 2, 3], vec![4, 5]], vec![vec![1, 2], vec![4, 6, 7], vec![8]]);
        assert_eq!((common(&a, &b), equal(&a, &b)), (4, 3));
    }
}
