"""A connection or a region that a signal's handler leaves half made: it ends, and nothing of it is left."""

import pathlib
import threading
import time

import grpc
import pytest

import croupier
from interrupting import each_point, in_time  # noqa: F401
from test_interrupted import VOCAB


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("of", ["stream", "rank"])
def test_a_connection_that_a_handler_leaves_half_made_ends(server, in_time, of):  # noqa: F811
    """Wherever in gRPC that was: hanging up waits for a call that only threads of gRPC's end, which may not have been started."""
    with croupier.connect(server.uds, VOCAB, vocab_shards=[1000, 3000]) as zero:
        def attempt(points):
            made, begun = [], time.monotonic()
            points.call(lambda: made.append(croupier.connect(server.uds, VOCAB) if of == "stream" else croupier.attach(zero.shard_token, 1)))
            for each in made:
                each.end()
            # What was half made is gone by now. Where a handler breaks a thread of gRPC's own that is not waited for long.
            assert time.monotonic() - begun < 8, points.within

        each_point(attempt, 300, also=(str(pathlib.Path(grpc.__file__).parent), threading.__file__))
