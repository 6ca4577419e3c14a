//! A collector that keeps the spans that it gets, and can be told to misbehave.

use croupier::otlp::wire::{
    EXPORT, ExportTraceServiceRequest, ExportTraceServiceResponse, PartialSuccess, Span, Value,
};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

/// How the collector treats spans.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code)] // A bench only takes.
pub(crate) enum Manner {
    /// Keeps them.
    Takes,
    /// Reports that it rejected this many.
    TakesAllBut(i64),
    /// Answers with an error.
    Refuses(Code),
    /// Never answers.
    Hangs,
}

/// The collector. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct Collector {
    taken: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    manner: Arc<Mutex<Manner>>,
}

impl Collector {
    /// A collector on a free port.
    pub(crate) async fn start(manner: Manner) -> (Self, SocketAddr) {
        Self::serve(manner, Server::builder()).await
    }

    /// The same with TLS.
    #[allow(dead_code)]
    pub(crate) async fn start_with_tls(cert: &str, key: &str) -> (Self, SocketAddr) {
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(cert, key));
        Self::serve(Manner::Takes, Server::builder().tls_config(tls).expect("a certificate")).await
    }

    async fn serve(manner: Manner, mut server: Server) -> (Self, SocketAddr) {
        let collector = Self { taken: Arc::default(), manner: Arc::new(Mutex::new(manner)) };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let served = server.add_service(collector.clone()).serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(served);
        (collector, address)
    }

    /// Changes how it treats spans.
    #[allow(dead_code)]
    pub(crate) fn be(&self, manner: Manner) {
        *self.manner.lock().unwrap_or_else(PoisonError::into_inner) = manner;
    }

    /// The requests that were taken.
    #[allow(dead_code)]
    pub(crate) fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The spans of those requests.
    #[allow(dead_code)]
    pub(crate) fn spans(&self) -> Vec<Span> {
        let scopes = self.requests().into_iter().flat_map(|r| r.resource_spans).flat_map(|r| r.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    async fn export(self, request: ExportTraceServiceRequest) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let manner = *self.manner.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match manner {
            Manner::Takes => ExportTraceServiceResponse::default(),
            Manner::TakesAllBut(rejected_spans) => {
                let error_message = "too many".to_owned();
                ExportTraceServiceResponse { partial_success: Some(PartialSuccess { rejected_spans, error_message }) }
            }
            Manner::Refuses(code) => return Err(Status::new(code, "as it was told")),
            Manner::Hangs => std::future::pending().await,
        };
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        Ok(Response::new(answer))
    }
}

impl UnaryService<ExportTraceServiceRequest> for Collector {
    type Response = ExportTraceServiceResponse;
    type Future = BoxFuture<Response<ExportTraceServiceResponse>, Status>;

    fn call(&mut self, request: Request<ExportTraceServiceRequest>) -> Self::Future {
        Box::pin(self.clone().export(request.into_inner()))
    }
}

impl NamedService for Collector {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl Service<http::Request<Body>> for Collector {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            assert_eq!(request.uri().path(), EXPORT);
            let mut grpc = Grpc::new(ProstCodec::<ExportTraceServiceResponse, ExportTraceServiceRequest>::default());
            Ok(grpc.unary(service, request).await)
        })
    }
}

/// A span's attributes as text, by name.
#[allow(dead_code)]
pub(crate) fn attributes(span: &Span) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::Text(text) => text.clone(),
        Value::Number(number) => number.to_string(),
    };
    let each = span.attributes.iter().filter_map(|a| Some((a.key.clone(), text(a.value.as_ref()?.value.as_ref()?))));
    each.collect()
}
