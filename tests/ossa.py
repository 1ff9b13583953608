"""OSSA agents for tests, and an exchange in memory that they speak with.

``Keyed`` has the keys of one agent and writes messages as plain JSON, so that a test can write wrong ones too; it signs
and seals as ``docs/protocols/ossa.md`` says, with none of the edge's own code. ``World`` is an exchange with the edge's
real application, in fake time and without sockets: ``post`` is a request to ``/ossa/v1/messages``, ``connect`` a
WebSocket. Every message that the exchange says is checked against its published key before a test sees it.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from joserfc import jwe
from joserfc.jwk import OKPKey

from tests.fuzz.asgi import Request, Scene, Socket
from tests.ossa_messages import identity, new_identity
from tests.ossa_messages import message as plain_message
from trunkline.config import Config, Ossa
from trunkline.edges.ossa.edge import OssaEdge
from trunkline.edges.topics.edge import TOPICS
from trunkline.model import Now, Policy
from trunkline.testing.memory import ALLOW_ALL, MemoryExchange
from trunkline.testing.tasks import TaskLoop

JSON = dict[str, Any]
EXCHANGE: Final = "trunkline"
ALGORITHMS: Final = ["ECDH-ES+A256KW", "dir", "A256GCM"]


def encoded(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """What was written as base64url."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def canonical(message: JSON) -> bytes:
    """What is signed of a message."""
    return rfc8785.dumps({name: value for name, value in message.items() if name != "signature"})


def thumbprint(jwk: JSON) -> str:
    """The name of a key."""
    return encoded(hashlib.sha256(rfc8785.dumps({name: jwk[name] for name in ("crv", "kty", "x")})).digest())


def signed_by(key: Ed25519PrivateKey, message: JSON, header: JSON) -> JSON:
    """The message with a detached JWS."""
    head = encoded(json.dumps(header).encode())
    signature = key.sign(f"{head}.{encoded(canonical(message))}".encode())
    return {**message, "signature": f"{head}..{encoded(signature)}"}


def check_signature(message: JSON, keys: Sequence[JSON]) -> None:
    """``InvalidSignature`` unless one of these public keys signed it."""
    head, payload, signature = message["signature"].split(".")
    assert not payload, "not detached"
    header = json.loads(decoded(head))
    assert (header["alg"], header["typ"]) == ("EdDSA", "ossa+jws")
    (key,) = [one for one in keys if one["kid"] == header["kid"]]
    public = Ed25519PublicKey.from_public_bytes(decoded(key["x"]))
    public.verify(decoded(signature), f"{head}.{encoded(canonical(message))}".encode())


def sealed_for(payload: Any, message_id: str, *jwks: JSON, **protected: Any) -> JSON:
    """An encrypted payload."""
    registry = jwe.JWERegistry(algorithms=ALGORITHMS, strict_check_header=False)
    keys = [OKPKey.import_key({name: jwk[name] for name in ("kty", "crv", "x")}) for jwk in jwks]
    data = json.dumps(payload).encode()
    if len(keys) == 1:
        head = {"alg": "ECDH-ES+A256KW", "enc": "A256GCM", "kid": jwks[0]["kid"], "messageId": message_id, **protected}
        return {"$encrypted": jwe.encrypt_compact(head, data, keys[0], registry=registry)}
    general = jwe.GeneralJSONEncryption({"enc": "A256GCM", "messageId": message_id}, data)
    for jwk, key in zip(jwks, keys, strict=True):
        general.add_recipient({"alg": "ECDH-ES+A256KW", "kid": jwk["kid"]}, key)
    return {"$encrypted": jwe.encrypt_json(general, None, registry=registry)}


