//! The figures as lines of text, for a terminal and for a plain page.

mod load;

use super::figures::{Count, Error, Figures, Fill, Latency, Model};
use super::paths::{HandedOver, Path};
use super::speculation::{First, NOT_CHANCE, Position, Proposer, Rejected, Shift};
use super::table::{column, flow, table};
use super::units::{bytes, rate, share, time, uptime};
use crate::metrics::catalog::{self as cat, Def};
use crate::output::{self, counted, grouped};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};

/// How full a resource is when it is highlighted.
const FILLING: f64 = 0.7;
/// Width of "expected" and the space after it, and width of a position.
const ROW_LABEL: usize = 9;
const POSITION: usize = 5;
/// Levels of the sparkline of rates.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How full a resource is when the alert CroupierSaturated fires. If there is a Unix socket too, TCP may use only seven
/// eighths of the connections, so nine tenths of all of them would never be reached.
#[must_use]
pub fn full(resource: &str) -> f64 {
    if resource == "connections" { 0.8 } else { 0.9 }
}

/// Whether to use colour. No information is shown by colour alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theme {
    /// Use colour.
    pub color: bool,
}

impl Theme {
    /// The user's choice.
    #[must_use]
    pub fn detect() -> Self {
        Self { color: output::wants_color() }
    }

    fn paint(self, text: impl Into<String>, color: Color) -> Span<'static> {
        let style = if self.color { Style::new().fg(color) } else { Style::new() };
        Span::styled(clean(&text.into()), style)
    }

    fn dim(self, text: impl Into<String>) -> Span<'static> {
        Span::styled(clean(&text.into()), Style::new().add_modifier(Modifier::DIM))
    }

    fn bold(self, text: impl Into<String>) -> Span<'static> {
        let span = self.paint(text, Color::Cyan);
        span.add_modifier(Modifier::BOLD)
    }
}

fn plain(text: impl Into<String>) -> Span<'static> {
    Span::raw(clean(&text.into()))
}

/// A label without control characters. Labels come from clients and could otherwise move the cursor or change the
/// terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Lines of text under a title.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) title: Line<'static>,
    pub(super) lines: Vec<Line<'static>>,
}

/// A description of the server, in as many lines as it needs. A server that did not answer the last look may no longer
/// be what the figures say.
pub(super) fn header(f: &Figures, answers: bool, theme: Theme, width: usize) -> Vec<Line<'static>> {
    let state = match f.ready {
        _ if !answers => theme.paint("NO ANSWER", Color::Red),
        true => theme.paint("ready", Color::Green),
        false => theme.paint("NOT READY", Color::Red),
    };
    let device = if f.device.is_empty() { f.backend.clone() } else { format!("{} ({})", f.backend, f.device) };
    let mut items = vec![
        theme.bold(format!("croupier {}", f.version)),
        plain(f.address.clone()),
        state,
        plain(format!("up {}", uptime(f.uptime_seconds))),
        plain(device),
        plain(format!("{} resident", bytes(f.resident_bytes))),
        theme.dim(format!("over {:.1} s", f.seconds)),
    ];
    if f.restarted {
        items.push(theme.paint("restarted meanwhile: counted from its start", Color::Yellow));
    }
    flow(items, width)
}

/// All sections: first work and its limits, then models, data paths, drafts and errors. They form two columns if there
/// is room.
pub(super) fn sections(f: &Figures, history: &[f64], theme: Theme, width: usize) -> [Vec<Section>; 2] {
    [
        vec![
            tokens(f, history, theme, width),
            latency(f, theme, width),
            load::load(f, theme, width),
            fill(f, theme, width),
        ],
        vec![models(f, theme, width), paths(f, theme, width), speculation(f, theme, width), errors(f, theme, width)],
    ]
}

fn section(theme: Theme, title: &str, aside: &str, lines: Vec<Line<'static>>) -> Section {
    let mut title = Line::from(theme.bold(title));
    if !aside.is_empty() {
        title.push_span(theme.dim(format!("  {aside}")));
    }
    Section { title, lines }
}

