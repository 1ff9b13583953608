"""A space of a real exchange, as tests use it: every message that comes back is one that the specification allows."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from tests.running import Running
from trunkline.edges.spaces import validate_events_message

_names = itertools.count(1)


class SpaceOf:
    """One space."""

    def __init__(self, exchange: Running, preset: str = "standard", policy: dict[str, Any] | None = None) -> None:
        self.exchange = exchange
        self.name = f"s{next(_names)}"
        body = {"name": self.name, "preset": preset, "policy": policy or {}}
        status, made = exchange.request("POST", "/v1/spaces", body)
        assert status == 201, made
        self.root = Path(made["folder"])

    def ask(self, *operations: Any, query: str = "", token: str | None = None, **fields: Any) -> tuple[int, Any]:
        """One operations message: the status and the events message."""
        message = {"protocolVersion": "1.0", "operations": list(operations), **fields}
        status, answer = self.exchange.request("POST", f"/v1/spaces/{self.name}/runs{query}", message, token=token)
        return status, checked(answer)

    def run(self, *operations: Any, **fields: Any) -> list[dict[str, Any]]:
        """The events of a run that completes."""
        status, answer = self.ask(*operations, **fields)
        assert (status, answer["status"]) == (200, "completed"), answer
        events: list[dict[str, Any]] = answer["events"]
        return events

    def one(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The one event of one operation."""
        (event,) = self.run({"type": kind, **fields})
        return event

    def shell(self, command: str, **fields: Any) -> dict[str, Any]:
        """A command."""
        return self.one("shell", command=command, **fields)

    def write(self, path: str, content: str) -> None:
        """A file, made by the space itself."""
        assert self.one("createFile", path=path, content=content)["success"]

    def files(self) -> list[str]:
        """All files and folders."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))


def checked(answer: Any) -> Any:
    """An events message that holds to the specification."""
    result = validate_events_message(answer)
    assert result["success"], (result, answer)
    for event in answer["events"]:
        assert event["timestamp"].endswith("Z"), event
    return answer


def look(exchange: Running, run_id: str, query: str = "?wait=20", token: str | None = None) -> dict[str, Any]:
    """A run as it stands."""
    status, answer = exchange.request("GET", f"/v1/runs/{run_id}{query}", token=token)
    assert status in (200, 202), answer
    found: dict[str, Any] = checked(answer)
    return found


def resume(
    exchange: Running, run_id: str, operation_id: str, decision: str = "approved", token: str | None = None, **more: str
) -> tuple[int, Any]:
    """A person's answer to what a run asked."""
    body = {"approval": {"operationId": operation_id, "decision": decision, **more}}
    return exchange.request("POST", f"/v1/runs/{run_id}/resume", body, token=token)
