//! Signals: those that stop the server, and the one that reloads files. And an end that waits for nothing.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use signal_hook::low_level;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Signals within this time count as one. `timeout` and wrappers that pass Ctrl-C on send one signal to the process and
/// one to its group.
const TOGETHER: Duration = Duration::from_secs(1);

/// Whether nobody watches signals yet.
static IS_STARTING: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// Lets SIGTERM and SIGINT end the first process of a container right from its beginning. They end other processes by
/// default, but the first process never gets a signal that it does not handle: the signal that stops its pod while it
/// reads its configuration would be lost.
pub fn end_until_watched() {
    if std::process::id() != 1 {
        return;
    }
    for signal in [SIGTERM, SIGINT] {
        // If this fails, signals are lost for a while, as without it.
        let _ = register_conditional_shutdown(signal, 128 + signal, Arc::clone(&IS_STARTING));
    }
}

/// Has a file that reaches a size limit (`ulimit -f`) fail a write with EFBIG. By default the system ends the process: with
/// the first lease of shared memory that is larger, or the next line of a log.
pub fn outlive_file_limits() {
    // If this fails, the process ends as it would without it.
    let _ = register(libc::SIGXFSZ, Arc::default());
}

/// A token that the first SIGTERM or SIGINT cancels. Another signal, a second later or more, calls `before_end` and
/// ends the process at once, because its sender does not want to wait for the drain.
///
/// # Errors
/// When the signals cannot be watched.
pub fn on_signal(before_end: fn()) -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    IS_STARTING.store(false, Ordering::SeqCst);
    let token = CancellationToken::new();
    let cancel = token.clone();
    tokio::spawn(async move {
        let mut first = None;
        loop {
            let kind = tokio::select! {
                _ = terminate.recv() => SignalKind::terminate(),
                _ = interrupt.recv() => SignalKind::interrupt(),
            };
            let number = kind.as_raw_value();
            match first {
                None => {
                    first = Some(Instant::now());
                    tracing::info!(signal = number, "draining; another signal, at least a second later, stops at once");
                    cancel.cancel();
                }
                Some(first) if Instant::now().duration_since(first) < TOGETHER => {
                    tracing::info!(signal = number, "arrived together with the previous signal; draining continues");
                }
                Some(_) => {
                    before_end();
                    // The exit code is the one a shell reports for a process that a signal ended. Nothing is waited
                    // for, least of all a device that hangs.
                    end_at_once(u8::try_from(128 + number).unwrap_or(u8::MAX));
                }
            }
        }
    });
    Ok(token)
}

/// Changes with every SIGHUP. Without this, a SIGHUP would end the server without a drain. It is the signal that makes
/// other servers read their files again, and a terminal sends it when it is closed.
///
/// # Errors
/// When the signal cannot be watched.
pub fn on_hangup() -> io::Result<watch::Receiver<()>> {
    let mut hangup = signal(SignalKind::hangup())?;
    let (sender, receiver) = watch::channel(());
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            tracing::info!("SIGHUP: checking certificate and tokens now; other settings are read only at startup");
            sender.send_replace(());
        }
    });
    Ok(receiver)
}

/// Ends the process without the work that libraries do at exit. The CUDA driver's would wait for a lost device, for
/// ever if that hangs. The system takes back all resources.
pub fn end_at_once(code: u8) -> ! {
    low_level::exit(code.into())
}
