"""The path of a call without its sockets: two sessions, the hub and the ledger, in this process.

Joins the same parts as ``trunkline.host.runner``, in the same order and with the same number of frames in a turn, but
with a lap timer between them. What it does not have is what it is compared with: transports, the loop, the writer's
process.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from bench import wire
from bench.loads import Identity, Load, Texts
from trunkline import events
from trunkline.edges.opensentience.session import CoreSession
from trunkline.edges.opensentience.settings import Settings
from trunkline.effects import Effect, ToSession
from trunkline.entries import Entry
from trunkline.host.runner import FLUSH_EVERY
from trunkline.hub.hub import Hub
from trunkline.ledger.ledger import Ledger
from trunkline.model import OPERATOR, Decision, HubSettings, Now, Peer, Policy, Principal, Rule

# 64 calls: what a load of 64 in flight leaves for one commit. More often, and the disk's work would cool the caches.
TURNS_A_COMMIT: Final = 8

_CALLER: Final = 1
_PROVIDER: Final = 2
_AGENTS: Final = {_CALLER: "bench.caller", _PROVIDER: "bench.provider"}
_TOOL: Final = b"bench.provider/echo"


class PurePath:
    """One exchange without the world."""

    def __init__(self, folder: Path, *, side_effects: bool) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.ledger = Ledger.open(
            folder / "ledger.sqlite",
            folder / "keys",
            loop=None,
            on_durable=self._stored,
            on_failure=_fail,
        )
        rule = Rule("bench", "*", "*", Decision.ALLOW)
        self.hub = Hub(
            mac_key=self.ledger.mac_key,
            call_prefix="00000000-0000-8000-a000-",
            new_id=lambda: "00000000-0000-8000-a000-000000000000",
            operator_sha256="",
            launch_edge="opensentience",
            operator_edge="http",
            settings=HubSettings(Policy((rule,), "bench")),
        )
        # CPU nanoseconds by piece.
        self.laps: dict[str, int] = defaultdict(int)
        # The entries of the last turn.
        self.written: list[Entry] = []
        self._last = 0
        self._calls = self._turns = 0
        self._texts = Texts()
        self._sessions: dict[int, CoreSession] = {}
        self._begin(side_effects)

    def _begin(self, side_effects: bool) -> None:
        now = _now()
        self._feed([events.ExchangeStarted("bench", "bench")], now)
        for number, agent in _AGENTS.items():
            secret = hashlib.sha256(agent.encode()).hexdigest()
            self._feed([events.TokenIssued(0, "", Principal(OPERATOR), "opensentience", agent, secret)], now)
            session = CoreSession(number, Settings("bench", "bench"), Peer("bench"), seed=os.urandom(16), now=now)
            self._sessions[number] = session
            self._feed(session.receive(wire.hello(Identity(agent, agent)), now), now)
        provider = self._sessions[_PROVIDER]
        self._feed(provider.receive(wire.register(_AGENTS[_PROVIDER], "echo", side_effects=side_effects), now), now)
        for session in self._sessions.values():
            session.take_output()
        self.ledger.flush()

    def _stored(self, number: int) -> None:
        self.hub.stored(number)

    def use(self, load: Load) -> None:
        """Take bodies of this load."""
        self._texts.use(load)

    def turn(self) -> None:
        """As many calls as go together, there and back."""
        self.written = []
        now = _now()
        calls = []
        for _ in range(FLUSH_EVERY):
            self._calls += 1
            calls.append(wire.frame(wire.call(self._calls, _TOOL, self._texts.body())))
        delivered = self._through(_CALLER, b"".join(calls), _PROVIDER, now)
        results = []
        for number, message in enumerate(_messages(delivered)):
            results.append(wire.frame(wire.result(number, message, wire.tool_call(message.payload))))
        answered = self._through(_PROVIDER, b"".join(results), _CALLER, now)
        assert [message.type for message in _messages(answered)] == ["core.tool.result"] * FLUSH_EVERY
        self._turns += 1
        if self._turns % TURNS_A_COMMIT == 0:
            self.ledger.flush()

    def _through(self, sender: int, data: bytes, receiver: int, now: Now) -> bytes:
        """What the receiver is sent because the sender sent this; each piece timed."""
        self._last = time.process_time_ns()
        happened = self._sessions[sender].receive(data, now)
        self._lap("decode")
        effects = [effect for event in happened for effect in self.hub.handle(event, now)]
        self._lap("hub")
        for effect in effects:
            if isinstance(effect, Entry):
                self.ledger.append(effect)
        self._lap("ledger")
        for effect in effects:
            self._send(effect, now)
        out = self._sessions[receiver].take_output()
        self._lap("encode")
        self.written += [effect for effect in effects if isinstance(effect, Entry)]
        return out

    def _lap(self, piece: str) -> None:
        now = time.process_time_ns()
        self.laps[piece] += now - self._last
        self._last = now

    def _feed(self, happened: list[events.Event], now: Now) -> None:
        for event in happened:
            for effect in self.hub.handle(event, now):
                if isinstance(effect, Entry):
                    self.ledger.append(effect)
                self._send(effect, now)

    def _send(self, effect: Effect, now: Now) -> None:
        if isinstance(effect, ToSession) and effect.session in self._sessions:
            self._sessions[effect.session].send(effect, now)

    def close(self) -> None:
        """Everything on the disk."""
        self.ledger.close()


def _now() -> Now:
    return Now(time.monotonic(), time.time())


def _messages(data: bytes) -> list[wire.Envelope]:
    found = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        found.append(wire.envelope(data[4:end]))
        data = data[end:]
    return found


def _fail(error: Exception) -> None:
    raise error
