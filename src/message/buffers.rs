//! What memory a request holds on to. Its logits are slices of what was received, and what was received in one piece is
//! freed in one piece: a small message must not keep a large one, nor what decoding left out of it, since only its own
//! bytes are counted (`max_bytes_in_flight`, `max_shard_bytes`).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::{DecodeError, Message};

/// Smaller messages are copied out of what they came in, which may be a frame of a megabyte with others in it; more where
/// `http2_frame_size_uds` is set larger. A copy of so much takes some 20 us.
const COPIED_BELOW: usize = 256 << 10;
/// What a message may hold beside its own bytes: fields of a newer schema, and the space of one that was moved.
const SLACK: usize = 256;

/// The receive buffer of one stream, seen from the messages that leave it.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// The buffer never shrinks, and is at most twice as long as the longest message.
    longest: usize,
}

impl Buffers {
    /// The whole of `buffer`, in memory of which it is about a quarter or more, where frames have their default size.
    pub(super) fn take(&mut self, buffer: &mut impl Buf) -> Bytes {
        let len = buffer.remaining();
        self.longest = self.longest.max(len);
        if len >= COPIED_BELOW.max(self.longest / 2) {
            return buffer.copy_to_bytes(len);
        }
        let mut own = BytesMut::with_capacity(len);
        own.put(buffer);
        own.freeze()
    }
}

/// Decodes a message. It keeps `received` only if that is hardly more than the message itself: unknown fields, and fields
/// that are set twice, are not counted.
pub(super) fn decode<U: Message + Default>(received: Bytes) -> Result<U, DecodeError> {
    let bytes = received.len();
    let decoded = U::decode(received)?;
    let own = decoded.encoded_len();
    if bytes.saturating_sub(own) <= own / 8 + SLACK {
        return Ok(decoded);
    }
    U::decode(Bytes::from(decoded.encode_to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;
    use proto::decode_request::Request;
    use proto::step::Logits;

    /// A step with so many bytes of logits, and an unknown field with so many.
    fn step(logits: usize, unknown: usize) -> Bytes {
        let data = vec![7; logits].into();
        let logits = Some(Logits::Inline(proto::InlineLogits { data, ..Default::default() }));
        let step = proto::Step { step_id: 3, logits, ..Default::default() };
        let mut message = proto::DecodeRequest { request: Some(Request::Step(step)) }.encode_to_vec();
        if unknown > 0 {
            prost::encoding::bytes::encode(1023, &vec![1u8; unknown], &mut message);
        }
        message.into()
    }

    /// The logits, and whether they lie in `buffer` still.
    fn logits(message: Bytes, buffer: &Bytes) -> (Bytes, bool) {
        let decoded: proto::DecodeRequest = decode(message).expect("it is well formed");
        let Some(Request::Step(proto::Step { step_id: 3, logits: Some(Logits::Inline(logits)), .. })) = decoded.request
        else {
            panic!("not the step that was sent");
        };
        let there = buffer.as_ptr_range().contains(&logits.data.as_ptr());
        (logits.data, there)
    }

    #[test]
    fn logits_lie_where_they_were_received() {
        let message = step(1 << 20, 0);
        let (data, there) = logits(message.clone(), &message);
        assert!(there && data.len() == 1 << 20);
        let message = step(1 << 20, 1000);
        assert!(logits(message.clone(), &message).1, "a little more than the schema has is no reason to copy");
    }

    #[test]
    fn what_was_not_decoded_is_not_kept() {
        for (own, unknown) in [(40, 1 << 20), (1 << 20, 1 << 18)] {
            let message = step(own, unknown);
            let (data, there) = logits(message.clone(), &message);
            assert!(!there, "{own} bytes of logits keep {unknown} of another field");
            assert_eq!(data, vec![7; own]);
        }
        // The last one counts, the first one would be kept.
        let twice = Bytes::from([step(1 << 20, 0), step(1000, 0)].concat());
        let (data, there) = logits(twice.clone(), &twice);
        assert!(!there && data.len() == 1000);
    }

    #[test]
    fn small_messages_keep_no_large_buffer() {
        let mut buffers = Buffers::default();
        let mut taken = |len: usize| {
            let mut buffer = BytesMut::from(&vec![5; 4 << 20][..]).freeze();
            let all = buffer.clone();
            buffer.truncate(len);
            let message = buffers.take(&mut buffer);
            assert!(message.len() == len && buffer.is_empty() && message.iter().all(|&byte| byte == 5));
            all.as_ptr_range().contains(&message.as_ptr())
        };
        assert!(!taken(COPIED_BELOW - 1) && taken(COPIED_BELOW) && taken(2 << 20));
        assert!(!taken(COPIED_BELOW) && !taken((1 << 20) - 1) && taken(1 << 20));
    }
}