class Keyed:
    """One agent with the keys that ``token new ossa`` printed for it."""

    def __init__(self, shown: JSON, agent_type: str, now_ms: Callable[[], int]) -> None:
        self.agent_id: str = shown["agent"]
        self.type = agent_type
        self.jwk: JSON = shown["jwk"]
        self.enc_jwk: JSON = shown["enc_jwk"]
        self.key = Ed25519PrivateKey.from_private_bytes(decoded(self.jwk["d"]))
        self._now_ms = now_ms

    @property
    def identity(self) -> JSON:
        """What it says of itself."""
        return identity(self.agent_id, self.type)

    def stamp(self, after_s: float = 0.0) -> str:
        """A time, so long after now."""
        at = dt.datetime.fromtimestamp(self._now_ms() / 1000 + after_s, dt.UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def message(
        self, kind: str, to: str | list[str], action: str = "do", payload: Any = None, error: Any = None, **header: Any
    ) -> JSON:
        """A message without a signature; ``header`` are more of its fields, in the wire's spelling."""
        given = {"message_id": str(uuid.uuid4()), "timestamp": self.stamp(), **header}
        body = {} if error is None else {"error": error}
        return plain_message(self.identity, kind, to, action, {} if payload is None else payload, body=body, **given)

    def signed(self, message: JSON, **header: Any) -> JSON:
        """The message with a detached JWS; ``header`` changes what stands in its protected header."""
        return signed_by(self.key, message, {"alg": "EdDSA", "kid": self.jwk["kid"], "typ": "ossa+jws", **header})

    def opened(self, message: JSON) -> Any:
        """The payload of an encrypted message."""
        registry = jwe.JWERegistry(algorithms=ALGORITHMS, strict_check_header=False)
        found = jwe.decrypt_compact(
            message["body"]["payload"]["$encrypted"], OKPKey.import_key(self.enc_jwk), registry=registry
        )
        assert found.headers()["enc"] == "A256GCM"
        assert found.headers()["messageId"] == message["header"]["messageId"]
        assert found.plaintext is not None
        return json.loads(found.plaintext)

    # -- answers -------------------------------------------------------------------------------------------------------

    def reply(self, to: JSON, kind: str = "response", payload: Any = None, **header: Any) -> JSON:
        """An answer to what it was sent."""
        correlation = to["header"].get("correlationId", to["header"]["messageId"])
        action = "error" if kind == "error" else to["body"]["action"]
        return self.message(
            kind, to["header"]["sender"]["agentId"], action, payload, correlationId=correlation, **header
        )

    def failure(self, to: JSON, code: int, text: str = "it broke") -> JSON:
        """An error in answer to what it was sent."""
        return self.reply(to, "error", error={"code": code, "message": text, "timestamp": self.stamp()})

    def ack(self, to: JSON, kind: str = "acknowledgment", **header: Any) -> JSON:
        """That it has what it was sent."""
        return self.message(kind, EXCHANGE, kind, {"messageId": to["header"]["messageId"]}, **header)


class Posted:
    """A request to ``/ossa/v1/messages``: its status and its replies, once there are any."""

    def __init__(self, world: World, request: Request) -> None:
        self._world = world
        self.request = request

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer by now."""
        return self.request.complete

    @property
    def status(self) -> int:
        """The status of the answer."""
        assert self.request.complete, "no answer yet"
        return self.request.status

    @property
    def replies(self) -> list[JSON]:
        """All messages of the answer."""
        assert self.request.complete, "no answer yet"
        if not self.request.content:
            return []
        found = json.loads(self.request.content)
        replies: list[JSON] = found if isinstance(found, list) else [found]
        for reply in replies:
            self._world.check(reply)
        return replies

    @property
    def reply(self) -> JSON:
        """The only message of the answer."""
        (reply,) = self.replies
        return reply

    @property
    def type(self) -> str:
        """The type of the only message."""
        return str(self.reply["header"]["type"])

    @property
    def payload(self) -> Any:
        """The payload of the only message."""
        assert "error" not in self.reply["body"], self.reply["body"]
        return self.reply["body"]["payload"]

    @property
    def error(self) -> JSON:
        """The error in the only message."""
        found: JSON = self.reply["body"]["error"]
        assert self.status == found["code"], "the status is not the code"
        return found


class Connection:
    """A WebSocket of an agent. ``heard`` is all that the exchange said; ``answers`` does something at once."""

    def __init__(self, world: World, agent: Keyed, socket: Socket) -> None:
        self._world = world
        self._socket = socket
        self.agent = agent

    @property
    def heard(self) -> list[JSON]:
        """What the exchange said here, in order."""
        heard = [json.loads(text) for text in self._socket.said]
        for message in heard:
            self._world.check(message)
        return heard

    def of(self, kind: str) -> list[JSON]:
        """What it said of one type."""
        return [message for message in self.heard if message["header"]["type"] == kind]

    def payloads(self, kind: str) -> list[Any]:
        """The payloads of one type."""
        return [message["body"]["payload"] for message in self.of(kind)]

    def say(self, *messages: JSON) -> Self:
        """Send messages, signed if they are not."""
        for message in messages:
            self._socket.say(json.dumps(message if "signature" in message else self.agent.signed(message)))
        self._world.settle()
        return self

    def say_text(self, text: str) -> None:
        """Send a frame as it is."""
        self._socket.say(text)
        self._world.settle()

    def respond(self, payload: Any = None, at: int = -1) -> None:
        """Answer a request that it was sent, the last one unless ``at`` says which."""
        self.say(self.agent.reply(self.of("request")[at], payload=payload))

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._socket.closed

    def leave(self) -> None:
        """Close it."""
        self._socket.leave()
        self._world.settle()


class World:
    """An exchange with OSSA and topics, in a ``with``; time stands still until ``advance``."""

    def __init__(self, home: Path, policy: Policy = ALLOW_ALL, **ossa: Any) -> None:
        self._home = home
        (home / "keys").mkdir(mode=0o700, exist_ok=True)
        self.scene = Scene((TOPICS,), policy=policy, config=Config(ossa=Ossa(**ossa)))

    def _begin(self) -> None:
        self.edge = OssaEdge(self.exchange.surroundings(self._home))
        self.peers = self.edge.peers
        self.app = self.edge._server.app
        self.scene.spawn(self.exchange.edges.start())
        self.settle()
        self.peers.take_up()

    @property
    def exchange(self) -> MemoryExchange:
        """The exchange in memory."""
        return self.scene.exchange

    def __enter__(self) -> Self:
        self.scene.__enter__()
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.scene.judge()
        finally:
            self.scene.__exit__(kind, error, trace)

    # -- time ----------------------------------------------------------------------------------------------------------

    def now(self) -> Now:
        """Both clocks."""
        return self.exchange.now()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.exchange.advance(seconds)

    def settle(self) -> None:
        """Let everything happen that needs no time."""
        self.exchange.advance(0)

    def restart(self) -> None:
        """The next process on the same record and keys, after this one was killed: nobody is connected."""
        scene = self.scene
        scene.exchange = scene.exchange.restarted()
        scene.loop.kill()
        scene.loop = TaskLoop(scene.exchange.loop, scene.raised.append)
        asyncio._set_running_loop(scene.loop.as_asyncio)
        self._begin()

    # -- people --------------------------------------------------------------------------------------------------------

    def agent(self, agent_id: str, agent_type: str = "worker", url: str = "", pin: str = "") -> Keyed:
        """An agent with a new pair of keys, as ``token new ossa`` makes it."""
        shown = new_identity(self.exchange, agent_id, agent_type, url, pin)
        return Keyed(shown, agent_type, lambda: self.now().ms)

    # -- messages ------------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> list[JSON]:
        """The exchange's public keys, as it shows them."""
        found: list[JSON] = msgspec.json.decode(self.peers.own.jwks)["keys"]
        return found

    @property
    def enc_key(self) -> JSON:
        """What a payload for the exchange is sealed with."""
        (key,) = [key for key in self.keys if key["use"] == "enc"]
        return key

    def check(self, message: JSON) -> None:
        """It is signed by the exchange."""
        check_signature(message, self.keys)

    def post(self, agent: Keyed, message: JSON) -> Posted:
        """Send a message, signed if it is not."""
        return self.post_bytes(json.dumps(message if "signature" in message else agent.signed(message)).encode())

    def post_bytes(self, data: bytes) -> Posted:
        """Send these bytes."""
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        return Posted(self, self.scene.ask(self.app, Request("POST", "/ossa/v1/messages", data, headers)))

    def ask(self, agent: Keyed, to: str | list[str], action: str = "do", payload: Any = None, **header: Any) -> Posted:
        """Send a request."""
        return self.post(agent, agent.message("request", to, action, payload, **header))

    def connect(self, agent: Keyed, *actions: str, **terms: Any) -> Connection:
        """A WebSocket of this agent, on which it offers these actions."""
        socket = self.scene.connect(self.app, Socket("/ossa/v1/ws"))
        connection = Connection(self, agent, socket)
        if not actions:
            return connection.say(agent.message("heartbeat", EXCHANGE, "heartbeat"))
        offered = [{"name": name, "description": name, "side_effects": False, **terms} for name in actions]
        connection.say(agent.message("request", EXCHANGE, "register", {"actions": offered}))
        (reply,) = connection.of("response")
        assert reply["body"]["payload"]["registered"] == list(actions), reply
        return connection
