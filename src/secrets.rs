//! The certificate and tokens of a running server, read at the start and then kept up to date.

use crate::config::Config;
use crate::metrics::{Metrics, Secret};
use crate::reload::{self, Change, Reloaded, Watcher};
use crate::tls::ServerTls;
use crate::tokens::Tokens;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The secrets that guard `listen`.
#[derive(Debug)]
pub struct Secrets {
    /// The certificate. Without one, TCP is plain.
    pub tls: Option<Kept<ServerTls>>,
    /// The tokens. Without any, nobody is asked for a token.
    pub tokens: Option<Kept<Tokens>>,
}

/// A value with the watcher that keeps it up to date.
#[derive(Debug)]
pub struct Kept<T> {
    /// The value in force.
    pub current: Arc<Reloaded<T>>,
    watcher: Watcher<T>,
}

impl<T: Send + Sync + 'static> Kept<T> {
    fn open(paths: Vec<std::path::PathBuf>, make: reload::Make<T>) -> Result<Self, Vec<String>> {
        let (current, watcher) = reload::open(paths, make)?;
        Ok(Self { current, watcher })
    }
}

impl Secrets {
    /// Reads the files that `config` names.
    ///
    /// # Errors
    /// Every mistake in the files.
    pub fn open(config: &Config) -> Result<Self, Vec<String>> {
        let tls = config.tls.paths().map(|paths| Kept::open(paths, ServerTls::make)).transpose()?;
        let file = config.auth_token_file.clone();
        let tokens = file.map(|path| Kept::open(vec![path], Tokens::make)).transpose()?;
        if tokens.is_some() && tls.is_none() && config.listen.is_some_and(|address| !address.ip().is_loopback()) {
            tracing::warn!(
                "tokens cross the network in plain text; use tls-cert, or encrypt the connection by other means"
            );
        }
        Ok(Self { tls, tokens })
    }

    /// Keeps the secrets up to date from now on, as tasks of `background`. On `requests`, the files are checked at
    /// once.
    pub fn watch(self, background: &mut JoinSet<()>, requests: &watch::Receiver<()>, metrics: &Metrics) {
        if let Some(tls) = self.tls {
            let (requests, metrics) = (requests.clone(), metrics.clone());
            show_expiry(&metrics, &tls.current.current());
            background.spawn(tell_of_validity(Arc::clone(&tls.current)));
            background.spawn(tls.watcher.run(requests, move |tls, change| {
                told(&metrics, Secret::Tls, &change);
                show_expiry(&metrics, tls);
            }));
        }
        if let Some(tokens) = self.tokens {
            let (requests, metrics) = (requests.clone(), metrics.clone());
            let tell = move |_: &Tokens, change| told(&metrics, Secret::Tokens, &change);
            background.spawn(tokens.watcher.run(requests, tell));
        }
    }
}

fn told(metrics: &Metrics, secret: Secret, change: &Change) {
    let what = secret.name();
    match change {
        Change::Same => return tracing::info!(what, "the files have not changed"),
        Change::Taken => tracing::info!(what, "changed files were read and are now in force"),
        Change::Refused(problems) => {
            tracing::error!(
                what,
                problems = problems.join("; "),
                "changed files are invalid; the old ones stay in force"
            );
        }
    }
    metrics.reloaded(secret, *change == Change::Taken);
}

fn show_expiry(metrics: &Metrics, tls: &ServerTls) {
    metrics.tls_certificate_expiry.set(tls.validity.ends as f64);
}

/// Warns of each certificate in force that is not valid, for example because it has expired: at once, or when it
/// becomes invalid.
async fn tell_of_validity(tls: Arc<Reloaded<ServerTls>>) {
    const LOOK: Duration = Duration::from_secs(5);
    let mut told = None;
    loop {
        let current = tls.current();
        let complaint = current.validity.complaint();
        let wrong = complaint.is_some().then_some(current.validity);
        if let Some(complaint) = complaint.filter(|_| told != wrong) {
            let file = current.cert.display();
            tracing::warn!(%file, "the certificate {complaint}; clients will refuse it");
        }
        told = wrong;
        drop(current);
        tokio::time::sleep(LOOK).await;
    }
}