fn tokens(f: &Figures, history: &[f64], theme: Theme, width: usize) -> Section {
    let items = vec![
        plain(format!("{} tokens/s", rate(f.tokens.per_second))).add_modifier(Modifier::BOLD),
        plain(format!("{} in flight", counted(f.rows_in_flight, "row"))),
        plain(format!("{} since the start", counted(f.tokens.total, "token"))),
    ];
    let mut lines = flow(items, width);
    let most = history.iter().copied().fold(0.0, f64::max);
    if history.len() > 1 && most > 0.0 {
        let level = |rate: &f64| LEVELS[((rate / most * 7.0).round() as usize).min(7)];
        let shown: String = history[history.len().saturating_sub(width)..].iter().map(level).collect();
        lines.push(Line::from(theme.paint(shown, Color::Green)));
    }
    section(theme, "TOKENS", "", lines)
}

/// The highest value that a histogram can distinguish.
fn highest(histogram: &Def) -> f64 {
    histogram.buckets.last().copied().unwrap_or(f64::INFINITY)
}

fn latency(f: &Figures, theme: Theme, width: usize) -> Section {
    let highest = highest(&cat::STEP_DURATION);
    let columns = [column("stage", 0), column("steps/s", 2), column("p50", 1), column("p90", 3), column("p99", 0)];
    let row = |l: &Latency| {
        let quantiles = [l.p50, l.p90, l.p99].map(|q| plain(time(q, highest)));
        [vec![plain(l.stage), plain(rate(l.steps.per_second))], quantiles.to_vec()].concat()
    };
    let rows: Vec<_> = f.latency.iter().map(row).collect();
    section(theme, "STEPS", "", table(&columns, |head| theme.dim(head), &rows, width))
}

fn fill(f: &Figures, theme: Theme, width: usize) -> Section {
    let columns = [column("bound", 0), column("used", 0), column("of", 1), column("", 2)];
    let row = |fill: &Fill| {
        let amount = |n| if fill.resource.contains("bytes") { bytes(n) } else { grouped(n) };
        let share = if fill.capacity == 0 { 0.0 } else { fill.used as f64 / fill.capacity as f64 };
        let percent = format!("{:.0}%", share * 100.0);
        let percent = match share {
            s if s > full(fill.resource) => theme.paint(percent, Color::Red),
            s if s > FILLING => theme.paint(percent, Color::Yellow),
            _ => plain(percent),
        };
        vec![plain(fill.resource), plain(amount(fill.used)), plain(amount(fill.capacity)), percent]
    };
    let rows: Vec<_> = f.fill.iter().map(row).collect();
    section(theme, "BOUNDS", "", table(&columns, |head| theme.dim(head), &rows, width))
}

fn models(f: &Figures, theme: Theme, width: usize) -> Section {
    let columns = [
        column("model", 0),
        column("tokens/s", 0),
        column("sample/s", 4),
        column("draft/s", 5),
        column("verify/s", 3),
        column("bad rows/s", 1),
        column("tokens", 2),
        column("sequences", 6),
    ];
    let row = |m: &Model| {
        let kind = |kind: &str| rate(m.rows.get(kind).map_or(0.0, |rows| rows.per_second));
        let bad = rate(m.rows_invalid.per_second);
        let bad = if m.rows_invalid.new > 0 { theme.paint(bad, Color::Red) } else { plain(bad) };
        let rows = ["sample", "draft", "verify"].map(|k| plain(kind(k)));
        let ends = [bad, plain(grouped(m.tokens.total)), plain(grouped(m.sequences))];
        [vec![plain(m.model.clone()), plain(rate(m.tokens.per_second))], rows.to_vec(), ends.to_vec()].concat()
    };
    let rows: Vec<_> = f.models.iter().map(row).collect();
    let lines = match rows.is_empty() {
        true => vec![Line::from(plain("no work since the start"))],
        false => table(&columns, |head| theme.dim(head), &rows, width),
    };
    section(theme, "MODELS", "", lines)
}

