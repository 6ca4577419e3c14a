//! Calls that are open, whatever they ask for: a server that drains waits for no client without one.

use crate::engine;
use crate::permits::{Counter, Permit};
use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt;
use metrics::Gauge;
use std::sync::Arc;
use std::time::Duration;

/// Looks while others are waited for.
const LOOKS: u32 = 10;

/// Which calls are open, and whether something of those that are not is still on its way out.
#[derive(Debug, Clone)]
pub struct Calls {
    open: Arc<Counter>,
    unsent: Arc<Counter>,
}

impl Calls {
    pub(in crate::rpc) fn new(engine: &engine::Handle) -> Self {
        Self { open: Counter::new(usize::MAX, Gauge::noop()), unsent: engine.bytes_in_flight() }
    }

    /// One more, until this is dropped.
    pub(in crate::rpc) fn enter(&self) -> Permit {
        self.open.take_anyway(1)
    }

    /// How many are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.used()
    }

    /// Resolves once no call was open for so long, and all answers are with their clients.
    pub async fn none_for(&self, quiet: Duration) {
        let mut looks = 0;
        while looks < LOOKS {
            tokio::time::sleep(quiet / LOOKS).await;
            looks = if self.open.used() + self.unsent.used() == 0 { looks + 1 } else { 0 };
        }
    }
}

/// The same answer, whose call is open until HTTP/2 has dropped it.
pub(in crate::rpc) fn open_until_dropped(response: Response, call: Permit) -> Response {
    let kept = move |frame| {
        let _open = &call;
        frame
    };
    response.map(|body| Body::new(body.map_frame(kept)))
}
