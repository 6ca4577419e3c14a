//! Logs on stderr. tracing-subscriber escapes control characters in what clients sent (since 0.3.20).

use crate::config::LogFormat;
use crate::output;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::time::Duration;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Most lines that wait for a slow reader of stderr. Further lines are dropped.
const LINES_BUFFERED: usize = 8192;

/// Starts logging for this process, once. Lines that are still buffered are written when the guard is dropped.
///
/// A thread of its own writes the lines, so that a reader of stderr that has stopped cannot stop the server. In JSON
/// format, panics are logged as lines too.
///
/// # Errors
/// When the filter is wrong, or something logs already.
pub fn init(format: LogFormat, filter: &str) -> Result<WorkerGuard, Box<dyn std::error::Error + Send + Sync>> {
    let filter = EnvFilter::try_new(of_strangers(filter))?;
    let (writer, guard) =
        NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_BUFFERED).finish(std::io::stderr());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => builder.with_ansi(is_colored()).try_init()?,
        LogFormat::Json => {
            builder.json().flatten_event(true).try_init()?;
            log_panics();
        }
    }
    Ok(guard)
}

/// Whether log lines in text format have colours.
fn is_colored() -> bool {
    std::io::stderr().is_terminal() && output::wants_color()
}

/// Logs why a server cannot start, without the thread that writes the log: the system may have no thread for it.
pub fn log_without_thread(format: LogFormat, error: &dyn std::error::Error) {
    match format {
        LogFormat::Text => output::complain(&format!("croupier: {error}")),
        LogFormat::Json => {
            let log = tracing_subscriber::fmt().with_writer(std::io::stderr).json().flatten_event(true).finish();
            tracing::subscriber::with_default(log, || tracing::error!("{error}"));
        }
    }
}

/// A filter with which clients cannot fill the log: h2 warns of each connection that resets too many streams, and rustls
/// of each that names an IP address as its server, as Node's do. A filter that names targets, or asks for more than
/// information, stays as it is.
fn of_strangers(filter: &str) -> String {
    match filter.trim() {
        "warn" | "info" => format!("{filter},h2=error,rustls=error"),
        _ => filter.to_owned(),
    }
}

/// Logs panics like everything else. What Rust prints of a panic is several lines without a JSON object, which a parser
/// of the log would lose.
fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // If the filter excludes all errors, Rust's own message is printed at least.
        if !tracing::enabled!(tracing::Level::ERROR) {
            return before(panic);
        }
        log_panic(panic);
        // After some panics, such as a second one in a thread, the process dies at once, so the writing thread gets
        // time first.
        std::thread::sleep(WRITTEN_WITHIN);
    }));
}

/// Within this time a line is written, unless nobody reads.
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