fn paths(f: &Figures, theme: Theme, width: usize) -> Section {
    let paths = &f.paths;
    let columns = [column("path", 0), column("steps/s", 0), column("shards/s", 1), column("steps", 2)];
    let row = |p: &Path| {
        let rates = [&p.steps, &p.shards].map(|count| plain(rate(count.per_second)));
        [vec![plain(p.data_path.clone())], rates.to_vec(), vec![plain(grouped(p.steps.total))]].concat()
    };
    let rows: Vec<_> = paths.used.iter().map(row).collect();
    let mut lines = match rows.is_empty() {
        true => vec![Line::from(plain("no steps since the start"))],
        false => table(&columns, |head| theme.dim(head), &rows, width),
    };
    let mut items = Vec::new();
    if let Some(wait) = paths.shard_wait_p99 {
        items.push(plain(format!("p99 {} until the last shard", time(Some(wait), highest(&cat::SHARD_WAIT)))));
    }
    let left =
        |h: &HandedOver| plain(format!("{} rows/s on the CPU beside the GPU: {}", rate(h.rows.per_second), h.reason));
    items.extend(paths.handed_over.iter().map(left));
    lines.extend(flow(items, width));
    section(theme, "DATA PATHS", &format!("regions {}, ranks {}", grouped(paths.regions), grouped(paths.ranks)), lines)
}

fn speculation(f: &Figures, theme: Theme, width: usize) -> Section {
    let active = f.speculation.proposers.iter().filter(|p| p.drafts.new > 0);
    let mut lines: Vec<Line<'static>> = active.flat_map(|p| proposer(p, theme, width)).collect();
    if lines.is_empty() {
        let text = if f.speculation.proposers.is_empty() { "no drafts since the start" } else { "no drafts meanwhile" };
        lines.push(Line::from(plain(text)));
    }
    section(theme, "DRAFTS", &format!("over {:.1} s", f.speculation.seconds), lines)
}

fn proposer(p: &Proposer, theme: Theme, width: usize) -> Vec<Line<'static>> {
    let of = |part: &Count, whole: &Count| (whole.new > 0).then(|| part.new as f64 / whole.new as f64);
    let each = of(&p.emitted_tokens, &p.drafts).unwrap_or_default();
    let items = vec![
        plain(format!("{} {}", p.model, p.proposer)).add_modifier(Modifier::BOLD),
        plain(format!("{} drafts/s", rate(p.drafts.per_second))),
        plain(format!("{} accepted", share(of(&p.accepted_tokens, &p.draft_tokens)))),
        plain(format!("{each:.2} tokens each")),
    ];
    let mut lines = flow(items, width);
    lines.extend(flow(measured(p, theme), width));
    lines.extend(flow(firsts(p), width));
    let to_a_line = (width.saturating_sub(ROW_LABEL) / POSITION).max(1);
    for part in p.positions.chunks(to_a_line) {
        let row = |label: &str, figure: &dyn Fn(&Position) -> String| {
            let cells: String = part.iter().map(|p| format!("{:>POSITION$}", figure(p))).collect();
            format!("{label:<ROW_LABEL$}{cells}")
        };
        lines.push(Line::from(theme.dim(row("position", &|p| p.position.clone()))));
        lines.push(Line::from(plain(row("accepted", &|p| share(p.accepted)))));
        lines.push(Line::from(plain(row("measured", &|p| share(p.measured.accepted)))));
        lines.push(Line::from(plain(row("expected", &|p| share(p.measured.expected)))));
    }
    lines
}

/// Acceptance of first draft tokens, by the origin of the token before them.
fn firsts(p: &Proposer) -> Vec<Span<'static>> {
    let each = |(at, first): (usize, &First)| {
        let label = if at == 0 { "first tokens after " } else { "" };
        plain(format!("{label}{} {}", first.after, share(first.accepted)))
    };
    p.firsts.iter().enumerate().map(each).collect()
}

