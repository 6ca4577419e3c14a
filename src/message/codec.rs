//! The codec of the generated service. It passes messages on as they were received, to be read where the limits are
//! known.

use super::buffers::{self, Buffers};
use super::look::{AllDropped, look, malformed};
use super::shape::{ANY, ATTACH_REQUEST, DECODE_REQUEST, REGION_REQUEST, SAMPLE_REQUEST, Shape};
use crate::error::Error;
use crate::limits::Limits;
use crate::proto;
use bytes::Bytes;
use prost::Message;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec as TonicCodec, DecodeBuf, Decoder as TonicDecoder};
use tonic_prost::ProstEncoder;

/// A request whose shape is checked before it is decoded.
pub(crate) trait Looked: Message + Default {
    /// The fields and sub-messages of the request.
    const SHAPE: &'static Shape;

    /// Decodes the received message. Also returns what decoding drops of its openings and works.
    ///
    /// # Errors
    /// When the bytes are no such message, or it has more parts than allowed, or something elsewhere is dropped.
    fn read(raw: Raw<Self>, limits: &Limits) -> Result<(Self, AllDropped), Error> {
        let dropped = look(&raw.0, Self::SHAPE, limits)?;
        Ok((buffers::decode(raw.0).map_err(malformed)?, dropped))
    }
}

impl Looked for proto::DecodeRequest {
    const SHAPE: &'static Shape = &DECODE_REQUEST;
}
impl Looked for proto::SampleRequest {
    const SHAPE: &'static Shape = &SAMPLE_REQUEST;
}
impl Looked for proto::AttachRequest {
    const SHAPE: &'static Shape = &ATTACH_REQUEST;
}
/// This request comes over the side socket, and has nothing that a limit would be for.
impl Looked for proto::RegionRequest {
    const SHAPE: &'static Shape = &REGION_REQUEST;
}
impl Looked for proto::GetServerInfoRequest {
    const SHAPE: &'static Shape = &ANY;
}

/// A request as it was received.
#[derive(Debug)]
pub struct Raw<U>(Bytes, PhantomData<fn() -> U>);

impl<U> From<Vec<u8>> for Raw<U> {
    fn from(received: Vec<u8>) -> Self {
        Self(received.into(), PhantomData)
    }
}

/// The request types of the generated service.
pub(crate) type RawDecodeRequest = Raw<proto::DecodeRequest>;
/// As above.
pub(crate) type RawAttachRequest = Raw<proto::AttachRequest>;
/// As above.
pub(crate) type RawSampleRequest = Raw<proto::SampleRequest>;
/// As above.
pub(crate) type RawGetServerInfoRequest = Raw<proto::GetServerInfoRequest>;

/// The codec of the generated service.
#[derive(Debug)]
pub(crate) struct Codec<T, U>(PhantomData<(T, U)>);

/// Passes messages on undecoded.
#[derive(Debug)]
pub(crate) struct Decoder<U>(Buffers, PhantomData<U>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> TonicCodec for Codec<T, Raw<U>>
where
    T: Message + Send + 'static,
    U: Send + 'static,
{
    type Encode = T;
    type Decode = Raw<U>;
    type Encoder = ProstEncoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Decoder(Buffers::default(), PhantomData)
    }
}

impl<U> TonicDecoder for Decoder<U> {
    type Item = Raw<U>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Raw<U>>, Status> {
        // A large message is not copied; its logits become slices of the received bytes.
        Ok(Some(Raw(self.0.take(buffer), PhantomData)))
    }
}
