//! The report at the end: each lane's parameters, figures and a piece of text, the checks, the metrics.

use crate::board::State;
use crate::lanes::Lane;
use crate::support::rows::Dtype;
use crate::support::screen::{LABEL_WIDTH, Style, excerpt, grouped, wrap};
use crate::support::{Result, corpus, scrape};
use std::fmt::Write as _;
use std::net::SocketAddr;
use tiktoken_rs::CoreBPE;

const EXCERPT_LINES: usize = 3;
/// The beginnings of the metric lines that are shown. The URL has all metrics.
const SHOWN_METRICS: [&str; 5] = [
    "croupier_tokens_total{model=\"demo-ngram\"",
    "croupier_sequences_finished_total{model=\"demo-ngram\"",
    "croupier_request_bytes_sum",
    "croupier_step_duration_seconds_sum{stage=\"queue\"",
    "croupier_step_duration_seconds_sum{stage=\"backend\"",
];

/// One card per lane.
pub(crate) fn lanes(lanes: &[Lane], tokenizer: &CoreBPE, style: Style) -> String {
    let width = style.width();
    let mut out = String::new();
    for (i, lane) in lanes.iter().enumerate() {
        let _ = writeln!(out, "{}{}", style.label(i, lane.label), style.bold(&lane.summary));
        let indent = " ".repeat(LABEL_WIDTH);
        for line in wrap(&summary(lane), width - LABEL_WIDTH - 1) {
            let _ = writeln!(out, "{indent}{}", style.dim(&line));
        }
        let text = corpus::text(tokenizer, lane.excerpt());
        for line in excerpt(&text, width - LABEL_WIDTH - 1, EXCERPT_LINES) {
            let _ = writeln!(out, "{indent}{line}");
        }
        if i + 1 < lanes.len() {
            out.push('\n');
        }
    }
    out
}

fn summary(lane: &Lane) -> String {
    let tokens = lane.tokens.len();
    let mean = lane.logprob_sum / tokens.max(1) as f64;
    let mut ends: Vec<String> = lane.finishes.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    if ends.is_empty() {
        ends.push("1 unfinished".into());
    }
    format!("{} tokens, mean logprob {mean:.2}, texts: {}", grouped(tokens as u64), ends.join(", "))
}

/// The speed as text.
pub(crate) fn speed(state: &State, dtype: Dtype) -> String {
    let each = state.making.as_secs_f64() * 1e3 / state.tokens.max(1) as f64;
    format!(
        " {}: {} tokens in {:.1} s, {} tokens/s, {:.0} MB/s of {} logits\n \
         a step takes {:.1} ms (p50), {:.1} ms (p99), with {} of them in flight\n \
         the model makes a row of {:.0} kB in {each:.2} ms\n",
        state.pace.name(),
        grouped(state.tokens),
        state.elapsed().as_secs_f64(),
        grouped(state.tokens_per_second().round() as u64),
        state.bytes_per_second() / 1e6,
        dtype.name(),
        state.latency_ms(0.5),
        state.latency_ms(0.99),
        state.steps_in_flight,
        state.row_bytes as f64 / 1e3,
    )
}

/// Claims about the lanes, and whether each is true.
pub(crate) fn checks(lanes: &[Lane], tokenizer: &CoreBPE) -> Vec<(&'static str, bool)> {
    let lane = |label| lanes.iter().find(move |lane: &&Lane| lane.label == label);
    let emitted = |label| lane(label).map_or(&[][..], |lane| &lane.tokens);
    let no_e = !corpus::text(tokenizer, emitted("no letter e")).to_ascii_lowercase().contains(&b'e');
    let banned = lane("biased").map_or(&[][..], Lane::banned);
    vec![
        ("same seed, same text", !emitted("twin A").is_empty() && emitted("twin A") == emitted("twin B")),
        ("no banned token", !emitted("biased").iter().any(|token| banned.contains(token))),
        ("no letter e where none is allowed", no_e),
    ]
}

/// The lines of the scrape that are shown.
pub(crate) async fn metrics(admin: SocketAddr) -> Result<Vec<String>> {
    Ok(scrape::lines(&scrape::metrics(admin).await?, &SHOWN_METRICS))
}
