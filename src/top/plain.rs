//! The figures as plain text.

use super::Figures;
use super::view::{Theme, header, sections};
use ratatui::text::Line;

/// Width of the page if there is no terminal.
const WIDTH: u16 = 80;
const NARROWEST: u16 = 20;

/// Width of the page: that of the terminal, if there is one.
pub(super) fn width() -> usize {
    use std::io::IsTerminal;
    let terminal = std::io::stdout().is_terminal().then(ratatui::crossterm::terminal::size);
    terminal.and_then(Result::ok).map_or(WIDTH, |(columns, _)| columns.max(NARROWEST)).into()
}

/// All figures without colour, for pipes and logs.
pub(super) fn page(figures: &Figures, width: usize) -> String {
    let theme = Theme { color: false };
    let mut lines = header(figures, true, theme, width);
    for section in sections(figures, &[], theme, width).into_iter().flatten() {
        lines.extend([Line::default(), section.title]);
        lines.extend(section.lines);
    }
    lines.iter().map(|line| format!("{}\n", line.to_string().trim_end())).collect()
}
