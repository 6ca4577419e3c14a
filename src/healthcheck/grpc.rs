//! The client of the gRPC health service.

use crate::dial::{Access, causes, hint};
use crate::rpc::health::{LIVENESS, READINESS};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Asks the server at `address`, `host:port` or `unix:PATH`, for the health of `service`.
///
/// # Errors
/// Why the answer is not SERVING, as text for people.
pub(super) async fn check(address: &str, access: &Access, service: &str) -> Result<(), String> {
    let channel = access.endpoint(address)?.connect().await;
    let channel = channel.map_err(|error| {
        let why = causes(&error);
        format!("cannot connect to {address}: {why}{}", hint(&why, access))
    })?;
    let request = HealthCheckRequest { service: service.to_owned() };
    let answer = HealthClient::new(channel).check(request).await;
    match answer.map(|reply| reply.into_inner().status()) {
        Ok(ServingStatus::Serving) => Ok(()),
        Ok(status) => Err(format!("{address} answers {}", status.as_str_name())),
        Err(status) if status.code() == tonic::Code::NotFound => Err(format!(
            "{address} does not know the service \"{service}\"; known: {LIVENESS}, {}, or none for the whole server",
            READINESS[1..].join(", ")
        )),
        Err(status) => {
            let why = causes(&status);
            Err(format!("{address} answers {:?}: {why}{}", status.code(), hint(&why, access)))
        }
    }
}
