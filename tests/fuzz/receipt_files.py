"""Files of receipts made wrong: `receipts verify` proves each, or says in a sentence why not, and exits with 1 or 2.

Each part of a file (receipt, rules, evidence, a line of the trajectory) is mutated by itself, and then the hashes
around it are computed anew more often than not: else nothing behind the first hash would ever be reached.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.fuzz.mutations import Mutator
from tests.unit.cli.conftest import trunkline
from tests.unit.money.paid import cashu_paid, checkpoint, lightning_paid, onchain_paid, receipt_file, tied_id
from trunkline.canonical import openagents_hash
from trunkline.jobs.schemas import SANDBOX, job_types
from trunkline.strictjson import NotStrictJson
from trunkline.trajectory.build import trajectory_hash

# Deeper than any reader goes, and than Python's own stack.
DEEP: Final = b"[" * 100_000 + b"]" * 100_000
HASHED: Final = {"params": "params_hash", "output": "output_hash", "plan": "plan_hash"}


@cache
def originals() -> list[dict[str, Any]]:
    """A whole receipt of each rail, and one of a job whose inputs have a schema."""
    paid = lightning_paid()
    sandbox = {"commands": [{"cmd": "make"}], "sandbox": {"resources": {"timeout_secs": 60}}}
    job_hash = job_types()[SANDBOX].job_hash(sandbox)
    bought = lightning_paid(names=job_hash, job_hash=job_hash)
    tool = f"trunkline.jobs/{SANDBOX}"
    return [
        receipt_file(paid, "lightning", receipt_id=tied_id(paid)),
        receipt_file(bought, "lightning", tool=tool, inputs=sandbox, receipt_id=tied_id(bought)),
        receipt_file(cashu_paid(), "cashu"),
        receipt_file(onchain_paid(), "onchain"),
    ]


def home_in(folder: Path) -> Path:
    """A home without a record, whose configuration knows the chain of the tests."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    chain = f'[nostr.chain]\nnetwork = "regtest"\ncheckpoints = ["{checkpoint()}"]\nconfirmations = 3\n'
    (home / "trunkline.toml").write_text(chain)
    return home


def code_of(home: Path, data: bytes) -> int:
    """What `verify` exits with; it raised nothing, and who is refused is told why on one line."""
    file = home.parent / "receipt.json"
    file.write_bytes(data)
    said = trunkline("--home", str(home), "receipts", "verify", str(file))
    assert said.code in {0, 1, 2}, said
    assert said.code == 0 or (said.err.strip() and "Traceback" not in said.err), said
    return said.code


def deep_ones() -> Iterator[bytes]:
    """Each field of a file, and of what is in it, as something that is nested without end."""
    mark = "a place for what is deep"
    for original in originals():
        yield from (
            json.dumps(_with(original, path, mark)).encode().replace(json.dumps(mark).encode(), DEEP)
            for path in _paths(original)
        )
    yield DEEP
    yield b"[" * 200_000


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (key,)
            yield from ((key, *rest) for rest in _paths(inner) if len(rest) < 3)


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    copy = json.loads(json.dumps(value))
    part = copy
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = new
    return copy


def judge(seed: int, cases: int, home: Path) -> int:
    """Verify so many files; how many of them are whole."""
    rng = Mutator(seed, []).rng
    whole = 0
    for number in range(cases):
        file = json.loads(json.dumps(rng.choice(originals())))
        place = rng.choice(["", "receipt", "receipt", "policy", "evidence", "request", "trajectory", "trajectory"])
        if place == "":
            data = Mutator(rng.getrandbits(32), [file]).body()
        elif place == "trajectory":
            at = rng.randrange(len(file["trajectory"]))
            line = Mutator(rng.getrandbits(32), [json.loads(file["trajectory"][at])]).body()
            file["trajectory"][at] = _computed_anew(line).decode("utf-8", "replace")
            data = _sealed(file, is_sealed=number % 4 > 0)
        else:
            wrong = Mutator(rng.getrandbits(32), [file[place]]).body()
            with suppress(ValueError, RecursionError):
                file[place] = json.loads(wrong)
            data = _sealed(file, is_sealed=number % 4 > 0)
        whole += code_of(home, data) == 0
    return whole


def _computed_anew(line: bytes) -> bytes:
    """A line whose own hashes are right."""
    with suppress(ValueError, RecursionError, NotStrictJson, TypeError):
        found = json.loads(line)
        if isinstance(found, dict):
            for value, name in HASHED.items():
                if value in found and name in found:
                    found[name] = openagents_hash(json.dumps(found[value]).encode())
            return json.dumps(found).encode()
    return line


def _sealed(file: dict[str, Any], *, is_sealed: bool) -> bytes:
    """A file whose hashes are those of what is in it, as far as they can be computed."""
    receipt = file["receipt"]
    if is_sealed and isinstance(receipt, dict):
        with suppress(NotStrictJson, ValueError, RecursionError, KeyError, TypeError):
            receipt["policy_bundle_id"] = openagents_hash(json.dumps(file["policy"]).encode())
            start = json.loads(file["trajectory"][1])
            start["policy_bundle_id"] = receipt["policy_bundle_id"]
            file["trajectory"][1] = json.dumps(start)
            lines = [line.encode() for line in file["trajectory"]]
            receipt["trajectory_hash"] = trajectory_hash(start["session_id"], lines)
    if is_sealed:
        with suppress(NotStrictJson, ValueError, RecursionError, KeyError, TypeError):
            file["receipt_hash"] = openagents_hash(json.dumps(receipt).encode())
    return json.dumps(file).encode()
