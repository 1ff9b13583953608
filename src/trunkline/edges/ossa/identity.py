"""Whose message this is: its signature, its time, and what of it is encrypted for us.

Owns the order of the checks: size, JSON, shape, version (``messages``), signature and whose key it is, time, secrecy.
Does not own what the message leads to (``peers``), nor which keys there are (the exchange).

Invariant: what is read here was signed by a key of its sender, unless the configuration does without signatures.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import re
from typing import Final

import msgspec
from msgspec import Struct

from trunkline.config import Ossa
from trunkline.edges.exchange import Feed, Views
from trunkline.edges.ossa import reading, sealing, signing
from trunkline.edges.ossa.keys import READ_KEYS, AgentKeys, OwnKeys, agent_keys
from trunkline.edges.ossa.messages import (
    BAD_REQUEST,
    ERROR,
    HEARTBEAT,
    MAX_MESSAGE_BYTES,
    UNAUTHORIZED,
    Message,
    Refused,
)
from trunkline.edges.ossa.translate import EDGE, US
from trunkline.model import (
    Principal,
    reserved_prefix,
)

# Silent point 16.
MAX_AHEAD_MS: Final = 300_000
MAX_AGE_MS: Final = 86_400_000
# A signature over more than this is checked beside the loop.
HEAVY_BYTES: Final = 16_384
# Numbers with a fraction or an exponent are looked at one by one, and once more for the key of a call: a megabyte of
# them takes as long as so many megabytes of others.
FLOATS_WEIGH: Final = 8
# What may be the beginning of a message's signature, and how many of these are looked at: a payload may have some, too.
MAX_NAMED: Final = 16
_SIGNATURE: Final = re.compile(rb'"signature"\s*:\s*"([A-Za-z0-9_-]{1,1024})\.\.')
NOT_YOURS: Final = "the signature's key is not a key of this sender"


class Known(Struct, frozen=True):
    """A message whose sender is who he says."""

    message: Message
    principal: Principal
    token_sha256: str
    keys: AgentKeys
    is_sealed: bool = False
    # What it counts as of what is checked for its sender, in bytes.
    weight: int = 0


class Identities:
    """Reads messages. ``own`` opens what is encrypted for us."""

    def __init__(self, feed: Feed, views: Views, config: Ossa, own: OwnKeys) -> None:
        self._feed = feed
        self._views = views
        self._config = config
        self._own = own

    async def read(self, data: bytes) -> Known:
        """A message whose sender proved who he is; ``Refused`` if it is not one."""
        if HEAVY_BYTES < len(data) <= MAX_MESSAGE_BYTES and self._config.require_signature:
            self._check_first(data)
        message = reading.read(data, any_uuid=self._config.any_uuid)
        try:
            if message.signature is None:
                return self._unsigned(message)
            claim = signing.read_claim(message.signature)
            keys = self._claimed(message, claim.kid)
            if keys is None:
                await self._refuse_unknown(message, claim, data)
                raise Refused(UNAUTHORIZED, NOT_YOURS)
            checked = await self._check(data, claim, keys)
            if checked.rounded is not None:
                message = reading.read(checked.rounded, any_uuid=self._config.any_uuid)
            return self._known(message, keys, len(data) * FLOATS_WEIGH if checked.has_floats else len(data))
        except Refused as refused:
            refused.to, refused.correlation = message.sender, message.correlation
            refused.is_of_error = message.type == ERROR
            raise

    def _check_first(self, data: bytes) -> None:
        """To read a megabyte takes a tenth of a second: whoever names no key that was ever made here waits for none."""
        if not data.lstrip().startswith(b"{"):
            raise Refused(BAD_REQUEST, "not a JSON object")
        for found in itertools.islice(_SIGNATURE.finditer(data), MAX_NAMED):
            with contextlib.suppress(Refused):
                digest = _digest(signing.named_key(found[1].decode()))
                if self._views.credential(EDGE, digest) is not None or self._views.revoked(EDGE, digest) is not None:
                    return
        raise Refused(UNAUTHORIZED, NOT_YOURS)

    async def _check(self, data: bytes, claim: signing.Claim, keys: AgentKeys) -> signing.Checked:
        if len(data) > HEAVY_BYTES:
            # The canonical form of a megabyte of numbers takes a tenth of a second: others have their turns.
            return await asyncio.to_thread(signing.check, data, claim, keys.checks)
        return signing.check(data, claim, keys.checks)

    def _claimed(self, message: Message, kid: str) -> AgentKeys | None:
        """The keys of the credential that a signature names, if it is this sender's."""
        view = self._views.credential(EDGE, _digest(kid))
        agent_id = message.sender.agent_id
        if view is None or view.public is None or view.agent != agent_id:
            return None
        return agent_keys(view.public)

    async def _refuse_unknown(self, message: Message, claim: signing.Claim, data: bytes) -> None:
        """Tell whoever has a key of this sender that was revoked that it was; strangers hear the same in every case."""
        view = self._views.revoked(EDGE, _digest(claim.kid))
        agent_id = message.sender.agent_id
        if view is None or view.public is None or view.agent != agent_id:
            return
        try:
            await self._check(data, claim, agent_keys(view.public))
        except Refused:
            raise Refused(UNAUTHORIZED, NOT_YOURS) from None
        raise Refused(UNAUTHORIZED, f"the key {claim.kid} was revoked; {self._instead(agent_id)}")

    def _instead(self, agent_id: str) -> str:
        known = (view.public for view in self._views.credentials(EDGE, agent_id))
        kids = [agent_keys(public).kid for public in known if public is not None]
        if kids:
            return f"sign with {kids[0]}"
        return f"`trunkline token new ossa --agent {agent_id}` makes another"

    def _unsigned(self, message: Message) -> Known:
        """Where signatures are not required, an agent is whom it says, if a key was made for one of that id."""
        if self._config.require_signature:
            raise Refused(UNAUTHORIZED, "the message is not signed")
        for view in self._views.credentials(EDGE, message.sender.agent_id):
            if view.public is not None:
                return self._known(message, agent_keys(view.public))
        raise Refused(UNAUTHORIZED, "no agent of this id has a key here")

    def _known(self, message: Message, keys: AgentKeys, weight: int = 0) -> Known:
        digest = _digest(keys.kid)
        principal = self._feed.identify(EDGE, digest)
        # A record may hold a key for an id that became one of the exchange's own later.
        if principal is None or reserved_prefix(message.sender.agent_id):
            raise Refused(UNAUTHORIZED, NOT_YOURS)
        try:
            self._check_time(message)
            return self._opened(Known(message, principal, digest, keys, weight=weight))
        except Refused as refused:
            refused.proven = principal.identity
            raise

    def _check_time(self, message: Message) -> None:
        age_ms = self._feed.now().ms - message.sent_ms
        if not -MAX_AHEAD_MS <= age_ms <= MAX_AGE_MS:
            raise Refused(UNAUTHORIZED, "timestamp: too old, or in the future; whether it is a replay cannot be told")

    def _opened(self, known: Known) -> Known:
        message = known.message
        if sealing.is_sealed(message.payload):
            payload = sealing.open_sealed(message, self._own.opens)
            opened = msgspec.structs.replace(message, payload=payload, sensitive=True)
            return msgspec.structs.replace(known, message=opened, is_sealed=True)
        if message.sensitive:  # silent point 6
            raise Refused(BAD_REQUEST, "sensitive: the payload has to be encrypted")
        return known

    def of_agent(self, agent_id: str) -> Known | None:
        """The agent of this id, if it still has a key; without a message of its."""
        for view in self._views.credentials(EDGE, agent_id):
            if view.public is not None:
                keys = agent_keys(view.public)
                digest = _digest(keys.kid)
                principal = self._feed.identify(EDGE, digest)
                if principal is not None:
                    return Known(_NOTHING, principal, digest, keys)
        return None


@functools.lru_cache(maxsize=READ_KEYS)
def _digest(kid: str) -> str:
    return hashlib.sha256(kid.encode()).hexdigest()


_NOTHING: Final = Message("", HEARTBEAT, US, (US,), "", "")
