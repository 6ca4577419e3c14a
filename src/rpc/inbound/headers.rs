//! What a call's headers have to say, and what is kept of them while its messages are awaited.

use super::deadline;
use crate::error::Error;
use crate::rpc::traces::TRACEPARENT;
use axum::extract::Request;
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};

/// How messages are compressed, if they are.
const ENCODING: &str = "grpc-encoding";
/// Headers that somebody behind this asks for.
const ASKED_FOR: [&str; 5] = ["content-type", ENCODING, "grpc-accept-encoding", deadline::HEADER, TRACEPARENT];
/// Of one name. Who may have one asks whether there are two.
const MOST: usize = 2;

/// What its messages are.
const GRPC: [&[u8]; 2] = [b"application/grpc", b"application/grpc+proto"];
/// For whoever sees it in a terminal.
const NO_GRPC: &str =
    "this server speaks gRPC: POST with content-type application/grpc, and messages of Protocol Buffers\n";

/// The answer to a call that is none of gRPC, by the status that its specification names. Its bytes would be read as messages.
pub(super) fn no_grpc(request: &Request) -> Option<Response> {
    let says = |value: &HeaderValue| {
        let kind = value.as_bytes().split(|&byte| byte == b';').next().unwrap_or_default();
        GRPC.iter().any(|grpc| kind.trim_ascii().eq_ignore_ascii_case(grpc))
    };
    let status = if request.method() != Method::POST {
        StatusCode::METHOD_NOT_ALLOWED
    } else if request.headers().get(CONTENT_TYPE).is_some_and(says) {
        return None;
    } else {
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    };
    Some((status, [(ALLOW, Method::POST.as_str())], NO_GRPC).into_response())
}

/// Whether the messages of a call are as they are written. tonic refuses others too, without a reason.
///
/// # Errors
/// They are compressed.
pub(super) fn plain(headers: &HeaderMap) -> Result<(), Error> {
    let is_plain = headers.get(ENCODING).is_none_or(|encoding| encoding == "identity");
    if is_plain { Ok(()) } else { Err(Error::Compressed) }
}

/// Drops all others. Two hundred short ones take some 30 KiB, for as long as their call has sent nothing.
pub(super) fn lighten(headers: &mut HeaderMap) {
    let mut kept = HeaderMap::with_capacity(ASKED_FOR.len());
    for name in ASKED_FOR {
        for value in headers.get_all(name).iter().take(MOST) {
            kept.append(HeaderName::from_static(name), copy(value));
        }
    }
    *headers = kept;
}

/// A copy, since a value may be part of the buffer in which all of them came.
fn copy(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_asks_for_goes() {
        let mut headers = HeaderMap::new();
        for at in 0..100 {
            headers.append(HeaderName::try_from(format!("x{at}")).expect("a name"), HeaderValue::from(at));
            headers.append(TRACEPARENT, HeaderValue::from(at));
        }
        headers.append("content-type", HeaderValue::from_static("application/grpc"));
        headers.append(deadline::HEADER, HeaderValue::from_static("10S"));
        lighten(&mut headers);
        assert_eq!(headers.len(), 4, "{headers:?}");
        assert_eq!(headers["content-type"], "application/grpc");
        assert_eq!(headers["grpc-timeout"], "10S");
        assert_eq!(headers.get_all(TRACEPARENT).iter().collect::<Vec<_>>(), ["0", "1"]);
    }
}
