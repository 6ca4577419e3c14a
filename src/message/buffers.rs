//! Bounds the memory that a request keeps alive. Its logits are slices of the received bytes, and bytes received in one
//! piece are freed in one piece. So a small message must not keep a large buffer, nor parts that decoding left out:
//! only the message's own bytes are counted (`max_bytes_in_flight`, `max_shard_bytes`).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::{DecodeError, Message};

/// Smaller messages are copied out of their frame, which may be a megabyte long and hold other messages too, or even
/// longer if `http2_frame_size_uds` is larger. Copying this much takes some 20 us.
const COPIED_BELOW: usize = 256 << 10;
/// How many bytes a message may keep beside its own: fields of a newer schema, and the space of one that was moved.
const SLACK: usize = 256;

/// The receive buffer of one stream, as its messages show it.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// The longest message so far. The buffer never shrinks, and is at most twice as long as this.
    longest: usize,
}

impl Buffers {
    /// All bytes of `buffer`, in an allocation that they fill to about a quarter or more if frames have their default
    /// size.
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

/// Decodes a message. The message keeps `received` in memory only if that is hardly more than the message itself,
/// because unknown fields and fields that are set twice are not counted.
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

    /// A step with `logits` bytes of logits and an unknown field of `unknown` bytes.
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

    /// The logits, and whether they still lie in `buffer`.
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
        // Decoding uses the last one, and would keep the first one in memory.
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
