"""The programs in python/README.md, and the client's program in README.md, do what is said there. Only the server's address is replaced."""

import ast
import asyncio
import inspect
import json
import pathlib
import re
from types import SimpleNamespace

import numpy as np
import pytest

import croupier
import grammar_vocabulary
from grammar_vocabulary import END, started, text_of
from test_client import VOCAB, logits, params

README = (pathlib.Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
EOS = 128_009


def test_the_first_program_ends_with_all_texts(server):
    program = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    address = '"unix:/run/croupier/croupier.sock"'
    assert program.count(address) == 1
    prompts = [[1, 2, 3], [4, 5], [6]]
    steps = []

    def model(texts):
        steps.append(len(texts))
        rows = np.full((len(texts), 128_256), -20, np.float32)
        for text, row in zip(texts, rows):
            # The first prompt's text ends after five tokens, the others only at their maximal length.
            row[EOS if text.prompt == (1, 2, 3) and len(text.tokens) == 5 else 7] = 20
        return rows

    names = {"prompts": prompts, "model": model}
    exec(program.replace(address, repr(server.uds)), names)
    texts = names["texts"]
    assert [text.finish_reason for text in texts] == ["eos", "max_tokens", "max_tokens"]
    assert [len(text.tokens) for text in texts] == [6, 256, 256]
    assert steps == [3] * 6 + [2] * 250
    assert not names["stream"].sequences


def test_the_program_of_the_project_prints_what_is_shown(server, capsys):
    page = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    section = page.split("### From Python\n")[1].split("\n### ")[0]
    program, shown = (re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)[1] for language in ("python", "text"))
    assert program.count('"127.0.0.1:50051"') == 1
    exec(program.replace('"127.0.0.1:50051"', repr(server.uds)), {})
    assert capsys.readouterr().out == shown


def test_the_program_of_the_page_on_history_thinks_otherwise_than_it_answers(server):
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/history.md").read_text(encoding="utf-8")
    program = re.search(r"### Drawn otherwise while it thinks\n.*?```python\n(.*?)```", page, re.DOTALL)[1]
    names = {name: getattr(croupier, name) for name in ("SamplingParams", "ThinkingBudgetParams")}
    exec(program, names)
    vocab, count = 151_669, 64
    # All tokens are equally likely: in a thought, top_k leaves 20 of them and top_p 19; the answer is the first one.
    flat, end = np.zeros(vocab, np.float32), np.where(np.arange(vocab) == 151_668, 60, 0).astype(np.float32)
    with croupier.connect(server.uds, vocab, max_rows=count) as stream:
        texts = [stream.open(names["params"], seed=seed, prompt=[1, 151_667]) for seed in range(count)]
        thoughts = stream.sample(np.tile(flat, (count, 1)), texts)
        assert max(thoughts) < 19 and len(set(thoughts)) > 10
        assert {*stream.sample(np.tile(end, (count, 1)), texts)} == {151_668}
        assert {*stream.sample(np.tile(flat, (count, 1)), texts)} == {0}


def test_texts_that_go_on_with_other_parameters_are_drawn_as_they_would_be(server):
    """As the table of forks says: with one seed, the result is the same whether the server or the worker switches parameters."""
    marked = {"start_token_ids": [1], "end_token_ids": [2], "budget": 100, "temperature": 2.0, "top_k": 7}
    with croupier.connect(server.uds, VOCAB) as stream:
        marks = stream.open(thinking_budget=marked, prompt=[1], seed=5, temperature=0.5)
        parsed = stream.open(prompt=[1], seed=5, temperature=2.0, top_k=7)
        for position in range(40):
            row = logits(3, position)
            row[[1, 2]] = (-60, 60) if position == 20 else (-60, -60)
            stream.sample(np.stack([row, row]), [marks, parsed])
            if position == 20:
                forked = stream.fork(parsed, temperature=0.5, top_k=None, seed=parsed.params.seed)
                stream.close(parsed)
                parsed = forked
        assert marks.tokens == parsed.tokens and len(marks.tokens) == 40


def test_texts_that_have_ended_take_no_room(serve):
    server = serve("--max-sequences-per-stream=2")
    with croupier.connect(server.uds, VOCAB) as stream:
        for _ in range(5):
            texts = [stream.open(max_tokens=1, **params(text)) for text in (1, 2)]
            stream.sample(np.stack([logits(1, 0), logits(2, 0)]), texts)
            assert [text.finish_reason for text in texts] == ["max_tokens"] * 2 and not stream.sequences
            # Closing again does no harm, even if another text has the id.
            other = stream.open(sequence_id=texts[0].id, max_tokens=1, seed=3)
            stream.close(texts[0])
            assert stream.sample(logits(3, 0), [other])


