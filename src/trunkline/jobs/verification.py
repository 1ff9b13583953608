"""Whether a job's result is right: by arithmetic where it can be checked, by agreement where it has to be judged.

Pure. Owns both modes of the specification. ``objective`` looks at one result: exit codes, artifact hashes, the shape of
embeddings, and a second run if there is one. ``subjective`` looks at the results of several providers and says which of
them agree, whether that is enough, or that one more has to be asked. Does not own asking providers, nor paying them:
a verdict names who is to be paid, and nobody else is.

Invariant: the same inputs and results give the same verdict, and a provider counts once however often it answers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from trunkline.jobs import consistency
from trunkline.jobs.schemas import ANALYSIS, EMBEDDING, RERANK, SANDBOX, JobType

# Two runs of a model that is not bit-exact point the same way this closely; one of another model does not.
SAME_DIRECTION: Final = 0.999
# How many providers are asked beyond the first ones before a job is given up.
MOST_MORE: Final = 2

Values = Mapping[str, Any]
# Says which results mean the same: a number for each, equal where they do; None for one that is of no use.
Judge = Callable[[JobType, Values, Sequence[Values]], Sequence[int | None]]


class Result(Struct, frozen=True):
    """What one provider says came of a job. ``output_hash`` is what it claims; empty if it claims none."""

    provider: str
    outputs: dict[str, Any]
    provenance: dict[str, Any] = {}
    output_hash: str = ""


class JobVerdict(Struct, frozen=True):
    """What became of the results of a job, and why. Providers are named as their results name them."""

    state: Literal["verified", "failed", "more"]
    reasons: tuple[str, ...] = ()
    # Whose result it is, who gave another valid one, and whose is not what it claims to be.
    agreed: tuple[str, ...] = ()
    dissented: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    output_hash: str = ""
    # The result that counts; empty unless it is verified.
    outputs: dict[str, Any] = {}

    @property
    def to_be_paid(self) -> tuple[str, ...]:
        """Who is to be paid: those whose result was found right, and nobody if none was."""
        return self.agreed if self.state == "verified" else ()


def claim_problem(job: JobType, inputs: Values, result: Result) -> str:
    """Why a result is not what it claims to be, in whichever mode; empty if it is. ``inputs`` have their defaults."""
    problem = job.output_problem(result.outputs) or consistency.output_problem(job.schema_id, inputs, result.outputs)
    if problem:
        return problem
    if result.output_hash and result.output_hash != job.output_hash(result.outputs):
        return "output_hash: does not compute"
    found = job.check_provenance(result.provenance).problems
    return found[0] if found else ""


# --- objective --------------------------------------------------------------------------------------------------------


def objective(
    job: JobType,
    inputs: Values,
    result: Result,
    *,
    rerun: Values | None = None,
    is_deterministic: bool = False,
    files: Mapping[str, bytes] | None = None,
) -> JobVerdict:
    """Check one result. ``rerun`` are the outputs of a run of our own, ``files`` the artifacts themselves, if we have
    them; ``is_deterministic`` says that the model gives the same bytes each time.
    """
    filled = job.filled(inputs)
    problem = claim_problem(job, filled, result)
    if problem:
        return JobVerdict("failed", (problem,), rejected=(result.provider,))
    problems = [*_run_problems(job, result.outputs), *_file_problems(result.outputs, files)]
    if rerun is not None:
        problems += _rerun_problems(job, result.outputs, rerun, is_deterministic=is_deterministic)
    digest = job.output_hash(result.outputs)
    if problems:
        return JobVerdict("failed", tuple(problems), dissented=(result.provider,), output_hash=digest)
    return JobVerdict("verified", agreed=(result.provider,), output_hash=digest, outputs=result.outputs)


def failure_alone(outputs: Values) -> dict[str, Any]:
    """How a sandbox run failed, without anything that it made: what is told of one that nobody pays for.

    The commands up to the one that failed, by exit codes and hashes. No names of files: a command chooses them. No
    exact times, and no command after that one: who may fail as often as he likes could tell himself the result by them.
    """
    runs: list[dict[str, Any]] = []
    for run in outputs["runs"]:
        kept = {name: run[name] for name in ("cmd", "exit_code", "stdout_sha256", "stderr_sha256")}
        runs.append(kept | {"duration_ms": math.ceil(run["duration_ms"] / 1000) * 1000})
        if run["exit_code"]:
            break
    return {**outputs, "runs": runs, "artifacts": []}


def _run_problems(job: JobType, outputs: Values) -> list[str]:
    if job.schema_id != SANDBOX:
        return []
    problems = [
        f"outputs.runs[{index}].exit_code: is {run['exit_code']}"
        for index, run in enumerate(outputs["runs"])
        if run["exit_code"] != 0
    ]
    if outputs["status"] != "success":
        problems.append(f"outputs.status: is {outputs['status']}")
    return problems


def _file_problems(outputs: Values, files: Mapping[str, bytes] | None) -> list[str]:
    problems = []
    for index, artifact in enumerate(outputs.get("artifacts", ()) if files is not None else ()):
        data = (files or {}).get(artifact["path"])
        if data is None:
            problems.append(f"outputs.artifacts[{index}]: is not there")
        elif hashlib.sha256(data).hexdigest() != artifact["sha256"] or len(data) != artifact["size_bytes"]:
            problems.append(f"outputs.artifacts[{index}].sha256: is not the hash of the file")
    return problems


def _rerun_problems(job: JobType, outputs: Values, rerun: Values, *, is_deterministic: bool) -> list[str]:
    """What differs from a run of our own, as far as two honest runs may not differ."""
    if job.schema_id == SANDBOX:
        codes = [[run["exit_code"] for run in one["runs"]] for one in (outputs, rerun)]
        hashes = [{item["path"]: item["sha256"] for item in one["artifacts"]} for one in (outputs, rerun)]
        problems = ["outputs.runs: exit codes differ from those of a second run"] if codes[0] != codes[1] else []
        if hashes[0] != hashes[1]:
            problems.append("outputs.artifacts: differ from those of a second run")
        return problems
    if job.schema_id != EMBEDDING or is_deterministic:
        same = job.output_hash(outputs) == job.output_hash(rerun)
        return [] if same else ["outputs: differ from those of a second run"]
    return [
        f"outputs.embeddings[{index}]: points elsewhere than that of a second run"
        for index, (ours, theirs) in enumerate(zip(rerun["embeddings"], outputs["embeddings"], strict=True))
        if cosine(ours, theirs) < SAME_DIRECTION
    ]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """How far two vectors point the same way: 1 if they do, 0 at a right angle or if either has no length."""
    lengths = math.sqrt(math.fsum(a * a for a in one)) * math.sqrt(math.fsum(b * b for b in other))
    if len(one) != len(other) or not lengths:
        return 0.0
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / lengths


# --- subjective -------------------------------------------------------------------------------------------------------


def quorum_of(providers: int) -> int:
    """How many of so many have to agree: more than half."""
    return providers // 2 + 1


def subjective(
    job: JobType, inputs: Values, results: Sequence[Result], *, wanted: int | None = None, judge: Judge | None = None
) -> JobVerdict:
    """Adjudicate what providers gave; ``more`` says that one more has to be asked.

    ``wanted`` is how many are asked at first, the job type's number unless it is said. More than half of those that
    were asked have to agree, so that there are never two groups that are enough. Without a judge, results agree if
    their hashes are equal, of reranking if the order of ids is, of analyses by ``compare_normalised``.
    """
    first = max(1, job.detail.redundancy if wanted is None else wanted)
    filled = job.filled(inputs)
    one_each = list({result.provider: result for result in reversed(results)}.values())[::-1]
    problems = {result.provider: claim_problem(job, filled, result) for result in one_each}
    valid = [result for result in one_each if not problems[result.provider]]
    rejected = tuple(name for name, problem in problems.items() if problem)
    reasons = tuple(f"{name}: {problem}" for name, problem in problems.items() if problem)
    if len(one_each) < first:
        return JobVerdict("more", (*reasons, f"{len(one_each)} of {first} providers answered"), rejected=rejected)
    groups = _groups(job, filled, valid, judge or _BUILT_IN.get(job.schema_id, by_hash))
    agreed = max(groups, key=len, default=[])
    needed = quorum_of(max(first, len(one_each)))
    if len(agreed) >= needed:
        chosen = agreed[0]
        return JobVerdict(
            "verified",
            reasons,
            agreed=tuple(result.provider for result in agreed),
            dissented=tuple(result.provider for result in valid if result not in agreed),
            rejected=rejected,
            output_hash=job.output_hash(chosen.outputs),
            outputs=chosen.outputs,
        )
    reasons = (*reasons, f"{len(agreed)} of {len(one_each)} providers agree, {needed} have to")
    state: Literal["failed", "more"] = "more" if len(one_each) < first + MOST_MORE else "failed"
    return JobVerdict(state, reasons, dissented=tuple(result.provider for result in valid), rejected=rejected)


def _groups(job: JobType, inputs: Values, results: Sequence[Result], judge: Judge) -> list[list[Result]]:
    numbers = judge(job, inputs, [result.outputs for result in results])
    if len(numbers) != len(results):
        raise ValueError(f"the judge spoke of {len(numbers)} results and was given {len(results)}")
    groups: dict[int, list[Result]] = {}
    for number, result in zip(numbers, results, strict=True):
        if number is not None:
            groups.setdefault(number, []).append(result)
    return list(groups.values())


def _numbered(keys: Sequence[object]) -> list[int]:
    return [keys.index(key) for key in keys]


def by_hash(job: JobType, _: Values, results: Sequence[Values]) -> list[int]:
    """The judge that takes results for the same only if they are, to the last digit."""
    return _numbered([job.output_hash(outputs) for outputs in results])


def by_order(_: JobType, __: Values, results: Sequence[Values]) -> list[int]:
    """The judge of reranking: what counts is which ids in which order; scores and reasons may differ."""
    return _numbered([[item["id"] for item in outputs["topk"]] for outputs in results])


def compare_normalised(_: JobType, __: Values, results: Sequence[Values]) -> list[int]:
    """The judge of analyses: the same symbols and the same faulty lines, in whatever order and words."""
    return _numbered(
        [
            (
                {(item["name"].strip(), item["line"]) for item in outputs["symbols"]},
                {(item["line"], item["severity"]) for item in outputs["suspected_faults"]},
            )
            for outputs in results
        ]
    )


_BUILT_IN: Final[Mapping[str, Judge]] = {RERANK: by_order, ANALYSIS: compare_normalised}
