//! Signals: those that stop, and the one that has files looked at.

use crate::backend::cuda;
use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A token that the first SIGTERM or SIGINT cancels. A second one ends the process at once: whoever sends it does not
/// want to wait for the drain.
///
/// # Errors
/// When the signals cannot be watched.
pub fn on_signal() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancel = token.clone();
    tokio::spawn(async move {
        let mut seen = false;
        loop {
            let kind = tokio::select! {
                _ = terminate.recv() => SignalKind::terminate(),
                _ = interrupt.recv() => SignalKind::interrupt(),
            };
            if seen {
                // As a shell reports a process that a signal ended. Nothing is waited for, a device that hangs least of all.
                cuda::end_at_once(u8::try_from(128 + kind.as_raw_value()).unwrap_or(u8::MAX));
            }
            seen = true;
            tracing::info!(signal = kind.as_raw_value(), "draining; a second signal stops at once");
            cancel.cancel();
        }
    });
    Ok(token)
}

/// Changes with every SIGHUP. Without this, a server would end by one without a drain: it is what other servers are asked to
/// read their files with, and what a terminal that is closed sends.
///
/// # Errors
/// When the signal cannot be watched.
pub fn on_hangup() -> io::Result<watch::Receiver<()>> {
    let mut hangup = signal(SignalKind::hangup())?;
    let (sender, receiver) = watch::channel(());
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            tracing::info!("SIGHUP: looking at certificate and tokens now; other settings are read at a start");
            sender.send_replace(());
        }
    });
    Ok(receiver)
}
