//! The token with which a worker proves that a stream is its own.

use std::fmt;
use std::io;

/// A number that cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; Token::BYTES]);

impl Token {
    /// The length of a token.
    pub const BYTES: usize = 32;

    /// Makes a new token.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        super::system::random(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Reads a token; `None` if the bytes have another length.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The token as it is sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    /// Does not print the token, which might end up in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