def test_a_step_behind_the_end_of_a_text_fails_for_it_alone(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        ends, goes_on = stream.open(max_tokens=1, **params(1)), stream.open(**params(2))
        for position in (0, 1):
            stream.submit(np.stack([logits(1, position), logits(2, position)]), [ends, goes_on])
        stream.result()
        assert ends.finish_reason == "max_tokens"
        assert [work.status for work in stream.result().work] == [croupier.pb.ROW_STATUS_SEQUENCE_FINISHED, croupier.pb.ROW_STATUS_OK]
        assert (len(ends.tokens), len(goes_on.tokens)) == (1, 2)


def snippet(title):
    section = README.split(f"\n## {title}\n")[1].split("\n## ")[0]
    [code] = re.findall(r"```python\n(.*?)```", section, re.S)
    return code


def test_the_snippet_of_logprobs_runs(server, capsys):
    names = {"croupier": croupier, "server": server.uds, "vocab_size": VOCAB, "ids": [1, 2], "logits": logits(1, 0)}
    exec(snippet("Logprobs"), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20 == len(names["text"].tokens)
    best = np.argsort(-logits(1, 0), kind="stable")[:5].tolist()
    for line, token in zip(lines, names["text"].tokens):
        found, logprob, rank, top = line.split(" ", 3)
        assert int(found) == token and float(logprob) < 0 and int(rank) >= 1 and list(ast.literal_eval(top)) == best
    with pytest.raises(SystemExit, match="NaN"):
        exec(snippet("Logprobs"), {**names, "logits": np.full(VOCAB, np.nan, np.float32)})


def test_the_snippet_of_what_a_server_can_do_runs(serve, tmp_path, capsys):
    server = started(serve, tmp_path)
    exec(snippet("What a server can do"), {"croupier": croupier, "server": server.uds})
    first, rows, *presets, grammars = capsys.readouterr().out.splitlines()
    assert re.match(r"\d+\.\d+\.\d+\S* cpu .* inline", first) and re.fullmatch(r"rows in a message: [1-9]\d*", rows)
    assert {"chat", "code", "creative"} <= {preset.split(" - ")[0] for preset in presets} and re.fullmatch(r"grammars of \d+ tokens", grammars)


def test_the_snippet_of_structured_output_runs(serve, tmp_path, capsys):
    def decode(tokens):
        return text_of(tokens).decode()

    names = {"croupier": croupier, "json": json, "server": started(serve, tmp_path).uds, "vocab_size": grammar_vocabulary.VOCAB, "eos": END,
             "prompts": [[5, 6], [7], [8]], "tokenizer": SimpleNamespace(decode=decode),
             "model": lambda texts: np.stack([grammar_vocabulary.model([*text.prompt, *text.tokens]) for text in texts])}
    exec(snippet("Structured output"), names)
    cards = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines()]
    assert len(cards) == 3 and all(list(card) == ["suit", "rank"] for card in cards)
    assert all(card["suit"] in ("hearts", "spades") and 2 <= card["rank"] <= 10 for card in cards)


def test_the_program_of_asyncio_runs(server, capsys):
    async def model(texts):
        await asyncio.sleep(0)
        return np.stack([np.where(np.arange(16) == (9 if len(text.tokens) == 5 and text.prompt == (1, 2) else 3), 90.0, 0.0) for text in texts])

    names = {"croupier": croupier, "server": server.uds, "vocab_size": 16, "eos": 9, "prompts": [[1, 2], [3]], "model": model}
    exec(snippet("asyncio, threads and processes"), names)
    assert capsys.readouterr().out == "[6, 256]\n"


def test_what_is_said_to_be_awaited_is(server):
    table = README.split("| | awaited | not awaited |\n|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    of = {"croupier.aio": croupier.aio, "a stream": croupier.aio.Stream, "a rank": croupier.aio.Rank, "AsyncSpeculation": croupier.AsyncSpeculation}
    for line, place in zip(table, of.values(), strict=True):
        what, *calls = (cell.strip() for cell in line.strip("|").split("|"))
        assert of[what.strip("`")] is place
        awaited, not_awaited = (set(re.findall(r"`(\w+)`", cell)) for cell in calls)
        known = {name for name in (place.__all__ if place is croupier.aio else dir(place)) if inspect.isroutine(getattr(place, name)) and name[0] != "_"}
        assert {name for name in known if inspect.iscoroutinefunction(getattr(place, name))} == awaited
        assert known - awaited == not_awaited


def test_the_snippet_of_drafts_runs(server):
    code = snippet("Drafts")
    kept = []

    def target_logits(drafts):
        rows = []
        for draft in drafts:
            text = [*draft.sequence.prompt, *draft.sequence.tokens, *draft.token_ids]
            for end in range(len(text) - len(draft.token_ids), len(text) + 1):
                # The model counts to nine and starts again at 0.
                rows.append(np.where(np.arange(16) == (text[end - 1] + 1) % 10, 20.0, 0.0))
        return np.asarray(rows, np.float32)

    names = {"croupier": croupier, "server": server.uds, "vocab_size": 16, "prompts": [[0, 1], [5]], "target_logits": target_logits,
             "keep": lambda text, path: kept.append(len(path))}
    exec(code, names)
    assert [text.tokens for text in names["texts"]] == [[(start + i) % 10 for i in range(100)] for start in (2, 6)]
    assert sum(kept) > 100 and len(kept) < 100
