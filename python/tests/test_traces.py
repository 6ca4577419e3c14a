"""The trace that a stream and its steps belong to, as a collector receives it."""

import asyncio
import concurrent.futures
import queue

import grpc
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service_grpc

import croupier

CALL, STEP = (f"00-{digit * 32}-b7ad6b7169203331-01" for digit in "ab")
WITHIN = 30
ROWS = np.zeros((3, 100), np.float32)


class Collector(service_grpc.TraceServiceServicer):
    def __init__(self):
        self.spans = queue.SimpleQueue()

    def Export(self, request, context):
        for resource in request.resource_spans:
            for span in resource.scope_spans[0].spans:
                if span.name.endswith("/Decode"):
                    self.spans.put(span.trace_id.hex()[0])
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


def test_steps_have_the_trace_that_they_or_their_stream_name(serve, collector):
    # Two rows per message: all parts of a split step are in its trace.
    server = serve(f"--otlp-endpoint=http://{collector.address}", "--trace-ratio=0", "--max-rows-per-step=2")
    with croupier.connect(server.uds, 100, traceparent=CALL) as stream:
        texts = [stream.open(seed=text) for text in range(3)]
        stream.sample(ROWS, texts, traceparent=STEP)
        stream.submit(ROWS[:1], texts[:1], traceparent=STEP)
        stream.result()
        stream.step(ROWS[:1], texts[:1])
    assert "".join(collector.spans.get(timeout=WITHIN) for _ in range(5)) == "bbbba"

    async def run():
        async with croupier.aio.connect(server.uds, 100, traceparent=CALL) as stream:
            text = stream.open(seed=1)
            await stream.sample(ROWS[:1], [text])
            await stream.step(ROWS[:1], [text], traceparent=STEP)

    asyncio.run(run())
    assert "".join(collector.spans.get(timeout=WITHIN) for _ in range(2)) == "ab"
