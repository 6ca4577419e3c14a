//! Reads the metrics as Prometheus would.

use super::Result;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);

/// The page of metrics.
pub(crate) async fn metrics(admin: SocketAddr) -> Result<String> {
    tokio::time::timeout(SCRAPE_TIMEOUT, get(admin, "/metrics")).await?
}

/// The lines that begin in one of these ways, in their order, without those that are 0.
pub(crate) fn lines<'a>(page: &'a str, begins: &[&'a str]) -> Vec<String> {
    let lines = |begin| page.lines().filter(move |line: &&str| line.starts_with(begin) && !line.ends_with(" 0"));
    begins.iter().copied().flat_map(lines).map(str::to_owned).collect()
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
