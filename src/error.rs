//! What can go wrong with a whole call or a whole step, in domain terms. `rpc` turns each error into one gRPC code.
//! Mistakes in single sequences and rows are not here; their own results report them.

use crate::params::FieldError;
use std::time::Duration;

/// Declares the reasons and their names, so that none can be missing from [`Reason::ALL`].
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $name:literal;)*) => {
        /// Why a connection, call or step was refused or ended: a closed set, for clients and metrics.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason {
            $($(#[$doc])* $reason,)*
        }

        impl Reason {
            /// Every reason, in the order of the enum.
            pub const ALL: &[Self] = &[$(Self::$reason),*];

            /// The stable name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// [`Refusal::QueueFull`].
    QueueFull = "QUEUE_FULL";
    /// [`Refusal::BytesInFlight`].
    BytesInFlight = "BYTES_IN_FLIGHT";
    /// [`Refusal::RowsInFlight`].
    RowsInFlight = "ROWS_IN_FLIGHT";
    /// More connections than `max_connections`.
    TooManyConnections = "TOO_MANY_CONNECTIONS";
    /// A connection to the admin port made room for another one, or took too long.
    AdminConnections = "ADMIN_CONNECTIONS";
    /// [`Refusal::TooManyStreams`].
    TooManyStreams = "TOO_MANY_STREAMS";
    /// [`Refusal::TooManySequences`].
    TooManySequences = "TOO_MANY_SEQUENCES";
    /// [`Refusal::StateBytes`].
    StateBytes = "STATE_BYTES";
    /// A connection stayed silent.
    FirstByteTimeout = "FIRST_BYTE_TIMEOUT";
    /// A client with calls answered no ping.
    KeepaliveTimeout = "KEEPALIVE_TIMEOUT";
    /// A TLS handshake took too long.
    TlsTimeout = "TLS_TIMEOUT";
    /// A client showed no certificate although one is required.
    TlsNoCertificate = "TLS_NO_CERTIFICATE";
    /// A client's certificate has expired, is from another authority, or is wrong otherwise.
    TlsBadCertificate = "TLS_BAD_CERTIFICATE";
    /// A client ended the handshake, for example because it does not trust this server's certificate.
    TlsRefused = "TLS_REFUSED";
    /// A handshake failed otherwise: the client does not speak TLS, shares no version or cipher with the server, or
    /// offers no HTTP/2.
    TlsFailed = "TLS_FAILED";
    /// The first bytes from a client are not HTTP/2.
    WrongProtocol = "WRONG_PROTOCOL";
    /// [`Error::NoToken`].
    NoToken = "NO_TOKEN";
    /// [`Error::WrongToken`].
    WrongToken = "WRONG_TOKEN";
    /// [`Error::Draining`].
    Draining = "DRAINING";
    /// [`Error::DrainTimeout`].
    DrainTimeout = "DRAIN_TIMEOUT";
    /// [`Error::EngineStopped`].
    EngineStopped = "ENGINE_STOPPED";
    /// [`Error::Unread`].
    ReplyTimeout = "REPLY_TIMEOUT";
    /// [`Error::NotReceived`].
    ReceiveTimeout = "RECEIVE_TIMEOUT";
    /// [`Error::DeadlineExceeded`].
    DeadlineExceeded = "DEADLINE_EXCEEDED";
    /// [`Error::Invalid`].
    InvalidField = "INVALID_FIELD";
    /// [`Error::Unimplemented`].
    UnimplementedField = "UNIMPLEMENTED_FIELD";
    /// [`Error::UnknownRegion`].
    UnknownRegion = "UNKNOWN_REGION";
    /// [`Error::StaleRegion`].
    StaleRegion = "STALE_REGION";
    /// [`Error::UnknownShardToken`].
    UnknownShardToken = "UNKNOWN_SHARD_TOKEN";
    /// [`Error::RankTaken`].
    RankTaken = "RANK_TAKEN";
    /// [`Refusal::TooManyRanks`].
    TooManyRanks = "TOO_MANY_RANKS";
    /// [`Refusal::ShardBytes`].
    ShardBytes = "SHARD_BYTES";
    /// [`Refusal::GrammarsBusy`].
    GrammarsBusy = "GRAMMARS_BUSY";
    /// [`Error::Malformed`].
    MalformedMessage = "MALFORMED_MESSAGE";
    /// [`Error::TooLong`].
    MessageTooLong = "MESSAGE_TOO_LONG";
    /// [`Error::TooManyCalls`].
    TooManyCalls = "TOO_MANY_CALLS";
    /// [`Error::TooManyItems`].
    TooManyItems = "TOO_MANY_ITEMS";
    /// [`Error::Compressed`].
    UnknownCompression = "UNKNOWN_COMPRESSION";
}

/// Why a call ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The message's shape or the stream's configuration is wrong.
    #[error("{0}")]
    Invalid(FieldError),
    /// The message is not protobuf.
    #[error("the message cannot be decoded: {0}")]
    Malformed(String),
    /// The message is longer than allowed.
    #[error(
        "the message has {len} bytes, at most {longest} are allowed (max_message_bytes, or less for calls that sample nothing); split it"
    )]
    TooLong {
        /// How long it is.
        len: usize,
        /// How long it may be.
        longest: usize,
    },
    /// The message has more parts than allowed.
    #[error("the message has more than {limit} sub-messages; split it")]
    TooManyItems {
        /// How many it may have.
        limit: usize,
    },
    /// The call's messages are compressed.
    #[error("compressed messages are not supported; leave grpc-encoding out, or set it to identity")]
    Compressed,
    /// The message asks for something that this server does not have yet.
    #[error("{0}")]
    Unimplemented(FieldError),
    /// The message refers to a region that the stream does not have.
    #[error("{0}")]
    UnknownRegion(FieldError),
    /// The message refers to a region whose id has since been leased anew.
    #[error("{0}")]
    StaleRegion(FieldError),
    /// A rank shows a token that no stream has.
    #[error("{0}")]
    UnknownShardToken(FieldError),
    /// The rank is already attached.
    #[error("{0}")]
    RankTaken(FieldError),
    /// The server is full.
    #[error("{}", .0.message())]
    Refused(Refusal),
    /// The connection already has as many calls that sample nothing as it may have.
    #[error(
        "this connection already has {0} calls of health, reflection or GetServerInfo, the most allowed; end some of them"
    )]
    TooManyCalls(usize),
    /// A call shows no token, and the server answers only calls that show one.
    #[error("this server requires a token; send the metadata authorization: Bearer TOKEN")]
    NoToken,
    /// A call shows a token that the server does not accept.
    #[error("the token is not valid for this server; it may have been replaced")]
    WrongToken,
    /// The server is stopping and starts nothing new.
    #[error("the server is draining; connect to another one")]
    Draining,
    /// The server is stopping and no longer waits for the stream.
    #[error("the server is shutting down, and this stream was still open at drain_timeout; continue on another server")]
    DrainTimeout,
    /// The engine's thread has ended.
    #[error("the engine has stopped")]
    EngineStopped,
    /// The worker does not take its replies, whose room others need.
    #[error("replies were not read for {0:?} (reply_timeout); open the sequences again on another stream")]
    Unread(Duration),
    /// A message does not come whole in time, and others need its room.
    #[error(
        "no complete message arrived within {0:?} (receive_timeout); send the first one as soon \
         as the call starts, and each without a pause"
    )]
    NotReceived(Duration),
    /// The time that the client gave the call is over.
    #[error("the call's deadline passed before it was answered; nothing has changed, and it may be sent again")]
    DeadlineExceeded,
}

