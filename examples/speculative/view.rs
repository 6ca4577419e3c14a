//! The live view: for each lane its gain, its acceptance by position, and its text.

use crate::board::{Seen, State};
use crate::support::screen::{LABEL_WIDTH, Style, grouped, readable, size, tail};
use crate::tally::Tally;
use console::truncate_str;

/// Lines that do not belong to lanes: title, address, pace, spaces in between, the cursor's line.
const OTHER_LINES: usize = 7;
const MAX_LINES_PER_LANE: usize = 5;
/// Positions that fit on a line of 80 columns.
const POSITIONS: usize = 4;

/// The lanes, as large as the terminal allows.
pub(crate) fn frame(state: &State, style: Style) -> Vec<String> {
    let (height, _) = size();
    let width = style.width() - LABEL_WIDTH - 1;
    let per_lane = (height.saturating_sub(OTHER_LINES) / state.lanes.len()).clamp(3, MAX_LINES_PER_LANE);
    let mut lines = Vec::new();
    for (i, seen) in state.lanes.iter().enumerate() {
        let mut own = vec![style.dim(&truncate_str(&gain(seen), width, ""))];
        own.extend(acceptance(seen).map(|line| style.dim(&truncate_str(&line, width, ""))));
        let left = per_lane - own.len();
        own.extend(tail(&readable(&seen.text), width, left));
        own.resize(per_lane, String::new());
        for (line, text) in own.into_iter().enumerate() {
            lines.push(style.label(i, if line == 0 { seen.label } else { "" }) + &text);
        }
    }
    let pace = match state.is_reading() {
        true => "A step of the target takes every lane the same time.",
        false => "at full speed",
    };
    lines.push(String::new());
    lines.push(style.dim(&truncate_str(
        &format!(" {:.0} s  {pace}", state.started.elapsed().as_secs_f64()),
        width,
        "",
    )));
    lines
}

/// One line for a log.
pub(crate) fn progress(state: &State) -> String {
    let lane = |seen: &Seen| {
        let errors = match seen.acceptance() {
            Tally { tests: 0, .. } => String::new(),
            tally => format!(" {:+.1} se", tally.standard_errors()),
        };
        format!("{} {} ({:.2}/step{errors})", seen.label, grouped(seen.tokens), seen.tokens_per_step())
    };
    let lanes: Vec<String> = state.lanes.iter().map(lane).collect();
    format!("{:.0} s  tokens: {}", state.started.elapsed().as_secs_f64(), lanes.join(", "))
}

/// What a lane gains per step and per row.
fn gain(seen: &Seen) -> String {
    let mut line = format!(
        "{} tokens, {:.2} per step, {:.2} per row",
        grouped(seen.tokens),
        seen.tokens_per_step(),
        seen.tokens_per_row(),
    );
    if seen.drafts > 0 {
        line += &format!(", {:.1} accepted", seen.accepted_length());
    }
    if let Some(advised) = seen.advised {
        line += &format!(", advised {advised}");
    }
    line
}

fn acceptance(seen: &Seen) -> Option<String> {
    if seen.positions.is_empty() {
        return None;
    }
    let positions: Vec<String> = seen.positions.iter().take(POSITIONS).map(pair).collect();
    let errors = seen.acceptance().standard_errors();
    Some(format!("accepted/expected {} {errors:+.1} se", positions.join(" ")))
}

/// Observed and expected shares.
pub(crate) fn pair(tally: &Tally) -> String {
    let (observed, expected) = tally.shares();
    format!("{}/{}", share(observed), share(expected))
}

/// A share, three columns wide.
fn share(share: f64) -> String {
    let text = format!("{share:.2}");
    text.strip_prefix('0').map_or("1.0".into(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_short() {
        assert_eq!([0.0, 0.004, 0.5, 0.994, 0.996, 1.0].map(share), [".00", ".00", ".50", ".99", "1.0", "1.0"]);
    }
}
