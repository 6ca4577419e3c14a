//! The OTLP 1.x messages that carry spans, as far as they are sent from here
//! (<https://opentelemetry.io/docs/specs/otlp/>). They are written by hand: only what is sent is here, and field
//! numbers never change. `tests/python/test_traces.py` reads the messages with OpenTelemetry's own classes.

use prost::{Enumeration, Message, Oneof};

/// The call that takes spans.
pub const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Spans of one process.
#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceServiceRequest {
    /// One entry for each process.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// The collector's answer to the request.
#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceServiceResponse {
    /// Set when the collector did not take all spans.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

/// What the collector did not take.
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// The number of spans not taken.
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    /// The reason, for people.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// A process and its spans.
#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    /// The process.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// Its spans, by the library that made them.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// Attributes of the process.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// Spans of one library.
#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    /// The library.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// Its spans.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

/// A library.
#[derive(Clone, PartialEq, Message)]
pub struct Scope {
    /// The library's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The library's version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// A span.
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// 8 bytes, or empty.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// The span's name.
    #[prost(string, tag = "5")]
    pub name: String,
    /// A [`SpanKind`]: server or internal.
    #[prost(enumeration = "SpanKind", tag = "6")]
    pub kind: i32,
    /// Nanoseconds since the Unix epoch.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// Nanoseconds since the Unix epoch.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// Attributes of the span.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    /// Set when the span failed.
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    /// Flags of W3C Trace Context, and whether the parent is in another process.
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

/// The relation of a span to its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SpanKind {
    /// Not specified.
    Unspecified = 0,
    /// The span is a part of its parent.
    Internal = 1,
    /// The span answers its parent's request.
    Server = 2,
}

/// How a span ended.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// A [`StatusCode`]: unset or failed.
    #[prost(enumeration = "StatusCode", tag = "3")]
    pub code: i32,
}

/// How a span ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum StatusCode {
    /// The span did not fail.
    Unset = 0,
    /// The span failed.
    Error = 2,
}

/// A name and a value.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A value.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// The value, of one of these types.
    #[prost(oneof = "Value", tags = "1, 3")]
    pub value: Option<Value>,
}

/// A value, by type.
#[derive(Clone, PartialEq, Oneof)]
pub enum Value {
    /// Text.
    #[prost(string, tag = "1")]
    Text(String),
    /// A whole number.
    #[prost(int64, tag = "3")]
    Number(i64),
}