/// What there is no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `Limits.max_queued_steps`.
    QueueFull,
    /// `Limits.max_bytes_in_flight`.
    BytesInFlight,
    /// Rows in flight, see [`Limits::max_rows_in_flight`](crate::limits::Limits::max_rows_in_flight).
    RowsInFlight,
    /// `Limits.max_streams`.
    TooManyStreams,
    /// `Limits.max_sequences`.
    TooManySequences,
    /// `Limits.max_state_bytes`.
    StateBytes,
    /// `Limits.max_attached_ranks`.
    TooManyRanks,
    /// `Limits.max_shard_bytes`.
    ShardBytes,
    /// Grammars that may be compiled at once, [`MAX_COMPILING`](crate::grammar::MAX_COMPILING).
    GrammarsBusy,
}

impl Error {
    /// An error in a field of the message.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(FieldError::new(field, message))
    }

    /// The same error seen from outside: its field, if any, is `outer.field`.
    #[must_use]
    pub fn within(self, outer: &str) -> Self {
        match self {
            Self::Invalid(field) => Self::Invalid(field.within(outer)),
            Self::Unimplemented(field) => Self::Unimplemented(field.within(outer)),
            Self::UnknownRegion(field) => Self::UnknownRegion(field.within(outer)),
            Self::StaleRegion(field) => Self::StaleRegion(field.within(outer)),
            Self::UnknownShardToken(field) => Self::UnknownShardToken(field.within(outer)),
            Self::RankTaken(field) => Self::RankTaken(field.within(outer)),
            other => other,
        }
    }

    /// The kind of error.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Invalid(_) => Reason::InvalidField,
            Self::Malformed(_) => Reason::MalformedMessage,
            Self::TooLong { .. } => Reason::MessageTooLong,
            Self::TooManyItems { .. } => Reason::TooManyItems,
            Self::Compressed => Reason::UnknownCompression,
            Self::Unimplemented(_) => Reason::UnimplementedField,
            Self::UnknownRegion(_) => Reason::UnknownRegion,
            Self::StaleRegion(_) => Reason::StaleRegion,
            Self::UnknownShardToken(_) => Reason::UnknownShardToken,
            Self::RankTaken(_) => Reason::RankTaken,
            Self::Refused(refusal) => refusal.reason(),
            Self::TooManyCalls(_) => Reason::TooManyCalls,
            Self::NoToken => Reason::NoToken,
            Self::WrongToken => Reason::WrongToken,
            Self::Draining => Reason::Draining,
            Self::DrainTimeout => Reason::DrainTimeout,
            Self::EngineStopped => Reason::EngineStopped,
            Self::Unread(_) => Reason::ReplyTimeout,
            Self::NotReceived(_) => Reason::ReceiveTimeout,
            Self::DeadlineExceeded => Reason::DeadlineExceeded,
        }
    }
}

