"""A small worker: one stream, some sequences, numpy logits."""

import queue

import grpc
import numpy as np
from croupier.v1 import sampler_pb2 as pb
from croupier.v1 import sampler_pb2_grpc

DTYPES = {"f32": pb.LOGITS_DTYPE_F32, "f16": pb.LOGITS_DTYPE_F16, "bf16": pb.LOGITS_DTYPE_BF16}
OPTIONS = [
    # Without this, gRPC sends a Unix socket's path as the authority, and the connection is refused.
    ("grpc.default_authority", "localhost"),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]


def channel(address):
    return grpc.insecure_channel(address, options=OPTIONS)


def stub(open_channel):
    return sampler_pb2_grpc.SamplerStub(open_channel)


def encode(logits, dtype):
    """Little endian bytes of float32 rows in a dtype."""
    logits = np.ascontiguousarray(logits, dtype="<f4")
    if dtype == "f32":
        return logits.tobytes()
    if dtype == "f16":
        return logits.astype("<f2").tobytes()
    bits = logits.view("<u4")
    # Rounds to nearest, ties to even: numpy has no bfloat16.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def decode(data, dtype):
    """The logits that the server sees, as float64."""
    if dtype == "f32":
        return np.frombuffer(data, "<f4").astype(np.float64)
    if dtype == "f16":
        return np.frombuffer(data, "<f2").astype(np.float64)
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)


def opening(sequence, params=None, prompt=(), output=()):
    return pb.OpenSequence(
        sequence_id=sequence, params=params, prompt_token_ids=list(prompt), output_token_ids=list(output)
    )


class Worker:
    """One Decode stream. A context manager: leaving it frees the stream's sequences."""

    def __init__(self, address, vocab_size, dtype="f32", **config):
        self.dtype = dtype
        self.outbox = queue.SimpleQueue()
        self.channel = channel(address)
        first = pb.StreamConfig(vocab_size=vocab_size, logits_dtype=DTYPES[dtype], **config)
        self.outbox.put(pb.DecodeRequest(config=first))
        self.replies = stub(self.channel).Decode(iter(self.outbox.get, None))
        self.ready = next(self.replies).ready

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.outbox.put(None)
        self.channel.close()

    def step(self, logits, work, open=(), close=()):
        """Sends one step and waits for its result. `work` holds sequence ids or Work messages."""
        work = [w if isinstance(w, pb.Work) else pb.Work(sequence_id=w, sample=pb.SampleWork()) for w in work]
        step = pb.Step(open=open, close_sequence_ids=close, work=work)
        if len(work):
            step.inline.data = encode(logits, self.dtype)
        self.outbox.put(pb.DecodeRequest(step=step))
        return next(self.replies).step

    def tokens(self, logits, work, **step):
        """Sends one step and returns the sampled tokens. Every row must be OK."""
        result = self.step(logits, work, **step)
        assert all(o.status == pb.OPEN_STATUS_OK for o in result.open), result.open
        assert all(w.status == pb.ROW_STATUS_OK for w in result.work), result.work
        return [w.tokens[0].token_id for w in result.work]
