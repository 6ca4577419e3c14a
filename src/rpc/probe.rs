//! The client of the health service, for `croupier healthcheck`.

use crate::dial::{Access, causes};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Asks the server at `address`, `host:port` or `unix:PATH`, for the health of `service`.
///
/// # Errors
/// Why the answer is not SERVING, for people.
pub async fn check(address: &str, access: &Access, service: &str) -> Result<(), String> {
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
        Err(status) => {
            let why = causes(&status);
            Err(format!("{address} answers {:?}: {why}{}", status.code(), hint(&why, access)))
        }
    }
}

/// What to do about a connection that fails because one side speaks TLS and the other does not, or shows nothing.
fn hint(why: &str, access: &Access) -> &'static str {
    let is_plain = access.tls.is_none();
    // A plain client takes the server's alert for a frame.
    if is_plain
        && ["FRAME_SIZE_ERROR", "InvalidContentType", "connection closed", "broken pipe"]
            .iter()
            .any(|sign| why.contains(sign))
    {
        "; if the server speaks TLS, give --tls-ca"
    } else if why.contains("CertificateRequired") {
        "; the server asks for a certificate: give --tls-cert and --tls-key"
    } else if ["UnknownIssuer", "BadSignature"].iter().any(|sign| why.contains(sign)) {
        "; --tls-ca has not signed the server's certificate"
    } else if why.contains("NotValidForName") {
        "; the server's certificate has another name: give --tls-name"
    } else {
        ""
    }
}