impl Refusal {
    /// The kind of refusal.
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::QueueFull => Reason::QueueFull,
            Self::BytesInFlight => Reason::BytesInFlight,
            Self::RowsInFlight => Reason::RowsInFlight,
            Self::TooManyStreams => Reason::TooManyStreams,
            Self::TooManySequences => Reason::TooManySequences,
            Self::StateBytes => Reason::StateBytes,
            Self::TooManyRanks => Reason::TooManyRanks,
            Self::ShardBytes => Reason::ShardBytes,
            Self::GrammarsBusy => Reason::GrammarsBusy,
        }
    }

    /// What is full, for people.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::QueueFull => "too many steps are waiting for the backend (max_queued_steps)",
            Self::BytesInFlight => "too many bytes of messages are in flight (max_bytes_in_flight)",
            Self::RowsInFlight => "too many rows are in flight (sixteen times max_rows_per_step)",
            Self::TooManyStreams => "too many streams are open (max_streams)",
            Self::TooManySequences => "too many sequences are open (max_sequences); close some, or raise it",
            Self::StateBytes => {
                "the state of open sequences takes too many bytes (max_state_bytes); close some, or raise it"
            }
            Self::TooManyRanks => "too many ranks are attached (max_attached_ranks)",
            Self::ShardBytes => "shards waiting for their steps take too many bytes (max_shard_bytes)",
            Self::GrammarsBusy => {
                "other grammars take so long to compile that this one's turn did not come in time, or the system has no thread for it"
            }
        }
    }

    /// When to try again. Steps come and go in milliseconds, streams and sequences do not.
    #[must_use]
    pub fn retry_after(self) -> Duration {
        match self {
            Self::QueueFull | Self::BytesInFlight | Self::RowsInFlight | Self::ShardBytes => Duration::from_millis(5),
            Self::TooManyStreams
            | Self::TooManySequences
            | Self::StateBytes
            | Self::TooManyRanks
            | Self::GrammarsBusy => Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_the_setting_to_raise() {
        use Refusal::{BytesInFlight, QueueFull, RowsInFlight, StateBytes, TooManySequences, TooManyStreams};
        let settings = format!("{:?}", crate::limits::Limits::default());
        let of_shards = [Refusal::TooManyRanks, Refusal::ShardBytes];
        let all = [QueueFull, BytesInFlight, RowsInFlight, TooManyStreams, TooManySequences, StateBytes];
        for refusal in all.into_iter().chain(of_shards) {
            let words = refusal.message().split(|c: char| !c.is_ascii_lowercase() && c != '_');
            let named = words.filter(|word| word.starts_with("max_") && settings.contains(&format!("{word}:")));
            assert_eq!(named.count(), 1, "{}", refusal.message());
        }
    }
}
