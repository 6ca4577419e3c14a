//! One look at `/metrics`.

use super::TopError;
use crate::admin_client;
use crate::metrics::catalog as cat;
use crate::metrics::exposition::{self, Page};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A page has some 40 kB, and some 10 kB more for each model and proposer.
const LONGEST_PAGE: u64 = 16 << 20;
/// A page takes milliseconds; a connection that hangs is no answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A page, and when it was had.
#[derive(Debug, Clone, PartialEq)]
pub struct Scrape {
    /// What it says.
    pub page: Page,
    /// When, since some moment that is the same for all scrapes of a source.
    pub taken: Duration,
    /// When, in seconds since the Unix epoch.
    pub clock: f64,
}

impl Scrape {
    /// The scrape that this page is, if it is a Croupier's.
    ///
    /// # Errors
    /// How it shows that it is not.
    pub fn read(text: &str, taken: Duration, clock: f64) -> Result<Self, String> {
        let page = exposition::parse(text).map_err(|mistake| mistake.to_string())?;
        match page.contains_key(cat::BUILD_INFO.name) {
            true => Ok(Self { page, taken, clock }),
            false => Err(format!("there is no {}", cat::BUILD_INFO.name)),
        }
    }
}

/// Where scrapes come from.
#[derive(Debug, Clone)]
pub struct Source {
    /// `host:port`.
    pub authority: String,
    start: Instant,
}

impl Source {
    /// The admin port at `authority`, `host:port`.
    #[must_use]
    pub fn new(authority: &str) -> Self {
        Self { authority: authority.to_owned(), start: Instant::now() }
    }

    /// Looks.
    ///
    /// # Errors
    /// [`TopError::Unreachable`] without an answer, [`TopError::NotCroupier`] with another program's.
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
