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

/// Signs of a server that ended a connection since it could not, or would not, speak with this client: its alert may be
/// read as a frame, or be lost with the connection.
const CUT: [&str; 5] = ["FRAME_SIZE_ERROR", "InvalidContentType", "connection closed", "broken pipe", "reset"];

/// What to do about a connection that fails because one side speaks TLS and the other does not, or shows nothing.
pub(crate) fn hint(why: &str, access: &Access) -> &'static str {
    let has = |signs: &[&str]| signs.iter().any(|sign| why.contains(sign));
    match &access.tls {
        None if has(&CUT) => "; if the server speaks TLS, give --tls-ca",
        Some(_) if has(&["CaUsedAsEndEntity"]) => {
            "; the server shows an authority's own certificate: give it one that the authority has signed for a server"
        }
        Some(_) if has(&["UnknownIssuer", "BadSignature"]) => "; --tls-ca has not signed the server's certificate",
        Some(_) if has(&["NotValidForName", "not valid for name"]) => {
            "; the server's certificate has another name: give --tls-name"
        }
        Some(tls) if tls.identity.is_none() && (has(&["CertificateRequired"]) || has(&CUT)) => {
            "; if the server asks for a certificate, give --tls-cert and --tls-key"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::client::ClientTls;

    #[test]
    fn what_fails_is_told_what_to_do() {
        let tls = Some(ClientTls { ca: "ca.pem".into(), identity: None, name: None });
        let (plain, tls) = (Access::default(), Access { tls, ..Access::default() });
        // As rustls words them, also where only the text of a cause is left.
        let named = "invalid peer certificate: certificate not valid for name \"localhost\"";
        assert!(hint(named, &tls).contains("--tls-name"));
        assert!(
            hint("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", &tls).contains("own certificate")
        );
        assert!(hint("h2 protocol error: FRAME_SIZE_ERROR", &plain).contains("--tls-ca"));
        assert_eq!(hint("Connection refused", &plain), "");
    }
}
