//! What is said at the end: each lane's parameters, figures and a piece of text, the checks, the metrics.

use crate::Result;
use crate::board::State;
use crate::lanes::Lane;
use crate::rows::Dtype;
use crate::screen::{LABEL_WIDTH, Style, grouped, readable, wrap};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;
use tiktoken_rs::CoreBPE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const EXCERPT_LINES: usize = 3;
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// Which metrics to show, by how their lines begin; the URL has them all.
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
        for line in excerpt(lane, tokenizer, width - LABEL_WIDTH - 1) {
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

fn excerpt(lane: &Lane, tokenizer: &CoreBPE, width: usize) -> Vec<String> {
    let text = readable(&text(lane.excerpt(), tokenizer));
    let mut lines = wrap(&text, width);
    if lines.len() > EXCERPT_LINES {
        lines.truncate(EXCERPT_LINES);
        if let Some(last) = lines.last_mut() {
            *last = console::truncate_str(&format!("{last} …"), width, "…").into_owned();
        }
    }
    lines
}

/// The bytes of tokens without the end of text.
fn text(tokens: &[u32], tokenizer: &CoreBPE) -> Vec<u8> {
    let words: Vec<u32> = tokens.iter().copied().filter(|&token| token != crate::corpus::END_OF_TEXT).collect();
    tokenizer.decode_bytes(&words).unwrap_or_default()
}

/// How fast it was.
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

/// What must be true of the lanes, and whether it is.
pub(crate) fn checks(lanes: &[Lane], tokenizer: &CoreBPE) -> Vec<(&'static str, bool)> {
    let lane = |label| lanes.iter().find(move |lane: &&Lane| lane.label == label);
    let emitted = |label| lane(label).map_or(&[][..], |lane| &lane.tokens);
    let no_e = !text(emitted("no letter e"), tokenizer).to_ascii_lowercase().contains(&b'e');
    let banned = lane("biased").map_or(&[][..], Lane::banned);
    vec![
        ("same seed, same text", !emitted("twin A").is_empty() && emitted("twin A") == emitted("twin B")),
        ("no banned token", !emitted("biased").iter().any(|token| banned.contains(token))),
        ("no letter e where none is allowed", no_e),
    ]
}

/// Reads the metrics as Prometheus would, and picks a few.
pub(crate) async fn metrics(admin: SocketAddr) -> Result<Vec<String>> {
    let body = tokio::time::timeout(SCRAPE_TIMEOUT, get(admin, "/metrics")).await??;
    let lines = |begin: &'static str| body.lines().filter(move |line| line.starts_with(begin) && !line.ends_with(" 0"));
    Ok(SHOWN_METRICS.into_iter().flat_map(lines).map(str::to_owned).collect())
}

/// The body of a page. HTTP/1.0, so that it comes in one piece and the connection ends with it.
async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut connection = tokio::net::TcpStream::connect(address).await?;
    connection.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut page = String::new();
    connection.read_to_string(&mut page).await?;
    match page.split_once("\r\n\r\n") {
        Some((head, body)) if head.lines().next().is_some_and(|line| line.contains(" 200 ")) => Ok(body.to_owned()),
        _ => Err(format!("http://{address}{path}: {}", page.lines().next().unwrap_or("no answer")).into()),
    }
}
