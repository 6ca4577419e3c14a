"""A worker that verifies drafts, samples, sometimes sends a row of NaN and opens an invalid sequence, and counts the results;
and a worker whose texts match a schema."""

import array
import importlib
import json
import math
import queue
import random
import sys
import time

VOCAB, DRAFT = 64, 3
PAUSE = 0.01
#: Texts of tokens for `Structured`: the first one ends a text.
TEXTS = [None, *'{}":, 0123456789abcdefghijklmnopqrstuvwxyz', '{"', '":', ',"', "name", "age", '":"', '"}', "an", "er"]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
          "required": ["name", "age"], "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}


def stubs(proto, folder):
    from grpc_tools import protoc

    file = proto / "croupier" / "v1" / "sampler.proto"
    assert protoc.main(["protoc", f"-I{proto}", f"--python_out={folder}", f"--grpc_python_out={folder}", str(file)]) == 0
    sys.path.insert(0, str(folder))


def softmax(row):
    exps = [math.exp(x) for x in row]
    total = sum(exps)
    return [e / total for e in exps]


class Worker:
    """`honest`: whether it draws its draft tokens from the distribution that it claims."""

    config: dict = {}

    def __init__(self, address, model, honest):
        import grpc

        self.pb = importlib.import_module("croupier.v1.sampler_pb2")
        self.stub = importlib.import_module("croupier.v1.sampler_pb2_grpc").SamplerStub(
            grpc.insecure_channel(address, options=[("grpc.default_authority", "localhost")]))
        self.model, self.honest, self.random = model, honest, random.Random(model)
        self.tokens = self.nans = self.unopened = self.drafts = self.drafted = self.accepted = self.emitted = 0
        self.measured = self.expected = self.observed = 0
        self.drawn = self.claimed = 0
        self.seconds = []

    def logits(self):
        return [self.random.gauss(0, 1.5) for _ in range(VOCAB)]

    def verify(self):
        """A draft from a distribution close to the target's, and the rows of the target."""
        targets = [self.logits() for _ in range(DRAFT + 1)]
        claimed = [softmax([x + self.random.gauss(0, 0.5) for x in row]) for row in targets[:DRAFT]]
        drawn = claimed if self.honest else [[1.0] * VOCAB] * DRAFT
        ids = [self.random.choices(range(VOCAB), probs)[0] for probs in drawn]
        dense = self.pb.DenseDraft(probs=array.array("f", sum(claimed, [])).tobytes(), dtype=self.pb.LOGITS_DTYPE_F32)
        work = self.pb.VerifyWork(draft_token_ids=ids, dense=dense, measure=True)
        return self.pb.Work(sequence_id=1, verify=work), targets

    def step(self, i):
        pb = self.pb
        verify, rows = self.verify()
        work = [verify, pb.Work(sequence_id=2, sample=pb.SampleWork())]
        rows.append(self.logits())
        if i % 10 == 0:
            work.append(pb.Work(sequence_id=3, sample=pb.SampleWork()))
            rows.append([math.nan] * VOCAB)
        opening = [pb.OpenSequence(sequence_id=id, params=pb.SamplingParams(seed=id)) for id in (1, 2, 3)] if i == 0 else []
        closing = []
        if i > 0 and i % 100 == 0:
            # Another text with its own random numbers. The acceptance of the previous text is reported when its sequence closes.
            closing, opening = [1], [pb.OpenSequence(sequence_id=1, params=pb.SamplingParams(seed=1000 + i))]
        if i % 10 == 0:
            opening.append(pb.OpenSequence(sequence_id=4, params=pb.SamplingParams(temperature=-1)))
        return pb.Step(close_sequence_ids=closing, open=opening, work=work, inline=pb.InlineLogits(data=array.array("f", sum(rows, [])).tobytes()))

    def run(self, seconds):
        pb, outbox = self.pb, queue.SimpleQueue()
        replies = self.stub.Decode(iter(outbox.get, None))
        outbox.put(pb.DecodeRequest(config=pb.StreamConfig(vocab_size=VOCAB, logits_dtype=pb.LOGITS_DTYPE_F32, model=self.model, **self.config)))
        next(replies)
        end, i = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            request = pb.DecodeRequest(step=self.step(i))
            begun = time.monotonic()
            outbox.put(request)
            reply = next(replies)
            self.seconds.append(time.monotonic() - begun)
            self.count(reply.step.work)
            self.unopened += sum(opened.status == pb.OPEN_STATUS_INVALID_ARGUMENT for opened in reply.step.open)
            i += 1
            time.sleep(PAUSE)
        outbox.put(None)
        assert not list(replies)

    def count(self, works):
        for work in works:
            self.tokens += len(work.tokens)
            self.nans += work.status == self.pb.ROW_STATUS_NAN_LOGITS
        verified = works[0]
        self.drafts += 1
        self.drafted += DRAFT
        self.accepted += verified.verify.accepted_count
        self.emitted += len(verified.tokens)
        for test in verified.verify.tests:
            self.measured += 1
            self.expected += test.expected_acceptance
            self.observed += test.accepted
            self.drawn += test.draft_probability
            self.claimed += test.expected_draft_probability

    def mistake(self):
        """Sends a message that is refused."""
        import grpc

        try:
            list(self.stub.Decode(iter([self.pb.DecodeRequest(config=self.pb.StreamConfig())])))
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.INVALID_ARGUMENT, e
        else:
            raise AssertionError("a stream without a vocabulary was accepted")


