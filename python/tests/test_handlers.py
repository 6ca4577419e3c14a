"""Slots of rows that are gone in one way or another."""

import gc

import pytest

import croupier
from interrupting import each_point
from test_client import VOCAB
from test_leaving import SHARDS


@pytest.mark.parametrize("of", ["stream", "rank"])
def test_rows_that_only_the_garbage_collector_finds_give_back_their_slot(server, of):
    with croupier.connect(server.uds, VOCAB, vocab_shards=SHARDS) as stream, croupier.attach(stream.shard_token, 1) as rank:
        place = stream if of == "stream" else rank
        count = len(place._session.free)
        for _ in range(2 * count):
            ring = [place.rows(1)]
            ring.append(ring)
            del ring
            gc.collect()
            assert count and len(place._session.free) == count


def test_rows_that_two_threads_take_are_two(server):
    """Whenever the one comes between what the other does."""
    def attempt(points):
        slots = croupier._types.Slots(2)
        mine, other = croupier.Rows(None), croupier.Rows(None)
        points.does = lambda: slots.take(other)
        points.call(lambda: slots.take(mine))
        assert {mine.slot, other.slot} == ({0, 1} if points.left <= 0 else {0, None})

    each_point(attempt, 3)
