"""Who is on the presence channels: members by their ids, each with what it says of itself.

Owns the members. A member may be there over several connections and is one; it came with the first and goes with the
last. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

# Pusher's own bounds.
MAX_MEMBERS: Final = 100
MAX_USER_ID_CHARS: Final = 128
MAX_USER_INFO_BYTES: Final = 1024


class Member(Struct, frozen=True):
    """Somebody on a presence channel."""

    user_id: str
    user_info: Any = None


class Members:
    """Those of one channel."""

    def __init__(self) -> None:
        self._known: dict[str, Member] = {}
        # By connection, which member it is.
        self._by_socket: dict[str, str] = {}

    def try_join(self, socket_id: str, member: Member) -> bool | None:
        """Whether this is a new member; None if there is no room for one."""
        is_new = member.user_id not in self._known
        if is_new:
            if len(self._known) >= MAX_MEMBERS:
                return None
            self._known[member.user_id] = member
        self._by_socket[socket_id] = member.user_id
        return is_new

    def leave(self, socket_id: str) -> str:
        """The member who is gone with this connection; empty if none is."""
        user_id = self._by_socket.pop(socket_id, "")
        if not user_id or user_id in self._by_socket.values():
            return ""
        del self._known[user_id]
        return user_id

    def roster(self) -> dict[str, object]:
        """What a new subscriber is told."""
        hashed = {user_id: member.user_info for user_id, member in self._known.items()}
        return {"presence": {"count": len(hashed), "ids": list(hashed), "hash": hashed}}
