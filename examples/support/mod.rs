//! What the examples share.

// Each example uses only a part of it.
#![allow(dead_code)]

pub(crate) mod client;
pub(crate) mod corpus;
pub(crate) mod ngram;
pub(crate) mod rows;
pub(crate) mod scrape;
pub(crate) mod screen;
pub(crate) mod server;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Writes a line on the standard output.
pub(crate) fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// The first Ctrl-C sets `stop`, and the report is still shown. The second one ends the process.
pub(crate) fn stop_on_ctrl_c(stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<()> {
    let stop = Arc::clone(stop);
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if stop.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        }
    })
}
