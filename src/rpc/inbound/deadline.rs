//! The time that a client gives a stateless call, in the header `grpc-timeout`.
//!
//! tonic ends such a call too, but with `CANCELLED`, as if its client had left. This deadline comes first and names the
//! real reason.

use crate::error::Error;
use crate::grammar::CompileDeadline;
use axum::http::HeaderMap;
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

/// The header with the time.
pub(super) const HEADER: &str = "grpc-timeout";
/// How long this deadline comes before tonic's, whose timers have a resolution of a millisecond and begin a little
/// earlier.
const AHEAD: Duration = Duration::from_millis(2);

/// When a call has to be answered, if its client says so.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::rpc) struct Deadline(Option<Instant>);

impl Deadline {
    /// The deadline of a call that begins now.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let timeout = headers.get(HEADER).and_then(|value| value.to_str().ok()).and_then(timeout);
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout - AHEAD.min(timeout / 4))))
    }

    /// The answer if it comes in time, or the error of a call whose deadline has passed.
    pub(super) async fn bound<T>(self, answer: impl Future<Output = T>) -> Result<T, Error> {
        match self.0 {
            Some(deadline) => timeout_at(deadline, answer).await.map_err(|_| Error::DeadlineExceeded),
            None => Ok(answer.await),
        }
    }

    /// Whether it has passed.
    pub(in crate::rpc) fn is_over(self) -> bool {
        self.0.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// How long the call's grammars may wait: after the deadline, nobody waits for them.
    pub(in crate::rpc) fn compile_deadline(self) -> CompileDeadline {
        CompileDeadline::at_most(self.0.map(Instant::into_std))
    }

    /// The code of a call that ends now without an answer. A client that leaves at the deadline leaves because of it.
    pub(in crate::rpc) fn unanswered(self) -> Code {
        if self.is_over() { Code::DeadlineExceeded } else { Code::Cancelled }
    }
}

/// Parses a timeout: at most eight digits and a unit, as gRPC over HTTP/2 has it.
fn timeout(value: &str) -> Option<Duration> {
    let (number, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if number.len() > 8 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_those_of_grpc() {
        for (value, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("99999999M", Duration::from_secs(99_999_999 * 60)),
            ("7S", Duration::from_secs(7)),
            ("250m", Duration::from_millis(250)),
            ("0u", Duration::ZERO),
            ("12345678n", Duration::from_nanos(12_345_678)),
        ] {
            assert_eq!(timeout(value), Some(expected), "{value}");
        }
        for wrong in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "123456789S", "1 S", "1é"] {
            assert_eq!(timeout(wrong), None, "{wrong:?}");
        }
    }
}
