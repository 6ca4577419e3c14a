//! Who may use regions: a stream, and the guests that may map the stream's regions. Each shows a token, once.

use super::stream::StreamRegions;
use super::{Regions, Token};
use crate::locks::lock;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long a stream's token may be used. A worker connects at once or not at all.
pub const TOKEN_LIFE: Duration = Duration::from_secs(30);

/// The stream and role that a token admits to.
#[derive(Debug)]
pub(super) struct Invited {
    stream: Arc<StreamRegions>,
    role: Role,
    until: Instant,
}

/// What a side connection may do.
#[derive(Debug, Clone)]
pub enum Role {
    /// Leases and releases regions. The stream's regions end with this connection.
    Owner,
    /// Maps what is leased, until the token is cancelled.
    Guest(CancellationToken),
}

/// A stream's right to regions. Dropping it ends them all.
#[derive(Debug)]
pub struct Invitation {
    regions: Arc<Regions>,
    stream: Arc<StreamRegions>,
    token: Token,
}

/// The right of somebody else to map a stream's regions. Dropping it ends the right, but not existing mappings.
#[derive(Debug)]
pub struct Guest {
    regions: Arc<Regions>,
    token: Token,
    over: CancellationToken,
}

impl Regions {
    /// Lets a stream have regions.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn invite(self: &Arc<Self>) -> io::Result<Invitation> {
        let stream = Arc::new(StreamRegions::default());
        let token = self.token(&stream, Role::Owner)?;
        Ok(Invitation { regions: Arc::clone(self), stream, token })
    }

    /// Lets somebody else map the regions of a stream.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn invite_guest(self: &Arc<Self>, stream: &Arc<StreamRegions>) -> io::Result<Guest> {
        let over = CancellationToken::new();
        let token = self.token(stream, Role::Guest(over.clone()))?;
        Ok(Guest { regions: Arc::clone(self), token, over })
    }

    fn token(&self, stream: &Arc<StreamRegions>, role: Role) -> io::Result<Token> {
        let token = Token::random()?;
        let invited = Invited { stream: Arc::clone(stream), role, until: Instant::now() + TOKEN_LIFE };
        lock(&self.tokens).insert(token, invited);
        Ok(token)
    }

    /// Uses up a token. Returns its stream and its role; `None` if the token is unknown, was used, or is too old by
    /// `now`.
    #[must_use]
    pub fn admit(&self, token: &Token, now: Instant) -> Option<(Arc<StreamRegions>, Role)> {
        let invited = lock(&self.tokens).remove(token)?;
        (now <= invited.until).then_some((invited.stream, invited.role))
    }
}

impl Invitation {
    /// The token that the worker has to show.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The stream's regions.
    #[must_use]
    pub fn regions(&self) -> &Arc<StreamRegions> {
        &self.stream
    }
}

impl Drop for Invitation {
    fn drop(&mut self) {
        lock(&self.regions.tokens).remove(&self.token);
        self.stream.end();
    }
}

impl Guest {
    /// The token that the guest has to show.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        lock(&self.regions.tokens).remove(&self.token);
        self.over.cancel();
    }
}
