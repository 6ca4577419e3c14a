//! Logs on stderr. tracing-subscriber escapes control characters in what clients sent (since 0.3.20).

use crate::config::LogFormat;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::time::Duration;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Lines waiting for a slow reader of stderr; more are dropped.
const LINES_BUFFERED: usize = 8192;

/// Starts logging for this process, once; the lines still buffered are written when the guard is dropped.
///
/// Lines are written by a thread of their own, so that a reader of stderr that has stopped cannot stop the server. As JSON, panics
/// are lines too.
///
/// # Errors
/// When the filter is wrong, or something logs already.
pub fn init(format: LogFormat, filter: &str) -> Result<WorkerGuard, Box<dyn std::error::Error + Send + Sync>> {
    let filter = EnvFilter::try_new(of_strangers(filter))?;
    let (writer, guard) =
        NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_BUFFERED).finish(std::io::stderr());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init()?,
        LogFormat::Json => {
            builder.json().flatten_event(true).try_init()?;
            log_panics();
        }
    }
    Ok(guard)
}

/// A filter under which no stranger fills the log: of each connection that resets more than it may, h2 warns. Who names targets, or asks
/// for more than information, gets what is asked for.
fn of_strangers(filter: &str) -> String {
    if matches!(filter.trim(), "warn" | "info") { format!("{filter},h2=error") } else { filter.to_owned() }
}

/// Has panics told as everything else is. What Rust prints of one is several lines, none of which is an object; whoever parses the log
/// would lose it.
fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // Who has filtered all errors out sees at least this.
        if !tracing::enabled!(tracing::Level::ERROR) {
            return before(panic);
        }
        log_panic(panic);
        // Behind some panics, as behind a second one in a thread, the process dies at once: the thread that writes comes first.
        std::thread::sleep(WRITTEN_WITHIN);
    }));
}

/// By then a line is written, unless nobody reads.
const WRITTEN_WITHIN: Duration = Duration::from_millis(20);

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let payload = panic.payload();
    let message = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref().map(String::as_str));
    // Empty unless RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    tracing::error!(
        thread = thread.name(),
        location = panic.location().map(tracing::field::display),
        backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(&backtrace)),
        "panicked: {}",
        message.unwrap_or("without a message")
    );
}
