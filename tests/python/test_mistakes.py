"""Errors as a Python client sees them: the code, and the field at fault in the details."""

import grpc
import numpy as np
import pytest
from croupier.v1 import sampler_pb2 as pb
from croupier_client import Worker, channel, opening, stub
from google.rpc import error_details_pb2
from grpc_status import rpc_status

VOCAB = 100
ROW = np.zeros((1, VOCAB), dtype=np.float32)


def fields_at_fault(error):
    """The field paths of a status' BadRequest."""
    status = rpc_status.from_call(error)
    assert status is not None, f"no details: {error}"
    bad_request = error_details_pb2.BadRequest()
    found = [d for d in status.details if d.Is(error_details_pb2.BadRequest.DESCRIPTOR)]
    assert found and found[0].Unpack(bad_request), status
    return [violation.field for violation in bad_request.field_violations]


def sample(address, **request):
    base = dict(
        vocab_size=VOCAB,
        logits_dtype=pb.LOGITS_DTYPE_F32,
        rows=[pb.SampleRow()],
        logits=pb.InlineLogits(data=ROW.tobytes()),
    )
    with channel(address) as c:
        return stub(c).Sample(pb.SampleRequest(**{**base, **request}))


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        (dict(vocab_size=0), "vocab_size"),
        (dict(logits_dtype=pb.LOGITS_DTYPE_UNSPECIFIED), "logits_dtype"),
        (dict(logits_dtype=77), "logits_dtype"),
        (dict(logits=pb.InlineLogits(data=ROW.tobytes()[:-1])), "logits.data"),
        (dict(logits=pb.InlineLogits(data=ROW.tobytes(), row_stride=VOCAB - 1)), "logits.row_stride"),
        (dict(default_params=pb.SamplingParams(top_p=1.5)), "default_params.top_p"),
    ],
)
def test_a_call_with_a_wrong_shape_names_the_field(server, request_fields, field):
    with pytest.raises(grpc.RpcError) as error:
        sample(server.tcp, **request_fields)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert fields_at_fault(error.value) == [field]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (dict(vocab_size=0), "config.vocab_size"),
        (dict(vocab_size=VOCAB, default_params=pb.SamplingParams(temperature=-1)), "config.default_params.temperature"),
        (dict(vocab_size=VOCAB, eos_token_ids=[VOCAB]), "config.eos_token_ids[0]"),
    ],
)
def test_a_wrong_configuration_ends_the_stream(address, config, field):
    with pytest.raises(grpc.RpcError) as error:
        Worker(address, **config)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert fields_at_fault(error.value) == [field]


def test_a_step_before_the_configuration(server):
    with channel(server.tcp) as c, pytest.raises(grpc.RpcError) as error:
        list(stub(c).Decode(iter([pb.DecodeRequest(step=pb.Step())])))
    assert error.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)


def test_one_wrong_sequence_leaves_its_neighbour_alone(address):
    with Worker(address, VOCAB) as worker:
        opens = [opening(0, pb.SamplingParams(temperature=-1)), opening(1, pb.SamplingParams(temperature=0))]
        result = worker.step(np.vstack([ROW, ROW]), [0, 1], open=opens)
    assert [o.status for o in result.open] == [pb.OPEN_STATUS_INVALID_ARGUMENT, pb.OPEN_STATUS_OK]
    assert result.open[0].error.field == "params.temperature" and result.open[0].error.message
    assert [w.status for w in result.work] == [pb.ROW_STATUS_UNKNOWN_SEQUENCE, pb.ROW_STATUS_OK]


def test_an_unknown_sequence(address):
    with Worker(address, VOCAB) as worker:
        result = worker.step(ROW, [99])
    assert [w.status for w in result.work] == [pb.ROW_STATUS_UNKNOWN_SEQUENCE]
