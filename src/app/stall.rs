//! The watch on the engine: it reports an engine that does not move to the probes, so that the process is started
//! again.

use crate::rpc::health::{Health, State};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// How often the watch looks in each timeout.
const LOOKS: u32 = 4;

/// Watches how long the engine has been `busy` with one batch, until dropped. With a `timeout` of zero it does not
/// watch.
pub(super) async fn watch(busy: impl Fn() -> Option<Duration>, timeout: Duration, health: Health) {
    if timeout.is_zero() {
        return;
    }
    let mut looks = interval((timeout / LOOKS).max(Duration::from_millis(1)));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        look(busy(), timeout, &health).await;
    }
}

async fn look(busy: Option<Duration>, timeout: Duration, health: &Health) {
    match busy {
        Some(time) if time > timeout => {
            if health.turn(State::Ready, State::Stalled).await {
                tracing::error!(
                    seconds = time.as_secs_f64(),
                    "the engine has been working on one batch for too long; /livez fails"
                );
            }
        }
        _ => {
            if health.turn(State::Stalled, State::Ready).await {
                tracing::warn!("the engine is making progress again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn who_does_not_move_is_not_live_until_it_moves() {
        let health = Health::new(Metrics::noop()).await;
        let after = async |seconds: Option<u64>| {
            look(seconds.map(Duration::from_secs), Duration::from_secs(60), &health).await;
            health.state()
        };
        assert_eq!(after(Some(61)).await, State::Starting);
        health.set(State::Ready).await;
        assert_eq!(after(None).await, State::Ready, "it waits for work");
        assert_eq!(after(Some(60)).await, State::Ready);
        assert_eq!(after(Some(61)).await, State::Stalled);
        assert!(!health.state().is_live());
        assert_eq!(after(Some(1)).await, State::Ready);
        assert_eq!((after(Some(61)).await, after(None).await), (State::Stalled, State::Ready));
        health.set(State::Draining).await;
        assert_eq!(after(Some(61)).await, State::Draining, "what ends anyway is not restarted");
        assert_eq!(after(Some(1)).await, State::Draining);
    }
}
