"""A model behind an OpenAI-compatible endpoint, here a small server that speaks that API."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import jobs_world
from trunkline.config import Jobs
from trunkline.edges.jobs.remote import key_of
from trunkline.errors import ConfigError
from trunkline.jobs.schemas import ANALYSIS, EMBEDDING, RERANK

pytestmark = pytest.mark.slow

# Of a form that no rule knows: only who is told of it can mask it.
KEY = "planted walnut 0123456789"
CANDIDATES = [{"id": "a", "content": "one"}, {"id": "b", "content": "two"}]


class Models:
    """The server: answers with what it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.status = 200
        self.said: Any = None
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.asked.append((first.split()[1], headers, body))
        answer = self.said if isinstance(self.said, bytes) else json.dumps(self.said).encode()
        writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(answer)}\r\n\r\n".encode() + answer)
        await writer.drain()
        writer.close()

    def says(self, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        self.said = {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage}


@asynccontextmanager
async def serving() -> AsyncIterator[Models]:
    models = Models()
    server = await asyncio.start_server(models.serve, "127.0.0.1", 0)
    models.port = server.sockets[0].getsockname()[1]
    async with server:
        yield models


@pytest.fixture
async def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setenv("MODELS_KEY", KEY)
    async with serving() as models:
        endpoint = f"http://127.0.0.1:{models.port}/v1/"
        settings = Jobs(endpoint=endpoint, model="chat-1", embedding_model="embed-1", key="env:MODELS_KEY")
        async with jobs_world(tmp_path / "home", settings) as world:
            yield models, world


async def test_an_embedding_job_that_names_its_model_is_done_by_the_endpoint(both: Any) -> None:
    models, world = both
    models.said = {"data": [{"index": 1, "embedding": [0, 5]}, {"index": 0, "embedding": [3, 4]}]}
    call = await world.done(EMBEDDING, {"texts": ["a", "b"], "model": "embed-1"})
    assert call.output == {"embeddings": [[0.6, 0.8], [0.0, 1.0]], "model": "embed-1", "dimensions": 2}
    ((path, headers, body),) = models.asked
    assert path == "/v1/embeddings"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert (body["model"], body["input"]) == ("embed-1", ["a", "b"])
    local = await world.done(EMBEDDING, {"texts": ["a"], "model": "trunkline-hashing-v1"})
    assert local.code is None
    assert len(models.asked) == 1


async def test_a_rerank_job_is_done_by_the_model_and_its_tokens_are_on_record(both: Any) -> None:
    models, world = both
    topk = [{"rank": 1, "id": "b", "score": 0.9, "why": "it fits"}]
    models.says("```json\n" + json.dumps({"topk": topk}) + "\n```")
    call = await world.done(RERANK, {"user_task": "t", "candidates": CANDIDATES, "k": 1})
    assert call.output == {"topk": topk}
    ((path, _, body),) = models.asked
    assert (path, body["model"], body["temperature"]) == ("/v1/chat/completions", "chat-1", 0)
    assert json.loads(body["messages"][1]["content"])["candidates"] == CANDIDATES
    settled = world.exchange.log[-1]
    assert json.loads(bytes(settled.metrics))["token_counts"] == {"input": 7, "output": 3}


async def test_an_analysis_job_is_done_by_the_model(both: Any) -> None:
    models, world = both
    outputs = {
        "summary": "s",
        "symbols": [],
        "suspected_faults": [],
        "recommended_next_probes": [],
        "confidence": 1,
    }
    models.says(outputs)
    chunk = {"path": "a.py", "start_line": 1, "end_line": 1, "content": "x"}
    assert (await world.done(ANALYSIS, {"task": "t", "chunk": chunk})).output == outputs


@pytest.mark.parametrize(
    "said",
    [
        "not JSON",
        "[]",
        {"topk": [{"rank": 1, "id": "stranger", "score": 1}]},
        {"topk": [{"rank": 1, "id": "a", "score": 2}]},
        {"topk": [{"rank": 1, "id": "a", "score": 1}, {"rank": 2, "id": "a", "score": 1}]},
    ],
)
async def test_what_a_model_says_counts_only_if_it_is_valid(both: Any, said: Any) -> None:
    models, world = both
    models.says(said)
    call = await world.done(RERANK, {"user_task": "t", "candidates": CANDIDATES})
    assert call.code == "tool.failed"
    assert "the model's answer cannot be used" in call.outcome.fault.message


@pytest.mark.parametrize(("status", "retryable"), [(401, False), (429, True), (500, True)])
async def test_a_refusal_of_the_endpoint_fails_the_call_and_nothing_of_it_is_quoted(
    both: Any, status: int, retryable: bool
) -> None:
    models, world = both
    models.status, models.said = status, {"error": {"message": f"bad key {KEY}"}}
    call = await world.done(RERANK, {"user_task": "t", "candidates": CANDIDATES})
    assert (call.code, call.outcome.fault.message) == ("tool.failed", f"the endpoint answered {status}")
    assert call.outcome.fault.retryable is retryable


@pytest.mark.parametrize("said", [b"", b"{", b"[1]", b'{"choices": []}', b'{"choices": [{"message": null}]}'])
async def test_an_answer_of_no_form_fails_the_call(both: Any, said: bytes) -> None:
    models, world = both
    models.said = said
    assert (await world.done(RERANK, {"user_task": "t", "candidates": CANDIDATES})).code == "tool.failed"


async def test_the_key_is_in_the_request_and_in_no_log_or_record(both: Any, caplog: pytest.LogCaptureFixture) -> None:
    models, world = both
    caplog.set_level(logging.DEBUG)
    for models.status, models.said in ((401, b"no"), (200, b"{")):
        await world.done(RERANK, {"user_task": f"open it with {KEY}", "candidates": CANDIDATES})
    assert KEY not in caplog.text
    world.exchange.store()
    stored = b"".join(world.exchange.ledger.reader.lines(1, world.exchange.ledger.durable))
    assert b"open it with" in stored
    assert KEY.encode() not in stored
    assert KEY not in repr(world.edge.agent.remote)
    assert KEY not in json.dumps(world.exchange.edges.status())


async def test_an_endpoint_that_is_not_there_fails_the_call(tmp_path: Path) -> None:
    async with serving() as models:
        endpoint = f"http://127.0.0.1:{models.port}/v1"
    async with jobs_world(tmp_path / "home", Jobs(endpoint=endpoint, model="m")) as world:
        call = await world.done(RERANK, {"user_task": "t", "candidates": CANDIDATES})
        assert call.outcome.fault is not None
        assert (call.outcome.fault.message, call.outcome.fault.retryable) == ("the endpoint cannot be reached", True)


def test_a_key_comes_from_a_variable_or_a_file_and_one_that_is_missing_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert key_of(f"file:{file}", {}) == KEY
    assert key_of("env:A", {"A": KEY}) == KEY
    assert key_of("", {}) == ""
    for key in ("env:B", f"file:{tmp_path}/none"):
        with pytest.raises(ConfigError, match=r"jobs\.key"):
            key_of(key, {})
    file.write_text("two\nlines")
    with pytest.raises(ConfigError, match="no key"):
        key_of(f"file:{file}", {})
