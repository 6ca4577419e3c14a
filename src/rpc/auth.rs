//! Bearer tokens of calls over TCP. For the Unix socket, the permissions of its file decide who may connect.

use super::caller::Caller;
use super::server::split;
use super::status;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::proto::sampler_server::SERVICE_NAME;
use crate::reload::Reloaded;
use crate::tokens::Tokens;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header::AUTHORIZATION};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;
use tonic::service::Routes;
use tonic_health::pb::health_server;

/// RFC 6750, section 2.1.
const SCHEME: &[u8] = b"bearer";

#[derive(Clone)]
struct AuthState {
    tokens: Arc<Reloaded<Tokens>>,
    metrics: Metrics,
}

/// The same routes, open only to those who show a token. Health is open to everyone: probes have no token, and health
/// says nothing that is of use to anybody else.
#[must_use]
pub fn guarded(routes: Routes, tokens: Arc<Reloaded<Tokens>>, metrics: Metrics) -> Routes {
    let state = AuthState { tokens, metrics };
    Routes::from(routes.into_axum_router().layer(from_fn_with_state(state, check)))
}

async fn check(State(state): State<AuthState>, request: Request, next: Next) -> Response {
    let (service, method) = split(request.uri().path());
    if service == health_server::SERVICE_NAME {
        return next.run(request).await;
    }
    let Err(error) = admit(request.headers(), &state.tokens.current()) else { return next.run(request).await };
    let status = status::from_error(&error);
    state.metrics.refused(error.reason());
    let peer = Caller::of(request.extensions());
    tracing::debug!(peer = %peer.peer(), reason = error.reason().name(), service, method, "a call was refused");
    let method = if service == SERVICE_NAME { method } else { "" };
    state.metrics.call_finished(method, status::code_name(status.code()), Duration::ZERO);
    status.into_http::<axum::body::Body>().into_response()
}

fn admit(headers: &HeaderMap, tokens: &Tokens) -> Result<(), Error> {
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    // Nobody sends two tokens by mistake, so two are an attempt to get in.
    let (Some(value), None) = (shown.next(), shown.next()) else { return Err(Error::NoToken) };
    let value = value.as_bytes();
    let Some((scheme, token)) = value.split_at_checked(SCHEME.len()) else { return Err(Error::NoToken) };
    match token.strip_prefix(b" ") {
        Some(token) if scheme.eq_ignore_ascii_case(SCHEME) && tokens.contains(token.trim_ascii()) => Ok(()),
        Some(_) if scheme.eq_ignore_ascii_case(SCHEME) => Err(Error::WrongToken),
        _ => Err(Error::NoToken),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reload::File;

    #[test]
    fn a_token_is_shown_as_rfc_6750_says() {
        let tokens = Tokens::make(&[File { path: "t".into(), bytes: b"sixteen-or-more-x".to_vec() }]).expect("one");
        let admitted = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().expect("a header"));
            }
            admit(&headers, &tokens)
        };
        for good in ["Bearer sixteen-or-more-x", "bearer sixteen-or-more-x", "BEARER  sixteen-or-more-x"] {
            assert_eq!(admitted(&[good]), Ok(()), "{good}");
        }
        for none in [&[][..], &[""], &["Bearer"], &["Basic sixteen-or-more-x"], &["Bearer\tsixteen-or-more-x"]] {
            assert_eq!(admitted(none), Err(Error::NoToken), "{none:?}");
        }
        assert_eq!(admitted(&["Bearer sixteen-or-more-x"; 2]), Err(Error::NoToken), "one and no more");
        for wrong in ["Bearer ", "Bearer sixteen-or-more-y", "Bearer sixteen-or-more-xx"] {
            assert_eq!(admitted(&[wrong]), Err(Error::WrongToken), "{wrong}");
        }
    }
}
