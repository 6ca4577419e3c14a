//! The client of the health service, for `croupier healthcheck`.

use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Asks the server at `address`, `host:port` or `unix:PATH`, for the health of `service`.
///
/// # Errors
/// Why the answer is not SERVING, for people.
pub async fn check(address: &str, service: &str) -> Result<(), String> {
    let channel = connect(address).await.map_err(|e| format!("cannot connect to {address}: {}", chain(&e)))?;
    let request = HealthCheckRequest { service: service.to_owned() };
    let answer = HealthClient::new(channel).check(request).await;
    match answer.map(|reply| reply.into_inner().status()) {
        Ok(ServingStatus::Serving) => Ok(()),
        Ok(status) => Err(format!("{address} answers {}", status.as_str_name())),
        Err(status) => Err(format!("{address} answers {:?}: {}", status.code(), status.message())),
    }
}

async fn connect(address: &str) -> Result<Channel, tonic::transport::Error> {
    // tonic reads unix:PATH itself and sends "localhost" as the authority there.
    let uri = if address.starts_with("unix:") { address.to_owned() } else { format!("http://{address}") };
    Endpoint::from_shared(uri)?.connect().await
}

/// An error and its causes: tonic's own text is only "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}
