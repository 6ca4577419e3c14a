//! Reads the metrics as Prometheus does.

use super::Result;
use croupier::admin_client;
use std::net::SocketAddr;
use std::time::Duration;

const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a page. A page has some 40 kB, and some 10 kB more for each model and proposer.
const LONGEST_PAGE: u64 = 16 << 20;

/// The page of metrics.
pub(crate) async fn metrics(admin: SocketAddr) -> Result<String> {
    let authority = admin.to_string();
    let asked = admin_client::get(&authority, "/metrics", LONGEST_PAGE);
    let answer = tokio::time::timeout(SCRAPE_TIMEOUT, asked).await??;
    if answer.status == 200 { Ok(answer.body) } else { Err(format!("{authority}: {}", answer.status_line).into()) }
}

/// The lines with one of these beginnings, in the order of the beginnings, without lines that end with 0.
pub(crate) fn lines<'a>(page: &'a str, begins: &[&'a str]) -> Vec<String> {
    let lines = |begin| page.lines().filter(move |line: &&str| line.starts_with(begin) && !line.ends_with(" 0"));
    begins.iter().copied().flat_map(lines).map(str::to_owned).collect()
}
