//! The live view: a few lines per lane that grow in place, and a line of figures.

use crate::board::State;
use crate::support::screen::{LABEL_WIDTH, Style, grouped, readable, size, tail};
use console::truncate_str;

/// Lines that do not belong to lanes: title, figures, pace, spaces in between, the cursor's line.
const OTHER_LINES: usize = 7;
const MAX_LINES_PER_LANE: usize = 3;

/// The lanes and the figures, as large as the terminal allows.
pub(crate) fn frame(state: &State, style: Style) -> Vec<String> {
    let (height, _) = size();
    let width = style.width();
    let per_lane = (height.saturating_sub(OTHER_LINES) / state.lanes.len()).clamp(1, MAX_LINES_PER_LANE);
    let mut lines = Vec::new();
    for (i, (label, text)) in state.lanes.iter().enumerate() {
        let text = tail(&readable(text), width - LABEL_WIDTH - 1, per_lane);
        for line in 0..per_lane {
            let label = if line == 0 { *label } else { "" };
            lines.push(style.label(i, label) + text.get(line).map_or("", String::as_str));
        }
    }
    lines.push(String::new());
    lines.push(truncate_str(&format!(" {}", figures(state)), width, "").into_owned());
    lines.push(style.dim(&format!(" {}", state.pace.name())));
    lines
}

/// The line of figures.
pub(crate) fn figures(state: &State) -> String {
    format!(
        "{:.0} s  {} tokens, {}/s  step p50 {:.1} ms p99 {:.1} ms  {} rows in flight",
        state.elapsed().as_secs_f64(),
        grouped(state.tokens),
        grouped(state.tokens_per_second().round() as u64),
        state.latency_ms(0.5),
        state.latency_ms(0.99),
        state.rows_in_flight,
    )
}
