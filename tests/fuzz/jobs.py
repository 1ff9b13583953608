"""The four job types, with inputs of all shapes: valid ones, and valid ones made wrong in one place.

Whatever is given, a job is refused by the name of a field or gives outputs that are valid and fit; nothing else.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from trunkline.errors import JobRefused
from trunkline.jobs import consistency, worker
from trunkline.jobs.sandbox import Bounds, denied_command, plan
from trunkline.jobs.schemas import ANALYSIS, CURRENT, EMBEDDING, RERANK, SANDBOX, job_types
from trunkline.workspace.sandbox import Sandbox

CASES = 60
TEXTS = (
    "", " ", "a", "def f(x=[]):\n    return x == None\n", "fn f() { x.unwrap() }", "\x00\x01", "ä\U0001f600\u202e",
    "(" * 300, "if (a = b) {", "x" * 3000, "<<<<<<< HEAD\n", "\r\n\r", "\ufeff", "'''", "package a\nfunc f(", "../..",
    "/workspace/..", "space:a", "blob:sha256:" + "0" * 64, "https://a/b", "none", "full", "a" * 300, "TODO",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**64, -(2**70), 0.0, 1.5, -1e300, 1e-300, [], {}, [[]], [None],
    {"a": {}}, *TEXTS,
)  # fmt: skip
NAMES = ("a.py", "a.js", "a.ts", "a.tsx", "a.go", "a.rs", "a", "a.txt", "x/../y.py")


def made(rng: Random, schema_id: str) -> dict[str, Any]:
    """Inputs that are valid."""
    text = lambda: rng.choice(TEXTS) or "x"  # noqa: E731
    match schema_id:
        case "oa.embedding.v1":
            model = rng.choice(["trunkline-hashing-v1", "wordllama-l2-supercat-256", "gpt-9"])
            inputs: dict[str, Any] = {"texts": [text() for _ in range(rng.randint(1, 4))], "model": model}
            if rng.random() < 0.5:
                inputs["dimensions"] = rng.choice([1, 2, 64, 256, 257])
            return inputs
        case "oa.retrieval_rerank.v1":
            candidates = [{"id": str(index), "content": text()} for index in range(rng.randint(1, 5))]
            return {"user_task": text(), "candidates": candidates, "k": rng.randint(1, 6)}
        case "oa.code_chunk_analysis.v1":
            start = rng.choice([1, 7])
            content = "\n".join(text() for _ in range(rng.randint(1, 3)))
            chunk = {"path": rng.choice(NAMES), "start_line": start, "end_line": start + 2, "content": content}
            limits = {"max_faults": rng.randint(0, 3), "max_summary_length": rng.randint(1, 80)}
            return {"task": text(), "chunk": chunk, "output_constraints": limits}
        case _:
            repo = {"source": rng.choice(TEXTS) or "x", "mount_path": rng.choice(TEXTS)[:200]}
            return {
                "commands": [{"cmd": text(), "workdir": rng.choice(TEXTS)[:200]}],
                "env": {rng.choice(TEXTS): "x"},
                "repo": repo,
                "sandbox": {"network_policy": rng.choice(["none", "localhost", "full"])},
            }


def spoiled(rng: Random, value: Any) -> Any:
    """The same with one place replaced, removed, or something added."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        if rng.random() < 0.2:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: spoiled(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], spoiled(rng, value[index]), *value[index + 1 :]]
    if isinstance(value, dict) and rng.random() < 0.3:
        return {**value, rng.choice(TEXTS): rng.choice(VALUES)}
    return copy.deepcopy(rng.choice(VALUES))


def judge(schema_id: str, inputs: Any) -> str:
    """What becomes of these inputs: ``refused``, or ``done`` with outputs that were checked."""
    job = job_types()[schema_id]
    problem = job.input_problem(inputs)
    if not problem:
        filled = job.filled(inputs)
        assert job.input_problem(filled) == "", "defaults made it wrong"
        problem = consistency.input_problem(schema_id, filled)
    if problem:
        return _refused(problem)
    job.job_hash(filled)
    try:
        if schema_id == SANDBOX:
            denied_command(filled)
            plan(filled, Bounds(network=True), Sandbox("bubblewrap"))
        else:
            consistency.seal(schema_id, filled, worker.work(schema_id, filled))
    except JobRefused as error:
        return _refused(str(error))
    return "done"


def _refused(problem: str) -> str:
    assert problem.startswith("inputs"), problem
    return "refused"


def run(seed: int) -> int:
    """Judge some inputs of each type; how many there were."""
    rng = Random(seed)
    seen = {schema_id: set[str]() for schema_id in CURRENT}
    for number in range(CASES):
        schema_id = CURRENT[number % len(CURRENT)]
        inputs = made(rng, schema_id)
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            inputs = spoiled(rng, inputs)
        try:
            seen[schema_id].add(judge(schema_id, inputs))
        except Exception as error:
            error.add_note(f"seed {seed}: {schema_id} {inputs!r}")
            raise
    assert all("refused" in found for found in seen.values()), seen
    assert {EMBEDDING, RERANK, ANALYSIS} & {schema_id for schema_id, found in seen.items() if "done" in found}
    return CASES
