//! The codec of the generated service: messages as they were received, to be read where the limits are known.

use super::buffers::{self, Buffers};
use super::look::{Unknown, look, malformed};
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

/// A request, which has a shape to look at.
pub(crate) trait Looked: Message + Default {
    /// Its sub-messages.
    const SHAPE: &'static Shape;

    /// The message that was received, and what is unknown in its openings and works.
    ///
    /// # Errors
    /// When it is none, has more parts than one may have, or an unknown field elsewhere.
    fn read(raw: Raw<Self>, limits: &Limits) -> Result<(Self, Unknown), Error> {
        let unknown = look(&raw.0, Self::SHAPE, limits)?;
        Ok((buffers::decode(raw.0).map_err(malformed)?, unknown))
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
/// It comes over the side socket, and has nothing that a limit would be for.
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

/// What the generated service knows requests by.
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

/// Takes messages as they are.
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
        // Where it is large it is not copied; logits become slices of it.
        Ok(Some(Raw(self.0.take(buffer), PhantomData)))
    }
}
