"""Which commands a call ran, and how each ended.

Owns the reading of a call's body and outcome: a command in a space, and the commands of a sandbox job, here or at
another provider. A call that succeeded may have run a command that failed: trajectories and lists of calls read that
here, and the console's page by the same rule. Does not own what is said about it.

Invariant: a call of any other tool ran no command, whatever its output looks like.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from trunkline.trajectory.plan import is_sandbox_job, loaded, member

# A command that was ended has no exit code of its own.
NO_EXIT_CODE: Final = -1


def is_shell(tool_id: str) -> bool:
    """Whether a call of this tool runs one command in a space."""
    return tool_id.startswith("space.") and tool_id.endswith("/shell")


def commands_of(tool_id: str, body: Raw | None, output: Raw | None) -> tuple[list[str], list[int]]:
    """The commands that a call ran, and how each ended."""
    ran = [(member(loaded(body), "command"), code) for _, code in _shell(output)] if is_shell(tool_id) else []
    if is_sandbox_job(tool_id):
        ran = _runs(output)
    known = [(text, _code(code)) for text, code in ran if isinstance(text, str)]
    return [text for text, _ in known], [code for _, code in known]


def failed_with(tool_id: str, output: Raw | None, metrics: Raw | None = None) -> int | None:
    """The first exit code other than 0, of a call that ran commands.

    ``metrics`` has the codes, too, for who does not fetch an output that is kept elsewhere.
    """
    if not is_shell(tool_id) and not is_sandbox_job(tool_id):
        return None
    codes = member(loaded(metrics), "exit_codes") if metrics is not None else None
    if not isinstance(codes, list):
        codes = [code for _, code in (_shell(output) if is_shell(tool_id) else _runs(output))]
    # What is no number says nothing here: an output that is kept elsewhere leaves its hash and its size.
    return next((code for code in codes if type(code) is int and code), None)


def _shell(output: Raw | None) -> list[tuple[object, object]]:
    return [] if output is None else [(None, member(loaded(output), "exitCode"))]


def _runs(output: Raw | None) -> list[tuple[object, object]]:
    read = loaded(output)
    runs = member(read, "runs") or member(member(read, "outputs"), "runs")
    return [(member(one, "cmd"), member(one, "exit_code")) for one in runs] if isinstance(runs, list) else []


def _code(code: object) -> int:
    return code if type(code) is int else NO_EXIT_CODE
