"""Steps with more rows than a slot has, if shared memory is required."""

import asyncio

import pytest

import croupier
from croupier import pb
from test_client import VOCAB
from test_split import batch
from test_waiting import NAMES, done


@pytest.mark.parametrize("kind", NAMES)
def test_what_insists_on_shared_memory_sends_nothing_in_messages(server, kind):
    said = "^5 rows are more than max_rows, 4, and data_path is shared_memory; connect with a larger max_rows, or with data_path \"auto\""

    async def run(**options):
        stream = (croupier if kind == "sync" else croupier.aio).connect(server.uds, VOCAB, data_path="shared_memory", max_rows=4, **options)
        if kind == "asyncio":
            await stream.__aenter__()
        text = stream.open(prompt=[1, 2, 3])
        with pytest.raises(ValueError, match=said):
            stream.rows(5)
        if options:
            # Steps of tensor-parallel ranks are not split.
            with pytest.raises(ValueError, match=said):
                await done(kind, stream.step(batch(0)[:5, :900], [pb.Work(score=pb.ScoreWork(token_ids=range(5)))]))
            with croupier.attach(stream.shard_token, 1, data_path="shared_memory") as rank, pytest.raises(ValueError, match=said):
                rank.rows(5)
        else:
            draft = pb.VerifyWork(draft_token_ids=range(4), deterministic=pb.DeterministicDraft())
            with pytest.raises(ValueError, match=r"^work\[0\] alone takes 5 rows, max_rows is 4; draft fewer tokens, or raise max_rows$"):
                await done(kind, stream.step(batch(0)[:5], [pb.Work(sequence_id=text.id, verify=draft)]))
            # Works with fewer rows are sent one after another.
            scores = [pb.Work(score=pb.ScoreWork(token_ids=[number])) for number in range(5)]
            assert len((await done(kind, stream.step(batch(0)[:5], scores))).work) == 5
        assert stream.data_path_reason == "" and stream.data_path == "shared_memory"
        await done(kind, stream.end())

    asyncio.run(run())
    asyncio.run(run(vocab_shards=[900, 100]))


@pytest.mark.parametrize("why", ["given up", "lost"])
def test_between_two_connections_too(server, why):
    """On an asyncio stream, whose `rows` cannot reconnect it."""
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB, data_path="shared_memory", max_rows=4, reconnect_within=0.1) as stream:
            text, speculation = stream.open(prompt=[1, 2, 3] * 9, proposer={"kind": "ngram"}), croupier.AsyncSpeculation(stream)
            await stream.sample(batch(0)[:1], [text])
            assert speculation.length(text, 9) == 3
            if why == "lost":
                server.kill()
                with pytest.raises(croupier.CroupierError, match="the next step connects again"):
                    await stream.sample(batch(0)[:1], [text])
                server.start()
            else:
                await stream.submit(batch(0)[:1], [text])
                await stream.give_up()
            assert stream.data_path == "inline" and speculation.length(text, 9) == 3
            # Until then they are elsewhere. They are sent by the new region all the same.
            rows = stream.rows(1)
            assert rows.slot is None
            rows.write(batch(0)[:1])
            await stream.sample(rows, [text])
            assert stream.data_path == "shared_memory" and stream._session.taken.free() == [0, 1]
            many = stream.rows(4)
            assert many.slot is not None
            stream.discard(many)
            assert len(text.tokens) == 2 and stream.data_path_reason == ""

    asyncio.run(run())