class Siblings(Worker):
    """Trees of siblings that are drawn without replacement, but sent as if each were drawn alone."""

    def step(self, i):
        pb = self.pb
        self.claimed_row = softmax(self.logits())
        left, self.ids = list(self.claimed_row), []
        for _ in range(DRAFT):
            self.ids.append(self.random.choices(range(VOCAB), left)[0])
            left[self.ids[-1]] = 0.0
        dense = pb.DenseDraft(probs=array.array("f", self.claimed_row * DRAFT).tobytes(), dtype=pb.LOGITS_DTYPE_F32)
        verify = pb.VerifyWork(draft_token_ids=self.ids, parents=[-1] * DRAFT, dense=dense, measure=True)
        opening = [pb.OpenSequence(sequence_id=1, params=pb.SamplingParams(seed=1))] if i == 0 else []
        rows = [x for _ in range(DRAFT + 1) for x in self.logits()]
        return pb.Step(open=opening, work=[pb.Work(sequence_id=1, verify=verify)], inline=pb.InlineLogits(data=array.array("f", rows).tobytes()))

    def count(self, works):
        [work] = works
        assert work.status == self.pb.ROW_STATUS_OK, work
        # Siblings that were tested: the first accepted one ends the tests.
        for sibling in range(1, len(work.verify.tests)):
            self.expected += sum(self.claimed_row[token] for token in self.ids[:sibling])


class Structured(Worker):
    """Texts that match `SCHEMA`, in sequence, with drafts of what it forces. The server needs grammars over `TEXTS`."""

    config = {"eos_token_ids": [0]}

    def step(self, i):
        pb = self.pb
        if i == 0:
            self.draft, self.is_over = [], True
        params = pb.SamplingParams(seed=i, max_tokens=60, grammar=pb.GrammarParams(json_schema=json.dumps(SCHEMA)),
                                   proposer=pb.ProposerParams(kind=pb.PROPOSER_KIND_GRAMMAR))
        opening = [pb.OpenSequence(sequence_id=i, params=params)] if self.is_over else []
        closing = [self.text] if self.is_over and i else []
        self.text = i if self.is_over else self.text
        verify = pb.VerifyWork(draft_token_ids=self.draft, deterministic=pb.DeterministicDraft())
        rows = [x for _ in range(len(self.draft) + 1) for x in self.logits()]
        return pb.Step(close_sequence_ids=closing, open=opening, work=[pb.Work(sequence_id=self.text, verify=verify)],
                       inline=pb.InlineLogits(data=array.array("f", rows).tobytes()))

    def count(self, works):
        [work] = works
        assert work.status == self.pb.ROW_STATUS_OK, work
        self.draft, self.is_over = list(work.proposed_token_ids), work.finish_reason != self.pb.FINISH_REASON_UNSPECIFIED
