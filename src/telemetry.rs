//! Logs on stderr. tracing-subscriber escapes control characters in what clients sent (since 0.3.20).

use crate::config::LogFormat;
use std::io::IsTerminal;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Lines waiting for a slow reader of stderr; more are dropped.
const LINES_BUFFERED: usize = 8192;

/// Starts logging for this process, once; the lines still buffered are written when the guard is dropped.
///
/// Lines are written by a thread of their own, so that a reader of stderr that has stopped cannot stop the server.
///
/// # Errors
/// When the filter is wrong, or something logs already.
pub fn init(format: LogFormat, filter: &str) -> Result<WorkerGuard, Box<dyn std::error::Error + Send + Sync>> {
    let filter = EnvFilter::try_new(filter)?;
    let (writer, guard) =
        NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_BUFFERED).finish(std::io::stderr());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init()?,
        LogFormat::Json => builder.json().flatten_event(true).try_init()?,
    }
    Ok(guard)
}
