"""The embedded relay: nostr-sdk's, as a process of its own on loopback. ``python -m trunkline.edges.nostr.relay``.

Owns that process: what the relay takes (kinds, sizes, pace), what it keeps and for how long. In the exchange's own
process it crashed at exit, and its threads would share the exchange's memory with what strangers send. The exchange
holds the other end of standard input, and starts it anew when it dies (``relay_process``).

Its settings come as one JSON object by the command line, the socket of its clients as a descriptor; where the exchange
itself reaches it, or why it cannot run, is one line of JSON on standard output. Clients are let in when a byte comes on
standard input. Invariant: it ends when standard input does, so it never outlives the exchange, however that ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

import msgspec
import nostr_sdk  # type: ignore[import-untyped]

from trunkline.addresses import host_and_port
from trunkline.edges.nostr.front import Front
from trunkline.edges.nostr.relay_settings import Settings

# Events a minute that one connection may send; a buyer's whole traffic is a few, ours has three for each job.
EVENTS_PER_MINUTE: Final = 3000
SUBSCRIPTIONS: Final = 64
CONNECTIONS: Final = 256
# Of them, such that the exchange itself always finds: it goes straight to the relay, past ``front`` and its clients.
RESERVED: Final = 8
FILTER_LIMIT: Final = 500
MAX_FILTER_LIMIT: Final = 5000
MAX_TAGS: Final = 256
# A result repeats its request in a tag (NIP-90).
MAX_TAG_BYTES: Final = 1_572_864
# What is kept: jobs for a week, fewer days if there are very many.
KEPT_S: Final = 604_800
MAX_KEPT: Final = 100_000
# What its author replaces (announcements, which he repeats each hour; profiles): a month, so that whoever makes keys
# cannot fill the disk with one for each.
LASTING_S: Final = 2_592_000
MAX_LASTING: Final = 10_000
LOOK_S: Final = 600.0
# How long clients wait for the exchange to listen, which takes a hundredth of that. One that cannot is no reason to
# keep them out.
LET_IN_S: Final = 5.0


class RelayPolicy(nostr_sdk.WritePolicy):  # type: ignore[misc]
    """Which events are taken."""

    def __init__(self, settings: Settings) -> None:
        self._kinds = frozenset(settings.kinds)
        self._max_content_bytes = settings.max_content_bytes

    async def admit_event(self, event: Any, socket_addr: str) -> Any:  # noqa: ARG002  (the SDK's signature)
        """Accept, or say why not in words; the SDK puts NIP-01's `blocked:` before them."""
        why = self._refusal(event)
        return nostr_sdk.WritePolicyResult.REJECT(why) if why else nostr_sdk.WritePolicyResult.ACCEPT()

    def _refusal(self, event: Any) -> str:
        if event.kind().as_u16() not in self._kinds:
            return "this relay carries jobs only"
        if len(event.content().encode()) > self._max_content_bytes:
            return f"more than {self._max_content_bytes} bytes of content"
        tags = [tag.to_vec() for tag in event.tags()]
        if len(tags) > MAX_TAGS or sum(len(part) for tag in tags for part in tag) > MAX_TAG_BYTES:
            return "too many tags, or too much in them"
        return ""


async def serve(settings: Settings) -> None:
    """Listen, say where, and look after what is kept until the process ends."""
    is_awaited = asyncio.Event()
    threading.Thread(target=_hear, args=(asyncio.get_running_loop(), is_awaited), daemon=True).start()
    nostr_sdk.uniffi_set_event_loop(asyncio.get_running_loop())
    database = await nostr_sdk.NostrLmdb.open(settings.folder)
    policy = RelayPolicy(settings)
    builder = (
        nostr_sdk.LocalRelayBuilder()
        .addr(settings.host if settings.auth else _hidden_address())
        .database(database)
        .write_policy(policy)
        .rate_limit(nostr_sdk.RateLimit(max_reqs=SUBSCRIPTIONS, notes_per_minute=EVENTS_PER_MINUTE))
        .max_connections(CONNECTIONS)
        .default_filter_limit(FILTER_LIMIT)
        .max_filter_limit(MAX_FILTER_LIMIT)
    )
    if settings.auth:
        # Who says who he is names the address to which he says it, which the SDK compares with its own.
        builder = builder.port(settings.port) if settings.port else builder
        mode = nostr_sdk.LocalRelayBuilderNip42Mode.BOTH
        builder = builder.nip42(nostr_sdk.LocalRelayBuilderNip42(mode=mode))
    relay = builder.build()
    await relay.run()
    inner = str(await relay.url()).rstrip("/")
    _report({"inner": inner})
    looking = asyncio.create_task(_look_after(database, settings))
    if not settings.auth:
        await _let_in(inner, settings, is_awaited)
    await looking


async def _look_after(database: Any, settings: Settings) -> None:
    """Remove what is old, now and then."""
    passing = [kind for kind in settings.kinds if kind not in settings.lasting]
    while True:
        await prune(database, passing, int(time.time()), KEPT_S, MAX_KEPT)
        await prune(database, list(settings.lasting), int(time.time()), LASTING_S, MAX_LASTING)
        await asyncio.sleep(LOOK_S)


async def _let_in(inner: str, settings: Settings, is_awaited: asyncio.Event) -> None:
    """Let clients in once the exchange listens: what nobody keeps (requests to a wallet) would be lost before."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LET_IN_S):
            await is_awaited.wait()
    front = Front(host_and_port(inner.partition("//")[2]), settings.allowed_origins, CONNECTIONS - RESERVED)
    await front.start(socket.socket(fileno=settings.listener))


def _hidden_address() -> str:
    """An address of this machine that nobody knows."""
    return f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(254) + 1}.{secrets.randbelow(254) + 1}"


async def prune(database: Any, kinds: list[int], now: int, kept_s: int, most: int) -> None:
    """Remove what is old; the older half again and again while there is too much."""
    if not kinds:
        return
    everything = nostr_sdk.Filter().kinds([nostr_sdk.Kind(kind) for kind in kinds])
    age_s = kept_s
    while True:
        await database.delete_events(everything.until(nostr_sdk.Timestamp.from_secs(max(0, now - age_s))))
        if age_s < 60 or await database.count(everything.remove_until()) <= most:
            return
        age_s //= 2


def _report(told: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _hear(loop: asyncio.AbstractEventLoop, is_awaited: asyncio.Event) -> None:
    """Any byte of the exchange says that it listens by now; with the last one this process ends."""
    while os.read(0, 4096):
        loop.call_soon_threadsafe(is_awaited.set)
    # Not sys.exit: threads of the SDK would be torn down under its feet.
    os._exit(0)


def main() -> None:
    """Run until standard input ends."""
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    try:
        asyncio.run(serve(settings))
    except nostr_sdk.NostrSdkError as error:
        _report({"failed": str(error)[:200]})
    os._exit(1)


if __name__ == "__main__":
    main()