/// What was measured, over all positions.
fn measured(p: &Proposer, theme: Theme) -> Vec<Span<'static>> {
    let mut items = vec![plain(format!("{} measured", grouped(p.measured.tests.max(p.drawn.tokens))))];
    if p.measured.tests > 0 {
        items.push(off("accepted", p.measured.standard_errors, "not as expected", theme));
    }
    if p.drawn.tokens > 0 {
        items.push(off("drawn", p.drawn.standard_errors, "not as claimed", theme));
    }
    if p.siblings.compared > 0 {
        items.push(off("siblings", p.siblings.standard_errors, "not as claimed", theme));
    }
    items.extend(p.shifts.iter().filter(|shift| shift.is_shifted).map(|shift| off_by_one(shift, theme)));
    items.extend(p.total_variation.map(|distance| plain(format!("tv {}", share(Some(distance))))));
    let rank = |r: &Rejected| r.median_rank.map_or(String::new(), |rank| format!(" (rank {})", of_rank(rank)));
    items.extend(p.rejected.iter().map(|r| plain(format!("{} {}{}", r.reason, grouped(r.tokens), rank(r)))));
    items
}

/// A rank that was estimated from its place between two bounds. Where the bounds are far apart, only the lower one is
/// shown.
fn of_rank(rank: f64) -> String {
    match cat::RANKS.iter().rfind(|&&bound| bound < rank) {
        Some(&bound) if bound >= 100.0 => format!(">{}", grouped(bound as u64)),
        _ => grouped(rank.ceil() as u64),
    }
}

/// How far a figure is from its expected value, in standard errors.
fn off(what: &str, standard_errors: f64, wrong: &str, theme: Theme) -> Span<'static> {
    // Adding 0.0 removes the minus sign of a value that rounds to 0.
    let rounded = (standard_errors * 10.0).round() / 10.0 + 0.0;
    let text = format!("{what} {rounded:+.1} se");
    match standard_errors.abs() > NOT_CHANCE {
        true => theme.paint(format!("{text}: {wrong}"), Color::Red),
        false => plain(text),
    }
}

/// A note that rows are one place off.
fn off_by_one(shift: &Shift, theme: Theme) -> Span<'static> {
    let [own, shifted] = [shift.own, shift.shifted].map(|overlap| share(Some(overlap)));
    theme.paint(format!("rows one {}: overlap {shifted}, not {own}", shift.shift), Color::Red)
}

fn errors(f: &Figures, theme: Theme, width: usize) -> Section {
    let columns = [
        column("reason", 0),
        column("what", 3),
        column("model", 4),
        column("new", 1),
        column("/s", 2),
        column("total", 0),
    ];
    let row = |e: &Error| {
        let new = grouped(e.count.new);
        let new = if e.count.new > 0 { theme.paint(new, Color::Red) } else { plain(new) };
        let model = e.model.clone().unwrap_or_default();
        vec![
            plain(e.reason.clone()),
            plain(e.kind),
            plain(model),
            new,
            plain(rate(e.count.per_second)),
            plain(grouped(e.count.total)),
        ]
    };
    let rows: Vec<_> = f.errors.iter().map(row).collect();
    let lines = match rows.is_empty() {
        true => vec![Line::from(plain("none since the start"))],
        false => table(&columns, |head| theme.dim(head), &rows, width),
    };
    section(theme, "ERRORS AND REFUSALS", "", lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_between_far_bounds_is_not_guessed() {
        for (rank, shown) in
            [(0.5, "1"), (74.2, "75"), (100.0, "100"), (302.0, ">300"), (9_000.0, ">3,000"), (1e5, ">50,000")]
        {
            assert_eq!(of_rank(rank), shown, "{rank}");
        }
    }
}
