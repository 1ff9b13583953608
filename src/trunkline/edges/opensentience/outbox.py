"""What one conversation is about to say: messages become frames here and wait to be taken.

Owns the frame limit on the way out. It does not own when something may be said.
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.edges.framing.length_prefix import prefix
from trunkline.edges.opensentience.messages import ErrorObject, Writer
from trunkline.model import Actor, Now


class Outbox:
    """Frames in the order they will leave."""

    __slots__ = ("frames", "max_frame_bytes", "new_id", "write")

    def __init__(self, seed: bytes, max_frame_bytes: int) -> None:
        writer = Writer(seed)
        self.new_id = writer.new_id
        self.max_frame_bytes = max_frame_bytes
        # The body of a message; one that may be too large for a frame is judged before it is put in.
        self.write = writer.write
        # Prefixes and bodies.
        self.frames: list[bytes] = []

    def try_put(
        self,
        now: Now,
        type_: str,
        payload: Struct,
        in_reply_to: str | None = None,
        request_id: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        actor: Actor | None = None,
        error: ErrorObject | None = None,
    ) -> bool:
        """Put a message in, unless it does not fit into a frame that the peer takes (OS-016)."""
        body = self.write(now, type_, payload, in_reply_to, request_id, correlation_id, causation_id, actor, error)
        if len(body) > self.max_frame_bytes:
            return False
        self.frames += (prefix(len(body)), body)
        return True

    def put(
        self,
        now: Now,
        type_: str,
        payload: Struct,
        in_reply_to: str | None = None,
        *,
        request_id: str | None = None,
        correlation_id: str | None = None,
        error: ErrorObject | None = None,
    ) -> None:
        """Put in a message that is small by its nature."""
        self.try_put(now, type_, payload, in_reply_to, request_id, correlation_id, None, None, error)

    def take(self) -> bytes:
        """Everything that waits."""
        frames = b"".join(self.frames)
        self.frames.clear()
        return frames
