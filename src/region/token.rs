//! What a worker proves with that a stream is its own.

use std::fmt;
use std::io;

/// A number that cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; Token::BYTES]);

impl Token {
    /// Its length.
    pub const BYTES: usize = 32;

    /// A new one.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        super::system::random(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Reads one; `None` if it has another length.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// As it is sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    /// Not the token: it may come into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
