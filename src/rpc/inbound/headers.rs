//! What a call's headers must say, and which of them are kept while the call's messages are awaited.

use super::deadline;
use crate::error::Error;
use crate::rpc::traces::TRACEPARENT;
use axum::extract::Request;
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};

/// The header that names the compression of messages.
const ENCODING: &str = "grpc-encoding";
/// Headers that code after this layer reads.
const ASKED_FOR: [&str; 5] = ["content-type", ENCODING, "grpc-accept-encoding", deadline::HEADER, TRACEPARENT];
/// How many values of one name are kept. Code that accepts one value checks whether there is a second.
const MAX_VALUES: usize = 2;

/// The content types of gRPC.
const GRPC: [&[u8]; 2] = [b"application/grpc", b"application/grpc+proto"];
/// The answer's text, for people who see it in a terminal.
const NO_GRPC: &str =
    "this server speaks gRPC: use POST with content-type application/grpc and Protocol Buffers messages\n";

/// The answer to a call that is not gRPC, with the status that the gRPC specification names; `None` for gRPC. Without
/// this check, the bytes of such a call would be read as messages.
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

/// Checks that the messages of a call are not compressed. tonic refuses compressed ones too, but without a reason.
///
/// # Errors
/// When the messages are compressed.
pub(super) fn plain(headers: &HeaderMap) -> Result<(), Error> {
    let is_plain = headers.get(ENCODING).is_none_or(|encoding| encoding == "identity");
    if is_plain { Ok(()) } else { Err(Error::Compressed) }
}

/// Drops all headers that nobody reads. Two hundred short ones take some 30 KiB for as long as their call has sent
/// nothing.
pub(super) fn lighten(headers: &mut HeaderMap) {
    let mut kept = HeaderMap::with_capacity(ASKED_FOR.len());
    for name in ASKED_FOR {
        for value in headers.get_all(name).iter().take(MAX_VALUES) {
            kept.append(HeaderName::from_static(name), copy(value));
        }
    }
    *headers = kept;
}

/// Copies a value, because it may be part of the buffer in which all headers came.
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
