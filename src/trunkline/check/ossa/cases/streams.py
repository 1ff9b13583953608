"""Cases about streams: order, gaps, what comes after the end, and streams that are the progress of a call.

Owns these cases, and ``Stream``, which sends one in any order. What an actor was sent is ``actor``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trunkline.check.ossa import wire
from trunkline.check.ossa.actor import Actor, Arrival
from trunkline.check.ossa.bench import OssaBench, case, expect_error, marker
from trunkline.check.ossa.endpoint import Answer
from trunkline.check.ossa.wire import Message
from trunkline.check.suite import Failed

KINDS: Final = frozenset({"stream_start", "stream_data", "stream_end"})


@dataclass
class Stream:
    """A stream from one agent to another, and what the receiver saw of it."""

    by: Actor
    to: Actor
    stream_id: str

    def start(self) -> Message:
        """Its first message."""
        metadata = {"contentType": "application/json", "description": "a stream of the check"}
        return self.by.make("stream_start", self.to.named, "stream", metadata, streamId=self.stream_id)

    def data(self, sequence: int) -> Message:
        """A piece of it."""
        return self.by.make(
            "stream_data", self.to.named, "stream", {"n": sequence}, streamId=self.stream_id, sequence=sequence
        )

    def end(self, count: int) -> Message:
        """Its last message, which says how many pieces there were."""
        return self.by.make("stream_end", self.to.named, "stream", {}, streamId=self.stream_id, sequence=count)

    async def post(self, *messages: Message) -> list[Answer]:
        """Send them, each after the one before was answered."""
        return [await self.by.post(message) for message in messages]

    @property
    def received(self) -> list[Arrival]:
        """What the receiver was given, without redeliveries."""
        seen: dict[str, Arrival] = {}
        for one in self.to.arrivals:
            if one.kind in KINDS and one.header.get("streamId") == self.stream_id:
                seen.setdefault(one.header["messageId"], one)
        return list(seen.values())

    @property
    def pieces(self) -> list[object]:
        """The numbers of the pieces that arrived, in their order."""
        found = (one.payload for one in self.received if one.kind == "stream_data")
        return [payload.get("n") if isinstance(payload, dict) else payload for payload in found]

    async def wait_for(self, kind: str, number: int | None = None) -> None:
        """``Failed`` unless the receiver gets a message of this kind, with this number."""
        found = await self.to.wait(
            lambda one: (
                one.kind == kind
                and one.header.get("streamId") == self.stream_id
                and (number is None or one.payload == {"n": number})
            )
        )
        if found is None:
            which = kind if number is None else f"{kind} {number}"
            raise Failed(
                f"{which} did not arrive; what did: {', '.join(one.kind for one in self.received) or 'nothing'}"
            )


async def _stream(bench: OssaBench) -> Stream:
    return Stream(bench.first, await bench.provider(), marker())


def _expect_taken(answers: list[Answer]) -> None:
    for answer in answers:
        if answer.status not in {200, 202, 204} or answer.message.get("body", {}).get("error"):
            raise Failed(f"a message of the stream was answered by {answer}")


@case(
    "streams.whole",
    "standard",
    "OSSA-028 OSSA-029 OSSA-030 OSSA-044 OSSA-045 OSSA-047",
    "Start, data and end of a stream reach its recipient, in their order.",
    "`stream_start` has no sequence, `stream_data` counts from 0, `stream_end` carries the count.",
)
async def _(bench: OssaBench) -> None:
    stream = await _stream(bench)
    _expect_taken(await stream.post(stream.start(), *(stream.data(n) for n in range(4)), stream.end(4)))
    await stream.wait_for("stream_end")
    kinds = [one.kind for one in stream.received]
    if kinds[0] != "stream_start" or kinds[-1] != "stream_end" or stream.pieces != [0, 1, 2, 3]:
        raise Failed(f"{', '.join(kinds)} arrived, with pieces {stream.pieces}")


@case(
    "streams.by-socket",
    "standard",
    "OSSA-029 OSSA-085",
    "A stream that is sent by WebSocket arrives in its order.",
    "Messages of one connection are handled one after the other.",
)
async def _(bench: OssaBench) -> None:
    stream = await _stream(bench)
    for message in (stream.start(), *(stream.data(n) for n in range(10)), stream.end(10)):
        await stream.by.say(message)
    await stream.wait_for("stream_end")
    if stream.pieces != list(range(10)):
        raise Failed(f"ten pieces were sent, these arrived: {stream.pieces}")


@case(
    "streams.gap",
    "advanced",
    "OSSA-034 OSSA-085",
    "A piece that leaves a gap gets a negative acknowledgment that names it, and waits until the gap is filled.",
    "Compare `sequence` with the next one expected; answer `negative_acknowledgment` with {messageId} and an error.",
)
async def _(bench: OssaBench) -> None:
    stream = await _stream(bench)
    ahead = stream.data(2)
    _expect_taken(await stream.post(stream.start(), stream.data(0)))
    await stream.by.connected()
    (answer,) = await stream.post(ahead)
    message = await _nack_of(stream.by, ahead, answer)
    if message is None:
        raise Failed(f"piece 2 after piece 0 was answered by {answer}, and by nothing on the WebSocket")
    payload, error = message["body"]["payload"], message["body"].get("error")
    if not isinstance(payload, dict) or payload.get("messageId") != ahead["header"]["messageId"]:
        raise Failed(f"the negative acknowledgment has payload {payload!r}, not the messageId of piece 2")
    if not isinstance(error, dict) or error.get("code") not in wire.CODES:
        raise Failed(f"the negative acknowledgment has the error {error!r}")
    await stream.post(stream.data(1), stream.data(2))
    await stream.post(stream.end(3))
    await stream.wait_for("stream_end")
    if stream.pieces != [0, 1, 2]:
        raise Failed(f"after the gap was filled these pieces had arrived: {stream.pieces}")


async def _nack_of(by: Actor, sent: Message, answer: Answer) -> Message | None:
    """The negative acknowledgment of what was sent by HTTPS: the answer itself, or what came by WebSocket."""
    if answer.message.get("header", {}).get("type") == "negative_acknowledgment":
        return answer.message
    named = {"messageId": sent["header"]["messageId"]}
    found = await by.wait(lambda one: one.kind == "negative_acknowledgment" and one.payload == named)
    return None if found is None else found.message


@case(
    "streams.after-the-end",
    "advanced",
    "OSSA-046",
    "Data after the end of a stream is refused and not delivered.",
    "Forget a stream when it has ended; answer what comes later with a negative acknowledgment or an error.",
)
async def _(bench: OssaBench) -> None:
    stream = await _stream(bench)
    _expect_taken(await stream.post(stream.start(), stream.data(0), stream.end(1)))
    (answer,) = await stream.post(stream.data(1))
    if answer.message.get("header", {}).get("type") not in {"negative_acknowledgment", "error"}:
        raise Failed(f"data after the end was answered by {answer}")
    if 1 in stream.pieces:
        raise Failed("data after the end was delivered")


@case(
    "streams.fields",
    "standard",
    "OSSA-028 OSSA-029",
    "A stream message without `streamId`, and data without `sequence`, are refused with 400.",
    "Both stand in the header.",
)
async def _(bench: OssaBench) -> None:
    provider, caller = await bench.provider(), bench.caller()
    for name, kind, header in (
        ("stream_start without streamId", "stream_start", {}),
        ("stream_data without sequence", "stream_data", {"streamId": marker()}),
        ("a negative sequence", "stream_data", {"streamId": marker(), "sequence": -1}),
    ):
        answer = await caller.post(caller.make(kind, provider.named, "stream", {}, **header))
        expect_error(answer, 400, what=name)


@case(
    "streams.progress",
    "advanced",
    "OSSA-029 OSSA-047",
    "A stream that a provider sends with the correlation of a call reaches the caller before the response.",
    "Such a stream is the progress of that call.",
)
async def _(bench: OssaBench) -> None:
    provider, caller, thread = await bench.provider(), bench.first, marker()
    answer = await caller.ask(caller.make("request", provider.named, "progress", {}, correlationId=thread))
    if answer.kind != "response":
        raise Failed(f"the call ended with {answer}")
    mine = [one for one in caller.arrivals if one.header.get("correlationId") == thread]
    steps = [one.payload for one in mine[: mine.index(answer)] if one.kind == "stream_data"]
    if steps != [{"step": 0}, {"step": 1}]:
        raise Failed(f"before the response these pieces had arrived: {steps}")
