"""Spans, read by OpenTelemetry's own classes in a collector made of grpc and opentelemetry-proto."""

import concurrent.futures
import queue
import struct

import grpc
import pytest
from croupier.v1 import sampler_pb2 as pb
from croupier_client import stub
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service_grpc
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{PARENT}-01"
WITHIN = 30


class Collector(service_grpc.TraceServiceServicer):
    def __init__(self):
        self.requests = queue.SimpleQueue()

    def Export(self, request, context):
        self.requests.put(request)
        return service.ExportTraceServiceResponse()


@pytest.fixture
def collector():
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=2))
    servicer = Collector()
    service_grpc.add_TraceServiceServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(None)


def unread(message):
    """The bytes of unknown fields in a message and in all messages below it."""
    assert message.ByteSize() == len(message.SerializeToString())
    stripped = type(message)()
    stripped.CopyFrom(message)
    stripped.DiscardUnknownFields()
    return message.ByteSize() - stripped.ByteSize()


def told(attributes):
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


def test_a_collector_reads_the_spans_of_a_call(own_server, collector):
    server = own_server(f"--otlp-endpoint=http://{collector.address}", "--trace-ratio=0")
    logits = pb.InlineLogits(data=struct.pack("<4f", 0, 1, 2, 0.5))
    request = pb.SampleRequest(vocab_size=4, logits_dtype=pb.LOGITS_DTYPE_F32, logits=logits, rows=[pb.SampleRow()], model="m")
    with grpc.insecure_channel(server.tcp) as channel:
        stub(channel).Sample(request, metadata=[("traceparent", CONTEXT)], timeout=10)
    got = collector.requests.get(timeout=WITHIN)
    assert unread(got) == 0
    (resource,) = got.resource_spans
    assert told(resource.resource.attributes)["service.name"] == "croupier"
    (scope,) = resource.scope_spans
    assert scope.scope.name == "croupier" and scope.scope.version
    call, *stages = scope.spans
    assert (call.trace_id.hex(), call.parent_span_id.hex(), len(call.span_id)) == (TRACE, PARENT, 8)
    assert (call.name, call.kind) == ("croupier.v1.Sampler/Sample", trace.Span.SPAN_KIND_SERVER)
    assert call.flags & trace.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK and call.flags & 1
    assert call.status.code == trace.Status.STATUS_CODE_UNSET
    attributes = told(call.attributes)
    assert attributes["rpc.response.status_code"] == "OK" and attributes["gen_ai.request.model"] == "m"
    assert (attributes["croupier.rows"], attributes["croupier.tokens"]) == (1, 1)
    assert [s.name for s in stages] == ["queue", "backend", "reply"]
    assert all(s.kind == trace.Span.SPAN_KIND_INTERNAL and s.parent_span_id == call.span_id for s in stages)
    assert call.start_time_unix_nano == stages[0].start_time_unix_nano <= stages[-1].end_time_unix_nano == call.end_time_unix_nano


def test_a_step_has_the_trace_that_it_names(own_server, collector):
    server = own_server(f"--otlp-endpoint=http://{collector.address}", "--trace-ratio=0")
    config = pb.StreamConfig(vocab_size=4, logits_dtype=pb.LOGITS_DTYPE_F32)
    work = [pb.Work(sequence_id=1, sample=pb.SampleWork())]
    logits = pb.InlineLogits(data=struct.pack("<4f", 0, 1, 2, 0.5))
    opening = [pb.OpenSequence(sequence_id=1)]
    steps = [pb.Step(step_id=1, open=opening, work=work, inline=logits),
             pb.Step(step_id=2, work=work, inline=logits, traceparent=CONTEXT)]
    requests = [pb.DecodeRequest(config=config), *(pb.DecodeRequest(step=step) for step in steps)]
    with grpc.insecure_channel(server.tcp) as channel:
        assert len(list(stub(channel).Decode(iter(requests), timeout=10))) == 3
    got = collector.requests.get(timeout=WITHIN)
    (step, *_) = got.resource_spans[0].scope_spans[0].spans
    assert (step.trace_id.hex(), told(step.attributes)["croupier.step.id"]) == (TRACE, 2)
