"""Sessions to make trajectories of: entries as an exchange might have recorded them, and files as others write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from tests.unit.ledger.made import AT, accepted, call_id, settled
from trunkline.canonical import openagents_hash
from trunkline.entries import AnyEntry, CallRefused, ProcessStep
from trunkline.model import Fault, Status
from trunkline.trajectory.build import Origin, Recorded, lines

ORIGIN = Origin("trunkline@1.2.3", "sha256:" + "ab" * 32)
RUN = "run_1"


def trajectory(*entries: AnyEntry | Recorded, session_id: str = "c") -> list[bytes]:
    recorded = [one if isinstance(one, Recorded) else Recorded(one) for one in entries]
    return list(lines(session_id, lambda: recorded, ORIGIN))


def values(written: Sequence[bytes], event: str | None = None) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in written]
    return [one for one in found if event is None or one["event"] == event]


def names(written: Sequence[bytes]) -> list[str]:
    return [one["event"] for one in values(written)]


def failed(n: int, call: int, code: str = "tool.failed", status: Status = Status.FAILED) -> Any:
    return settled(n, call, output=None, fault=Fault(code, "no"), status=status)


def refused(n: int) -> CallRefused:
    return CallRefused(n=n, at=AT + n, call_id=call_id(n), caller="operator", tool_id="a/b", code="policy.denied")


def run_started(n: int, *operations: dict[str, Any]) -> ProcessStep:
    data = {"space": "demo", "caller": "operator", "message": {"operations": operations}}
    return ProcessStep(n=n, at=AT + n, process="spaces.run", subject=RUN, step="started", data=raw(data))


def run_ended(n: int, *told: dict[str, Any]) -> ProcessStep:
    data = raw({"status": "completed", "events": told})
    return ProcessStep(n=n, at=AT + n, process="spaces.run", subject=RUN, step="ended", data=data, done=True)


def operation(n: int, index: str, tool: str, given: Any) -> Any:
    return accepted(n, raw(given), tool_id=f"space.demo/{tool}", key=f"{RUN}/{index}", correlation_id=RUN)


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def foreign(**change: Any) -> list[dict[str, Any]]:
    """The eight lines of the specification, by another producer, with its places filled in."""
    params, t = {"path": "src/main.rs"}, "2026-01-16T12:00:00Z"
    found: list[dict[str, Any]] = [
        {"event": "ReplayHeader", "replay_version": 1, "producer": "adjutant@1.2.3", "created_at": t},
        {"event": "SessionStart", "session_id": "s_1", "issue_number": 42, "policy_bundle_id": "any text", "t": t},
        {"event": "PlanStart", "plan_hash": hash_of("some plan"), "step_count": 3, "t": t},
        {"event": "ToolCall", "id": "tc_001", "tool": "file_read", "params": params, "params_hash": hash_of(params),
         "step_id": "step-1", "t": t},
        {"event": "ToolResult", "id": "tc_001", "output_hash": hash_of("full"), "step_utility": 0.8, "latency_ms": 45,
         "t": t},
        {"event": "StepComplete", "step_id": "step-1", "status": "Success", "iterations": 1, "t": t},
        {"event": "Verification", "commands": ["cargo check", "cargo test"], "exit_codes": [0, 0],
         "verification_delta": 3, "t": t},
        {"event": "SessionEnd", "status": "Success", "confidence": 0.92, "total_tool_calls": 15,
         "total_latency_ms": 12500, "t": t},
    ]  # fmt: skip
    for name, fields in change.items():
        one = next(line for line in found if line["event"] == name)
        one.update(fields)
    return found


def hash_of(value: Any) -> str:
    return openagents_hash(json.dumps(value).encode())


def written(events: Sequence[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(one, ensure_ascii=False).encode() for one in events]
