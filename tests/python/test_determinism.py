"""The same sequence gives the same tokens, however it is served, and after the server is killed."""

import grpc
import numpy as np
import pytest
from croupier.v1 import sampler_pb2 as pb
from croupier_client import Worker, channel, encode, opening, stub

VOCAB = 500
LENGTH = 24
PROMPT = [3, 1, 4, 1, 5]
PARAMS = pb.SamplingParams(
    temperature=1.1, top_p=0.97, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.1, seed=42
)


def model(text):
    """A toy model: the logits depend on the whole text, so one wrong token changes all that follow."""
    return np.random.default_rng([7, *text]).normal(0, 2, VOCAB).astype(np.float32)


def generate(address, length=LENGTH, output=(), neighbours=0):
    """The tokens of one sequence, with other sequences if asked, continuing after `output`."""
    output, ids = list(output), range(neighbours + 1)
    others = [opening(i, pb.SamplingParams(seed=1000 + i, top_k=5)) for i in ids[1:]]
    noise = np.random.default_rng(9)
    with Worker(address, VOCAB) as worker:
        opens = [opening(0, PARAMS, PROMPT, output), *others]
        while len(output) < length:
            rows = [model(output), *noise.normal(0, 2, (neighbours, VOCAB))]
            # The sequence has another place in the batch at each step.
            turn = len(output) % len(rows)
            order = [*ids[turn:], *ids[:turn]]
            tokens = worker.tokens(np.stack([rows[i] for i in order]), order, open=opens)
            output.append(tokens[order.index(0)])
            opens = []
    return output


@pytest.fixture(scope="module")
def text(server):
    return generate(server.tcp)


def test_over_either_socket(address, text):
    assert generate(address) == text


def test_among_others(address, text):
    assert generate(address, neighbours=15) == text


def test_after_a_reconnect(server, text):
    for cut in (1, LENGTH // 2, LENGTH - 1):
        assert generate(server.uds, output=text[:cut]) == text


def test_closed_and_reopened_on_the_same_stream(server, text):
    with Worker(server.tcp, VOCAB) as worker:
        output = []
        while len(output) < LENGTH:
            again = dict(open=[opening(0, PARAMS, PROMPT, output)], close=[0] if output else [])
            output += worker.tokens(model(output)[None], [0], **again)
    assert output == text


def test_without_a_stream(server, text):
    output = []
    with channel(server.tcp) as c:
        while len(output) < LENGTH:
            request = pb.SampleRequest(
                vocab_size=VOCAB,
                logits_dtype=pb.LOGITS_DTYPE_F32,
                rows=[pb.SampleRow(params=PARAMS, prompt_token_ids=PROMPT, output_token_ids=output)],
                logits=pb.InlineLogits(data=encode(model(output), "f32")),
            )
            output.append(stub(c).Sample(request).rows[0].token.token_id)
    assert output == text


def test_a_seed_chosen_by_the_server_replays(server):
    with Worker(server.tcp, VOCAB) as worker:
        result = worker.step(model([])[None], [0], open=[opening(0)])
        seed, token = result.open[0].seed, result.work[0].tokens[0].token_id
        replay = opening(1, pb.SamplingParams(seed=seed))
        assert worker.tokens(model([])[None], [1], open=[replay]) == [token]


def test_kill_in_the_middle_of_a_text(own_server, text):
    running = own_server()
    output = []
    with Worker(running.uds, VOCAB) as worker:
        opens = [opening(0, PARAMS, PROMPT)]
        while len(output) < LENGTH // 2:
            output += worker.tokens(model(output)[None], [0], open=opens)
            opens = []
        running.kill()
        with pytest.raises(grpc.RpcError) as error:
            worker.step(model(output)[None], [0])
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    running.start()  # over the socket file that the killed server left
    assert generate(running.uds, output=output) == text
