"""Taking back what was done in a space: an operator's act, on record before it begins and after it ended.

Owns the order of its steps and the words for it. Does not own what a snapshot is (``workspace.snapshots``), when one is
taken (``agent``), or who may ask for this (``routes``).

Invariant: the space as it was before an undo is kept first, so that an undo can be undone; where that was not possible
(the space is too large), whoever asks is told before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw, to_builtins

from trunkline.edges.answers import Refused
from trunkline.edges.exchange import Feed
from trunkline.edges.spaces import translate
from trunkline.edges.spaces.agent import SpaceAgent
from trunkline.edges.spaces.messages import Undo
from trunkline.edges.waiting import ask
from trunkline.entries import ProcessStep
from trunkline.errors import WorkspaceError
from trunkline.events import ProcessStepped
from trunkline.model import fault, stamp
from trunkline.workspace.restoring import Change
from trunkline.workspace.snapshots import About, Skipped

PROCESS: Final = "spaces.undo"


def shown(about: About) -> dict[str, Any]:
    """A snapshot, for whoever asks."""
    return {
        "number": about.number,
        "taken_at": stamp(about.at_ms),
        "run": about.run,
        "files": about.files,
        "bytes": about.size,
        "copied_bytes": about.copied,
    }


async def snapshots(agent: SpaceAgent) -> dict[str, Any]:
    """What is kept of a space, the newest first, what all of it takes, and why the last one was not taken, if so."""
    kept = agent.snapshots
    try:
        found, size = await asyncio.to_thread(lambda: (kept.all(), kept.size()))
    except WorkspaceError as error:
        raise Refused(fault("state.conflict", error.message)) from None
    told: dict[str, Any] = {"snapshots": [shown(about) for about in found], "bytes": size}
    return {**told, "skipped": kept.skipped} if kept.skipped else told


async def preview(agent: SpaceAgent, asked: Undo) -> dict[str, Any]:
    """What an undo would do now."""
    async with agent.standing_still():
        number = await asyncio.to_thread(_found, agent, asked)
        change = await _told(agent.snapshots.compare, number)
        return await _shape(agent, number, change, done=False)


async def undo(feed: Feed, agent: SpaceAgent, by: str, asked: Undo, undo_id: str) -> dict[str, Any]:
    """Bring a space back to where it was before a run or an undo; if none is named, before the last run that is still
    in its files.
    """
    async with agent.standing_still():
        kept = agent.snapshots
        number = await asyncio.to_thread(_found, agent, asked)
        subject: dict[str, Any] = {"space": agent.space.name, "by": by, "snapshot": number, "run": asked.run}
        await _record(feed, undo_id, "started", subject)
        try:
            before = await asyncio.to_thread(kept.take, undo_id, feed.now().ms, number)
            change = await _told(kept.restore, number)
        except Refused as refused:
            await _record(feed, undo_id, "ended", {**subject, "error": refused.fault.message})
            raise
        told = await _shape(agent, number, change, done=True, undo_id=undo_id)
        if isinstance(before, Skipped):
            told["not_kept"] = before.reason
        else:
            told["undo_with"] = before.run
        await _record(feed, undo_id, "ended", {**subject, "change": to_builtins(change)})
        return told


async def close(feed: Feed, steps: Mapping[str, list[ProcessStep]]) -> None:
    """After a start: what was interrupted was finished with the snapshots' own recovery, and is said to be so."""
    for undo_id, recorded in steps.items():
        subject: dict[str, Any] = translate.decode(recorded[0].data, type=dict[str, Any])
        await _record(feed, undo_id, "ended", {**subject, "finished": "at the next start"})


def _found(agent: SpaceAgent, asked: Undo) -> int:
    kept = agent.snapshots
    if asked.run and asked.redo:
        raise Refused(fault("message.malformed", "a run and `redo` are two ways to say where to go: give one"))
    try:
        if asked.run:
            return kept.find(asked.run)
        return kept.find_undone() if asked.redo else kept.find_changed()
    except WorkspaceError as error:
        raise Refused(fault("not_found", error.message)) from None


async def _told(work: Any, number: int) -> Change:
    try:
        change: Change = await asyncio.to_thread(work, number)
    except WorkspaceError as error:
        raise Refused(fault("state.conflict", error.message)) from None
    return change


async def _shape(agent: SpaceAgent, number: int, change: Change, *, done: bool, undo_id: str = "") -> dict[str, Any]:
    later = [one for one in await asyncio.to_thread(agent.snapshots.all) if one.number >= number]
    told: dict[str, Any] = {"space": agent.space.name, "done": done, **to_builtins(change)}
    about = later[-1] if later and later[-1].number == number else None
    if about is None:
        return told
    # The newest first; what this undo itself kept is none of them.
    undone = [run for run in dict.fromkeys(one.run for one in later) if run != undo_id]
    return {**told, "snapshot": shown(about), "undone": undone}


async def _record(feed: Feed, undo_id: str, step: str, data: Mapping[str, Any]) -> None:
    body = Raw(translate.encode(data))
    reply = await ask(
        feed,
        lambda session, ref: ProcessStepped(
            session, ref, PROCESS, undo_id, step, body, done=step == "ended", caller=data["by"]
        ),
    )
    if reply.fault is not None:
        raise Refused(reply.fault)
