//! A scrape: one reading of `/metrics`.

use super::TopError;
use crate::admin_client;
use crate::metrics::catalog as cat;
use crate::metrics::exposition::{self, Page};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most bytes of a page. A page has some 40 kB, and some 10 kB more for each model and proposer.
const LONGEST_PAGE: u64 = 16 << 20;
/// Longest time for a page. A page takes milliseconds, and a connection that hangs counts as no answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A page of metrics, and when it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Scrape {
    /// The content of the page.
    pub page: Page,
    /// When it was read, relative to a moment that is the same for all scrapes of a source.
    pub taken: Duration,
    /// When it was read, in seconds since the Unix epoch.
    pub clock: f64,
}

impl Scrape {
    /// Parses a page into a scrape, if it is a page of Croupier.
    ///
    /// # Errors
    /// Why it is not a page of Croupier.
    pub fn read(text: &str, taken: Duration, clock: f64) -> Result<Self, String> {
        let page = exposition::parse(text).map_err(|mistake| mistake.to_string())?;
        match page.contains_key(cat::BUILD_INFO.name) {
            true => Ok(Self { page, taken, clock }),
            false => Err(format!("it has no {}", cat::BUILD_INFO.name)),
        }
    }
}

/// The server that scrapes are read from.
#[derive(Debug, Clone)]
pub struct Source {
    /// `host:port`.
    pub authority: String,
    start: Instant,
}

impl Source {
    /// The admin port at `authority`, which is `host:port`.
    #[must_use]
    pub fn new(authority: &str) -> Self {
        Self { authority: authority.to_owned(), start: Instant::now() }
    }

    /// Reads a page.
    ///
    /// # Errors
    /// [`TopError::Unreachable`] if there is no answer, [`TopError::NotCroupier`] if another program answers.
    pub async fn scrape(&self) -> Result<Scrape, TopError> {
        let unreachable = |reason| TopError::Unreachable { authority: self.authority.clone(), reason };
        let other = |reason| TopError::NotCroupier { authority: self.authority.clone(), reason };
        let asked = admin_client::get(&self.authority, "/metrics", LONGEST_PAGE);
        let answer = match tokio::time::timeout(TIMEOUT, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(e)) if e.kind() == std::io::ErrorKind::InvalidData => return Err(other(e.to_string())),
            Ok(Err(e)) => return Err(unreachable(e.to_string())),
            Err(_) => return Err(unreachable(format!("no answer within {TIMEOUT:?}"))),
        };
        if answer.status != 200 {
            return Err(other(format!("it answers {}", answer.status_line)));
        }
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Scrape::read(&answer.body, self.start.elapsed(), clock).map_err(other)
    }
}
