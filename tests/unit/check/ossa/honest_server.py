"""An OSSA endpoint in memory that does everything the suite asks for, with a switch for each defect that it must find.

It exists for these tests alone and shares nothing with the suite or with the edge of this project: what both sides get
wrong in the same way would pass. ``DEFECTS`` names the switches; a server without any is honest.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import json
import re
import ssl
import tempfile
import time
import uuid
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import rfc8785
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from joserfc import jwe
from joserfc.jwk import OKPKey
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

Json = dict[str, Any]

SELF = {"agentId": "trunkline", "agentType": "orchestrator"}
UNKNOWN = {"agentId": "unknown", "agentType": "unknown"}
TYPES = (
    "request", "response", "event", "command", "command_result", "stream_start", "stream_data", "stream_end",
    "heartbeat", "error", "acknowledgment", "negative_acknowledgment",
)  # fmt: skip
CODES = (400, 401, 403, 404, 408, 429, 500, 501, 503, 507)
LIMIT = 1_048_576
CIPHERS = jwe.JWERegistry(algorithms=["ECDH-ES+A256KW", "A256GCM", "A128GCM"], strict_check_header=False)
DENIED = ("vault", "open")
DEFECTS = frozenset(
    {
        "acknowledges_acks",
        "acknowledges_no_commands",
        "acknowledges_no_events",
        "answers_errors",
        "answers_heartbeats",
        "bears_everything",
        "closes_at_once",
        "compares_prefixes",
        "compares_times_as_texts",
        "counts_everything",
        "dedupes_across_senders",
        "dedupes_by_transport",
        "dedupes_late",
        "denies_calls",
        "denies_with_500",
        "does_not_swap",
        "drops_broken_json",
        "drops_silently",
        "drops_unknown_fields",
        "echoes_input",
        "errors_without_thread",
        "fails_at_missing_parts",
        "fails_at_odd_signature",
        "forgets_durable",
        "forgets_instance",
        "forgets_missing_thread",
        "forgives_nothing",
        "forwards_plain",
        "guesses_key",
        "guesses_sender",
        "has_an_old_clock",
        "has_no_command_result",
        "has_no_limit",
        "hides_caller",
        "ignores_acks",
        "ignores_age",
        "ignores_agent_type",
        "ignores_error_info",
        "ignores_expiry",
        "ignores_formats",
        "ignores_gaps",
        "ignores_key_owner",
        "ignores_optional_fields",
        "ignores_other_content",
        "ignores_signatures",
        "ignores_stream_fields",
        "ignores_unsubscribe",
        "keeps_action_in_errors",
        "keeps_no_order",
        "keeps_oldest_socket",
        "knows_no_zero",
        "knows_one_name",
        "limits_too_early",
        "long_actions",
        "loses_a_piece",
        "loses_thread",
        "makes_ids_v1",
        "makes_new_replies",
        "names_nothing",
        "needs_no_recipient",
        "never_dedupes",
        "never_redelivers",
        "never_retries",
        "never_times_out",
        "one_limit_for_all",
        "orders_everything",
        "overlooks_error_in_response",
        "publishes_repeats",
        "redelivers_everything",
        "redelivers_with_new_id",
        "registers_for_others",
        "replies_plain",
        "retries_500",
        "retries_at_once",
        "retries_with_new_id",
        "rounds_numbers",
        "says_404_for_away",
        "says_500_for_unknown",
        "says_503_for_unknown",
        "says_codes_as_text",
        "says_no_versions",
        "says_no_wait",
        "seals_unbound",
        "serves_first_recipient",
        "serves_plain_too",
        "shows_no_progress",
        "shows_no_sealing_key",
        "shows_private_key",
        "signs_known_parts",
        "signs_no_errors",
        "signs_nothing",
        "signs_what_was_written",
        "star_is_everything",
        "streams_on_after_end",
        "takes_alg_none",
        "takes_any_answer",
        "takes_any_cipher",
        "takes_any_depth",
        "takes_any_priority",
        "takes_any_size",
        "takes_any_topic",
        "takes_any_type",
        "takes_any_uuid",
        "takes_any_version",
        "takes_any_version_form",
        "takes_attached",
        "takes_broken_ciphertext",
        "takes_duplicate_keys",
        "takes_empty_signature",
        "takes_higher_level",
        "takes_hmac",
        "takes_large_integers",
        "takes_little_depth",
        "takes_lone_surrogates",
        "takes_moved_ciphertext",
        "takes_nan",
        "takes_sensitive_plain",
        "takes_tls_1_2",
        "takes_too_little",
        "takes_unsigned",
        "tells_one_subscriber",
        "times_out_early",
        "trusts_claimed_type",
        "unwraps_lists_of_one",
        "wants_exact_version",
        "wants_objects",
    }
)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(stamp: str) -> float:
    return dt.datetime.fromisoformat(stamp).timestamp()


class Refusal(Exception):
    def __init__(self, code: int, text: str, **details: object) -> None:
        super().__init__(text)
        self.code, self.text, self.details = code, text, details


@dataclass
class Agent:
    named: Json
    kid: str
    key: Any
    sealing: OKPKey
    socket: Socket | None = None
    actions: set[str] = field(default_factory=set)
    requests: deque[float] = field(default_factory=deque)


@dataclass
class Pending:
    agent_id: str
    caller: Json
    thread: str
    answer: asyncio.Future[Json]


@dataclass
class Subscription:
    agent_id: str
    pattern: str
    qos: int
    is_durable: bool


@dataclass
class Stream:
    expected: int = 0
    is_ended: bool = False


class Socket:
    """One WebSocket."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.protocol = ServerProtocol(max_size=LIMIT + 1024)
        self._writer = writer
        self.bad_in_a_row = 0
        self.is_open = True

    def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                self._writer.write(data)
            elif self.is_open:
                self.is_open = False
                self._writer.close()

    def send(self, message: Json) -> None:
        if self.is_open:
            self.protocol.send_text(json.dumps(message).encode())
            self.flush()


class HonestServer:
    def __init__(self, *broken: str, timeout_s: float = 2.0, has_socket: bool = True) -> None:
        self.has_socket = has_socket
        assert set(broken) <= set(DEFECTS), broken
        self.broken = frozenset(broken)
        self.timeout_s = timeout_s
        self.key = Ed25519PrivateKey.generate()
        self.sealing = OKPKey.generate_key("X25519", {"use": "enc"}, auto_kid=True)
        self.agents: dict[str, Agent] = {}
        self.seen: dict[object, tuple[bytes, asyncio.Future[Any]]] = {}
        self.pending: dict[str, Pending] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.unacknowledged: dict[tuple[str, str], Json] = {}
        self.streams: dict[tuple[str, str], Stream] = {}
        self.order: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.all_requests: deque[float] = deque()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.url = ""

    def has(self, defect: str) -> bool:
        assert defect in DEFECTS, defect
        return defect in self.broken

    def identity(self, name: str, kind: str = "worker") -> Json:
        """What `trunkline token new ossa --json` would print."""
        key = Ed25519PrivateKey.generate()
        sealing = OKPKey.generate_key("X25519", {"use": "enc"}, auto_kid=True)
        kid = f"key-of-{name}"
        public = b64(key.public_key().public_bytes_raw())
        self.agents[name] = Agent({"agentId": name, "agentType": kind}, kid, key.public_key(), sealing)
        jwk = {"kty": "OKP", "crv": "Ed25519", "x": public, "d": b64(key.private_bytes_raw()), "kid": kid}
        enc_jwk = sealing.as_dict(private=True)
        return {"id": f"tok_{name}", "edge": "ossa", "agent": name, "type": kind, "jwk": jwk, "enc_jwk": enc_jwk}

    # --- the network --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        context = _certificate()
        context.minimum_version = ssl.TLSVersion.TLSv1_2 if self.has("takes_tls_1_2") else ssl.TLSVersion.TLSv1_3
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=context)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"https://127.0.0.1:{self._port}"
        if self.has("serves_plain_too"):
            self._front = await asyncio.start_server(self._plain_or_not, "127.0.0.1", 0)
            self.url = f"https://127.0.0.1:{self._front.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        if self.has("serves_plain_too"):
            self._front.close()
        for task in [*self.tasks]:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._request(reader, writer):
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
        self.tasks.discard(asyncio.current_task())

    async def _plain_or_not(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand a TLS handshake on to the real server, and answer anything else without TLS."""
        self.tasks.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.CancelledError):
            first = await reader.read(1 << 16)
            if first[:1] == b"\x16":
                back, forth = await asyncio.open_connection("127.0.0.1", self._port)
                forth.write(first)
                await asyncio.gather(_pipe(reader, forth), _pipe(back, writer))
            else:
                _respond(writer, 200, self._jwks())
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
        if path == "/ossa/v1/ws" and self.has_socket:
            await self._socket(head, reader, writer)
            return False
        if path == "/ossa/v1/keys":
            _respond(writer, 200, self._jwks())
            return True
        size = re.search(rb"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(size[1])) if size else b""
        if path != "/ossa/v1/messages" or method != "POST":
            _respond(writer, 404, None)
            return True
        reply = await self.take(body, None)
        _respond(writer, _status(reply), reply)
        return True

    def _jwks(self) -> Json:
        public = self.key.public_key().public_bytes_raw()
        key = {"kty": "OKP", "crv": "Ed25519", "x": b64(public), "kid": "server", "use": "sig"}
        if self.has("shows_private_key"):
            key["d"] = b64(self.key.private_bytes_raw())
        sealing = [] if self.has("shows_no_sealing_key") else [self.sealing.as_dict(private=False)]
        return {"keys": [key, *sealing]}

    async def _socket(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socket = Socket(writer)
        socket.protocol.receive_data(head)
        (request,) = socket.protocol.events_received()
        socket.protocol.send_response(socket.protocol.accept(request))
        socket.flush()
        try:
            while data := await reader.read(1 << 16):
                socket.protocol.receive_data(data)
                for frame in socket.protocol.events_received():
                    if isinstance(frame, Frame) and frame.opcode is Opcode.TEXT:
                        self.spawn(self._say(socket, bytes(frame.data)))
                socket.flush()
                if not socket.is_open:
                    break
        finally:
            socket.is_open = False
            for agent in self.agents.values():
                if agent.socket is socket:
                    agent.socket = None

    async def _say(self, socket: Socket, raw: bytes) -> None:
        reply = await self.take(raw, socket)
        for message in reply if isinstance(reply, list) else [reply]:
            if message is not None:
                socket.send(message)
        most = 1 if self.has("closes_at_once") else 3
        if socket.bad_in_a_row >= most and not self.has("bears_everything"):
            socket.protocol.send_close(1008)
            socket.flush()

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def take(self, raw: bytes, socket: Socket | None) -> Any:
        value: Any = None
        try:
            try:
                value = self.parse(raw)
                self.check_shape(value)
            except Refusal:
                if socket is not None:
                    socket.bad_in_a_row += 1
                raise
            agent = self.verify(value, raw)
        except Refusal as refusal:
            if value is None and self.has("drops_broken_json"):
                return None
            if value is None and self.has("echoes_input"):
                refusal.text += " \x1b[31m" + raw[:200].decode("utf-8", "replace")
            return self.error(refusal, value)
        if socket is not None:
            socket.bad_in_a_row = 0
            self.claim(agent, socket)
        return await self.once(value, agent, socket)

    def claim(self, agent: Agent, socket: Socket) -> None:
        is_new = agent.socket is not socket
        if agent.socket is not None and agent.socket.is_open and self.has("keeps_oldest_socket"):
            return
        agent.socket = socket
        if is_new:
            for (agent_id, _), message in self.unacknowledged.items():
                if agent_id == agent.named["agentId"]:
                    socket.send(message)

    def parse(self, raw: bytes) -> Any:
        if len(raw) > LIMIT and not self.has("takes_any_size"):
            raise Refusal(400, "too large")
        if len(raw) > LIMIT - 100 and self.has("takes_too_little"):
            raise Refusal(400, "too large")

        def once(pairs: list[tuple[str, Any]]) -> Json:
            if len(dict(pairs)) != len(pairs) and not self.has("takes_duplicate_keys"):
                raise ValueError("twice")
            return dict(pairs)

        def constant(word: str) -> float:
            if self.has("takes_nan"):
                return None
            raise ValueError(word)

        try:
            value = json.loads(raw.decode(), object_pairs_hook=once, parse_constant=constant)
            if not self.has("takes_lone_surrogates"):
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise Refusal(400, "not JSON") from error
        if _depth(value) > 20 and self.has("takes_little_depth"):
            raise Refusal(400, "too deep")
        if _depth(value) > 64 and not self.has("takes_any_depth"):
            raise Refusal(400, "too deep")
        if not self.has("takes_large_integers"):
            _check_integers(value)
        return value

    def check_shape(self, value: Any) -> None:
        header, body = (value.get("header"), value.get("body")) if isinstance(value, dict) else (None, None)
        if self.has("fails_at_missing_parts") and (header is None or body is None):
            raise Refusal(500, "internal error")
        need(isinstance(header, dict) and isinstance(body, dict), "header and body")
        for name in ("messageId", "type", "version", "timestamp", "sender", "recipient"):
            need(name in header or (name == "recipient" and self.has("needs_no_recipient")), name)
        version = 0
        with contextlib.suppress(ValueError):
            version = uuid.UUID(str(header["messageId"])).version
        need(version == 4 or (version and self.has("takes_any_uuid")), "messageId")
        need(header["type"] in TYPES or self.has("takes_any_type"), "type")
        is_version = re.fullmatch(r"\d+\.\d+\.\d+", str(header["version"])) is not None
        need(is_version or self.has("takes_any_version_form"), "version")
        if is_version and header["version"] != "1.0.0" and self.has("wants_exact_version"):
            raise Refusal(501, "version", supported=["1.0.0"])
        need(_is_time(header["timestamp"]) or self.has("ignores_formats"), "timestamp")
        if is_version and not header["version"].startswith("1.") and not self.has("takes_any_version"):
            raise Refusal(501, "version", supported=[] if self.has("says_no_versions") else ["1.0.0"])
        self.check_identity(header["sender"])
        recipient = header.get("recipient", SELF)
        need(not isinstance(recipient, list) or 1 <= len(recipient) <= 100, "recipient")
        for one in recipient if isinstance(recipient, list) else [recipient]:
            self.check_identity(one)
        priority = header.get("priority", 5)
        need(priority != 0 or not self.has("knows_no_zero"), "priority")
        need((isinstance(priority, int) and 0 <= priority <= 9) or self.has("takes_any_priority"), "priority")
        if not self.has("ignores_optional_fields"):
            need(isinstance(header.get("correlationId", ""), str), "correlationId")
            need("expiresAt" not in header or _is_time(header["expiresAt"]), "expiresAt")
            need(header.get("qos", 0) in (0, 1, 2) and not isinstance(header.get("qos"), str), "qos")
        need(isinstance(body.get("action"), str), "action")
        need("payload" in body, "payload")
        if self.has("wants_objects"):
            need(isinstance(body["payload"], dict), "payload")
        error = body.get("error")
        if "error" in body and not self.has("ignores_error_info"):
            need(isinstance(error, dict) and error.get("code") in CODES and not isinstance(error["code"], str), "error")
            need(isinstance(error.get("message"), str) and _is_time(error.get("timestamp")), "error")
        has_topic = 0 < len(header.get("topic", "")) <= 255
        need(header["type"] != "event" or has_topic or self.has("takes_any_topic"), "topic")
        if self.has("ignores_stream_fields"):
            return
        need(not header["type"].startswith("stream") or isinstance(header.get("streamId"), str), "streamId")
        sequence = header.get("sequence", 0 if header["type"] != "stream_data" else None)
        need(isinstance(sequence, int) and sequence >= 0, "sequence")

    def check_identity(self, value: Any) -> None:
        need(isinstance(value, dict) and isinstance(value.get("agentId"), str), "identity")
        if not self.has("ignores_agent_type"):
            need(re.fullmatch("[a-z][a-z0-9_-]{0,63}", str(value.get("agentType"))), "agentType")

    def verify(self, value: Json, raw: bytes) -> Agent:
        header, sender = value["header"], self.agents.get(value["header"]["sender"]["agentId"])
        signature = value.get("signature")
        if signature is None and self.has("takes_unsigned") and sender is not None:
            return sender
        if signature == "" and self.has("takes_empty_signature") and sender is not None:
            return sender
        if not isinstance(signature, str | None) and self.has("fails_at_odd_signature"):
            raise Refusal(500, "internal error")
        try:
            agent = self.check_signature(value, raw, str(signature), sender)
        except (ValueError, InvalidSignature, KeyError, AttributeError):
            raise Refusal(401, "signature") from None
        age = time.time() - seconds(header["timestamp"]) if not self.has("ignores_formats") else 0
        if not -300 <= age <= 86_400 and not self.has("ignores_age"):
            raise Refusal(401, "timestamp")
        if age > 1800 and self.has("forgives_nothing"):
            raise Refusal(401, "timestamp")
        return agent

    def check_signature(self, value: Json, raw: bytes, signature: str, sender: Agent | None) -> Agent:
        protected, content, mark = signature.split(".")
        head = json.loads(unb64(protected))
        kid = {agent.kid: agent for agent in self.agents.values()}
        signer = kid.get(head["kid"], sender) if self.has("guesses_key") else kid[head["kid"]]
        if self.has("ignores_key_owner"):
            sender = sender or signer
        elif signer is not sender:
            raise ValueError("another's key")
        if head["alg"] == "none" and self.has("takes_alg_none"):
            return sender
        if head["alg"] == "HS256" and self.has("takes_hmac"):
            return sender
        if head["alg"] not in ({"EdDSA"} if self.has("knows_one_name") else {"EdDSA", "Ed25519"}):
            raise ValueError("alg")
        if content and not self.has("takes_attached"):
            raise ValueError("not detached")
        signed = rfc8785.dumps({name: part for name, part in value.items() if name != "signature"})
        if self.has("signs_known_parts"):
            signed = rfc8785.dumps({"header": value["header"], "body": value["body"]})
        if self.has("signs_what_was_written"):
            plain = {name: part for name, part in json.loads(raw).items() if name != "signature"}
            signed = json.dumps(plain, separators=(",", ":"), sort_keys=True).encode()
        if not self.has("ignores_signatures"):
            signer.key.verify(unb64(mark), f"{protected}.{content or b64(signed)}".encode())
        return sender

    async def once(self, value: Json, agent: Agent, socket: Socket | None) -> Any:
        header = value["header"]
        if header["type"] == "event" and self.has("publishes_repeats"):
            return await self.handle(value, agent)
        if header["type"] in {"request", "command"} and self.has("never_dedupes"):
            return await self.handle(value, agent)
        key: Any = (agent.named["agentId"], header["messageId"])
        if self.has("dedupes_by_transport"):
            key = (*key, socket is None)
        if self.has("dedupes_across_senders"):
            key = header["messageId"]
        digest = rfc8785.dumps({**value, "signature": ""})
        if key in self.seen:
            known, result = self.seen[key]
            if known != digest and not self.has("ignores_other_content"):
                return self.error(Refusal(400, "this messageId was used"), value)
            if self.has("makes_new_replies"):
                reply = await asyncio.shield(result)
                return self.make(**_parts(reply)) if isinstance(reply, dict) else reply
            return await asyncio.shield(result)
        running = self.spawn(self.handle(value, agent))
        if not self.has("dedupes_late"):
            self.seen[key] = digest, running
        reply = await asyncio.shield(running)
        self.seen[key] = digest, running
        if isinstance(reply, dict) and reply["body"].get("error", {}).get("code") in (408, 429, 503):
            del self.seen[key]
        return reply

    # --- handling -----------------------------------------------------------------------------------------------------

    async def handle(self, value: Json, agent: Agent) -> Any:
        header, kind = value["header"], value["header"]["type"]
        try:
            if kind in {"request", "command"} or self.has("counts_everything"):
                self.count(agent, header["sender"])
            is_late = "expiresAt" in header and seconds(header["expiresAt"]) < time.time()
            if "expiresAt" in header and self.has("compares_times_as_texts"):
                is_late = header["expiresAt"].replace("Z", "") < now()
            if is_late and not self.has("ignores_expiry"):
                return self.error(Refusal(408, "expired"), value) if kind == "request" else None
            payload, is_sealed = self.opened(value)
            if header.get("sensitive") and not is_sealed and not self.has("takes_sensitive_plain"):
                raise Refusal(400, "sensitive")
            match kind:
                case "request":
                    return await self.on_request(value, agent, payload, is_sealed)
                case "command":
                    return self.on_command(value, agent, payload, is_sealed)
                case "event":
                    return self.on_event(value, agent, payload)
                case "response" | "command_result" | "error":
                    return self.on_answer(value, agent, payload)
                case "acknowledgment":
                    self.unacknowledged.pop((agent.named["agentId"], str(payload.get("messageId"))), None)
                    if self.has("acknowledges_acks"):
                        return self.reply(value, "acknowledgment", {})
                case "stream_start" | "stream_data" | "stream_end":
                    return self.on_stream(value, agent, payload)
                case "heartbeat" if self.has("answers_heartbeats"):
                    return self.reply(value, "response", {})
        except Refusal as refusal:
            return self.error(refusal, value)
        return None

    def count(self, agent: Agent, claimed: Json) -> None:
        if claimed.get("agentType") == "governor" and self.has("trusts_claimed_type"):
            return
        requests = self.all_requests if self.has("one_limit_for_all") else agent.requests
        while requests and requests[0] < time.monotonic() - 60:
            requests.popleft()
        limit = 50 if self.has("limits_too_early") else 100
        if len(requests) >= limit and not self.has("has_no_limit"):
            wait = round((requests[0] + 60 - time.monotonic()) * 1000)
            raise Refusal(429, "too many", **({} if self.has("says_no_wait") else {"retryAfterMs": wait}))
        requests.append(time.monotonic())

    def opened(self, value: Json) -> tuple[Any, bool]:
        payload = value["body"]["payload"]
        if not isinstance(payload, dict) or payload.keys() != {"$encrypted"}:
            return payload, False
        try:
            found = jwe.decrypt_compact(payload["$encrypted"], self.sealing, registry=CIPHERS)
            header = found.headers()
            if header["enc"] != "A256GCM" and not self.has("takes_any_cipher"):
                raise ValueError("cipher")
            if header.get("messageId") != value["header"]["messageId"] and not self.has("takes_moved_ciphertext"):
                raise ValueError("of another message")
            return json.loads(found.plaintext), True
        except Exception as error:
            if self.has("takes_broken_ciphertext"):
                return payload, False
            raise Refusal(400, "cannot be decrypted") from error

    def sealed(self, payload: Any, message_id: str, agent: Agent) -> Json:
        protected = {"alg": "ECDH-ES+A256KW", "enc": "A256GCM", "messageId": message_id}
        if self.has("seals_unbound"):
            del protected["messageId"]
        return {"$encrypted": jwe.encrypt_compact(protected, json.dumps(payload), agent.sealing, registry=CIPHERS)}

    async def on_request(self, value: Json, agent: Agent, payload: Any, is_sealed: bool) -> Any:
        recipient = value["header"].get("recipient", SELF)
        if isinstance(recipient, list):
            if len(recipient) == 1 and self.has("unwraps_lists_of_one"):
                return await self.answered(value, agent, recipient[0], payload, is_sealed)
            if self.has("serves_first_recipient"):
                recipient = recipient[:1]
            return await asyncio.gather(*(self.answered(value, agent, one, payload, is_sealed) for one in recipient))
        return await self.answered(value, agent, recipient, payload, is_sealed)

    async def answered(self, value: Json, agent: Agent, to: Json, payload: Any, is_sealed: bool) -> Json:
        try:
            result = await self.call(value, agent, to, payload, is_sealed)
        except Refusal as refusal:
            return self.error(refusal, value, to)
        return self.reply(value, "response", result, to, agent if is_sealed else None)

    def on_command(self, value: Json, agent: Agent, payload: Any, is_sealed: bool) -> Any:
        async def work() -> None:
            to = value["header"]["recipient"]
            reply = await self.answered(value, agent, to, payload, is_sealed)
            if reply["header"]["type"] == "response" and not self.has("has_no_command_result"):
                reply = self.make(**{**_parts(reply), "kind": "command_result"})
            if agent.socket is not None:
                agent.socket.send(reply)

        self.spawn(work())
        if self.has("acknowledges_no_commands"):
            return None
        return self.reply(value, "acknowledgment", {"messageId": value["header"]["messageId"]})

    async def call(self, value: Json, agent: Agent, to: Json, payload: Any, is_sealed: bool) -> Any:
        header, action = value["header"], value["body"]["action"]
        if to["agentId"] == "trunkline":
            return self.own(action, agent, payload)
        if (to["agentId"], action) == DENIED:
            raise Refusal(500 if self.has("denies_with_500") else 403, "denied")
        if self.has("denies_calls"):
            raise Refusal(403, "denied")
        provider = self.agents.get(to["agentId"])
        if provider is None:
            raise Refusal(503 if self.has("says_503_for_unknown") else 404, "no such agent")
        if action not in provider.actions:
            raise Refusal(500 if self.has("says_500_for_unknown") else 404, "no such action")
        if provider.socket is None:
            raise Refusal(404 if self.has("says_404_for_away") else 503, "away")
        if self.has("orders_everything"):
            async with self.order[to["agentId"]]:
                return await self.attempts(value, agent, provider, payload, is_sealed)
        if "correlationId" not in header or self.has("keeps_no_order"):
            return await self.attempts(value, agent, provider, payload, is_sealed)
        async with self.order[header["correlationId"]]:
            return await self.attempts(value, agent, provider, payload, is_sealed)

    async def attempts(self, value: Json, agent: Agent, provider: Agent, payload: Any, is_sealed: bool) -> Any:
        message_id = str(uuid.uuid4())
        thread = value["header"].get("correlationId", value["header"]["messageId"])
        retried = (500, 503) if self.has("retries_500") else () if self.has("never_retries") else (503, 408, 429)
        for number in range(1, 4):
            if self.has("retries_with_new_id"):
                message_id = str(uuid.uuid4())
            result = await self.attempt(value, agent, provider, payload, is_sealed, message_id, thread)
            error = result["body"].get("error")
            if error is None or (self.has("overlooks_error_in_response") and result["header"]["type"] == "response"):
                return self.opened(result)[0]
            if error["code"] not in retried or number == 3:
                raise Refusal(error["code"], error["message"])
            await asyncio.sleep(0.1 if self.has("retries_at_once") else number)
        raise AssertionError

    async def attempt(
        self, value: Json, agent: Agent, provider: Agent, payload: Any, is_sealed: bool, message_id: str, thread: str
    ) -> Json:
        header = value["header"]
        known = {"messageId", "type", "version", "timestamp", "sender", "recipient", "correlationId", "signature"}
        extra = {} if self.has("drops_unknown_fields") else {k: v for k, v in header.items() if k not in known}
        sender = SELF if self.has("hides_caller") else agent.named
        given = json.loads(json.dumps(payload).replace("2.5", "2")) if self.has("rounds_numbers") else payload
        if is_sealed and not self.has("forwards_plain"):
            given = self.sealed(payload, message_id, provider)
        action = f"{provider.named['agentId']}/{value['body']['action']}" if self.has("long_actions") else None
        message = self.make(
            "request", sender, provider.named, action or value["body"]["action"], given, message_id, message_id, **extra
        )
        pending = Pending(provider.named["agentId"], agent.named, thread, asyncio.get_running_loop().create_future())
        self.pending[message_id] = pending
        if provider.socket is not None:
            provider.socket.send(message)
        try:
            timeout = 60 if self.has("never_times_out") else self.timeout_s / 4 if self.has("times_out_early") else None
            async with asyncio.timeout(timeout or self.timeout_s):
                return await pending.answer
        except TimeoutError:
            raise Refusal(408, "no answer") from None

    def own(self, action: str, agent: Agent, payload: Any) -> Any:
        match action:
            case "register":
                if self.has("registers_for_others") and payload.get("agentId"):
                    agent = self.agents[payload["agentId"]]
                agent.actions |= (names := {one["name"] for one in payload["actions"]})
                return {"registered": sorted(names), "rejected": []}
            case "subscribe":
                name = str(uuid.uuid4())
                self.subscriptions[name] = Subscription(
                    agent.named["agentId"], payload["topic"], payload.get("qos", 0), payload.get("durable", False)
                )
                return {"subscription": name}
            case "unsubscribe":
                if not self.has("ignores_unsubscribe"):
                    self.subscriptions.pop(payload["subscription"], None)
                return {}
        raise Refusal(404, "no such action")

    def on_answer(self, value: Json, agent: Agent, payload: Any) -> Any:
        pending = self.pending.get(value["header"].get("correlationId", ""))
        if pending is None or pending.answer.done():
            is_error = value["header"]["type"] == "error"
            return self.error(Refusal(404, "no call"), value) if is_error and self.has("answers_errors") else None
        if pending.agent_id == agent.named["agentId"] or self.has("takes_any_answer"):
            pending.answer.set_result(value)
        return None

    # --- events -------------------------------------------------------------------------------------------------------

    def on_event(self, value: Json, agent: Agent, payload: Any) -> Any:
        header = value["header"]
        qos = header.get("qos", 0)
        for one in list(self.subscriptions.values()):
            if self.matches(one.pattern, header.get("topic", "")):
                self.deliver(value, agent, payload, one, qos)
                if self.has("tells_one_subscriber"):
                    break
        if qos == 0 or self.has("acknowledges_no_events"):
            return None
        return self.reply(value, "acknowledgment", {"messageId": header["messageId"]})

    def matches(self, pattern: str, topic: str) -> bool:
        if self.has("compares_prefixes"):
            return topic.lower().startswith(pattern.lower().rstrip("*#."))
        star = ".+" if self.has("star_is_everything") else "[^.]+"
        parts = [star if part == "*" else ".+" if part == "#" else re.escape(part) for part in pattern.split(".")]
        return re.fullmatch(r"\.".join(parts), topic) is not None

    def deliver(self, value: Json, agent: Agent, payload: Any, to: Subscription, qos: int) -> None:
        level = max(qos, to.qos) if self.has("takes_higher_level") else min(qos, to.qos)
        subscriber = self.agents[to.agent_id]
        topic = value["header"]["topic"]
        message = self.make("event", agent.named, subscriber.named, "published", payload, topic=topic, qos=level)
        if subscriber.socket is not None:
            subscriber.socket.send(message)
        elif not to.is_durable or self.has("forgets_durable"):
            return
        if level or self.has("redelivers_everything"):
            self.unacknowledged[to.agent_id, message["header"]["messageId"]] = message
            self.spawn(self.redeliver(to.agent_id, message))

    async def redeliver(self, agent_id: str, message: Json) -> None:
        key = agent_id, message["header"]["messageId"]
        for wait in (1, 2, 4, 8):
            await asyncio.sleep(wait)
            if key not in self.unacknowledged and not self.has("ignores_acks"):
                return
            subscriber = self.agents[agent_id]
            if subscriber.socket is not None and not self.has("never_redelivers"):
                again = self.make(**_parts(message)) if self.has("redelivers_with_new_id") else message
                subscriber.socket.send(again)

    # --- streams ------------------------------------------------------------------------------------------------------

    def on_stream(self, value: Json, agent: Agent, payload: Any) -> Any:
        header, kind = value["header"], value["header"]["type"]
        key = (agent.named["agentId"], header.get("streamId"))
        if kind == "stream_start":
            self.streams[key] = Stream()
        stream = self.streams.get(key)
        if stream is None or (stream.is_ended and not self.has("streams_on_after_end")):
            return self.nack(value, "no such stream")
        if kind == "stream_data":
            sequence = header.get("sequence", stream.expected)
            if sequence > stream.expected and not self.has("ignores_gaps"):
                return None if self.has("drops_silently") else self.nack(value, "a gap")
            if sequence < stream.expected:
                return None
            stream.expected = sequence + 1
        stream.is_ended = stream.is_ended or kind == "stream_end"
        pending = self.pending.get(header.get("correlationId", ""))
        thread = header.get("correlationId")
        to = header["recipient"]["agentId"]
        if pending is not None and pending.agent_id == agent.named["agentId"]:
            to, thread = pending.caller["agentId"], pending.thread
            if self.has("shows_no_progress"):
                return None
        receiver = self.agents.get(to)
        if receiver is None or receiver.socket is None:
            return self.nack(value, "away")
        if kind == "stream_data" and header["sequence"] == 1 and self.has("loses_a_piece"):
            return None
        more = {"sequence": header["sequence"]} if "sequence" in header else {}
        if thread is not None:
            more["thread"] = thread
        receiver.socket.send(
            self.make(kind, agent.named, receiver.named, "stream", payload, streamId=header.get("streamId"), **more)
        )
        return None

    def nack(self, value: Json, text: str) -> Json:
        name = {} if self.has("names_nothing") else {"messageId": value["header"]["messageId"]}
        error = {"code": 400, "message": text, "timestamp": now()}
        return self.reply(value, "negative_acknowledgment", name, error=error)

    # --- sending ------------------------------------------------------------------------------------------------------

    def make(
        self,
        kind: str,
        sender: Json,
        to: Json,
        action: str,
        payload: Any,
        thread: str | None = None,
        message_id: str = "",
        error: Json | None = None,
        **header: Any,
    ) -> Json:
        fields = {
            "messageId": message_id or str(uuid.uuid1() if self.has("makes_ids_v1") else uuid.uuid4()),
            "type": kind,
            "version": "1.0.0",
            "timestamp": now(),
            "sender": sender,
            "recipient": to,
            **header,
        }
        if thread is not None:
            fields["correlationId"] = thread
        body: Json = {"action": action, "payload": payload}
        if error is not None:
            body["error"] = error
        message: Json = {"header": fields, "body": body}
        if not (self.has("signs_nothing") or (self.has("signs_no_errors") and kind == "error")):
            head = b64(json.dumps({"alg": "EdDSA", "kid": "server", "typ": "ossa+jws"}).encode())
            message["signature"] = f"{head}..{b64(self.key.sign(f'{head}.{b64(rfc8785.dumps(message))}'.encode()))}"
        return message

    def reply(
        self, to: Json, kind: str, payload: Any, sender: Json | None = None, seal_to: Agent | None = None, **more: Any
    ) -> Json:
        header, message_id = to["header"], str(uuid.uuid4())
        if seal_to is not None and not self.has("replies_plain"):
            payload = self.sealed(payload, message_id, seal_to)
        thread = header.get("correlationId", None if self.has("forgets_missing_thread") else header["messageId"])
        if self.has("loses_thread"):
            thread = str(uuid.uuid4())
        recipient = header["sender"]
        if self.has("forgets_instance"):
            recipient = {name: recipient[name] for name in ("agentId", "agentType")}
        sender = sender or (header["recipient"] if isinstance(header.get("recipient"), dict) else SELF)
        if self.has("does_not_swap"):
            sender, recipient = recipient, sender
        return self.make(kind, sender, recipient, to["body"]["action"], payload, thread, message_id, **more)

    def error(self, refusal: Refusal, to: Any, sender: Json | None = None) -> Json:
        header = to["header"] if isinstance(to, dict) and isinstance(to.get("header"), dict) else {}
        recipient = header.get("sender")
        if not isinstance(recipient, dict) or not {"agentId", "agentType"} <= recipient.keys():
            recipient = SELF if self.has("guesses_sender") else UNKNOWN
        thread = header.get("correlationId", header.get("messageId"))
        if not isinstance(thread, str) or self.has("errors_without_thread"):
            thread = None
        error = {
            "code": str(refusal.code) if self.has("says_codes_as_text") else refusal.code,
            "message": refusal.text,
            "timestamp": "2020-01-01T00:00:00Z" if self.has("has_an_old_clock") else now(),
        }
        if refusal.details:
            error["details"] = refusal.details
        action = str(header.get("type")) if self.has("keeps_action_in_errors") else "error"
        return self.make("error", sender or SELF, recipient, action, {}, thread, error=error)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def need(is_right: object, what: str) -> None:
    if not is_right:
        raise Refusal(400, f"{what}: not as it should be")


def _parts(message: Json) -> Json:
    """What `make` needs for the same message with another id."""
    header, body = message["header"], message["body"]
    usual = {"messageId", "type", "version", "timestamp", "sender", "recipient", "correlationId"}
    return {
        "kind": header["type"],
        "sender": header["sender"],
        "to": header["recipient"],
        "action": body["action"],
        "payload": body["payload"],
        "thread": header.get("correlationId"),
        "error": body.get("error"),
        **{name: value for name, value in header.items() if name not in usual},
    }


def _status(reply: Any) -> int:
    if reply is None:
        return 202
    if isinstance(reply, list):
        return 200
    kind, error = reply["header"]["type"], reply["body"].get("error")
    return int(error["code"]) if error else 202 if kind == "acknowledgment" else 200


def _respond(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    body = b"" if value is None else json.dumps(value).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    )
    writer.write(body)


def _is_time(value: Any) -> bool:
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\dT", value):
        return False
    try:
        seconds(value)
    except ValueError:
        return False
    return True


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        one, depth = waiting.pop()
        deepest = max(deepest, depth if isinstance(one, dict | list) else 0)
        if isinstance(one, dict | list):
            waiting += [(inner, depth + 1) for inner in (one.values() if isinstance(one, dict) else one)]
    return deepest


def _check_integers(value: Any) -> None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            waiting += one.values() if isinstance(one, dict) else one
        elif isinstance(one, int) and abs(one) > 2**53 - 1:
            raise Refusal(400, "an integer beyond 2^53")


def _certificate() -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    today = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - dt.timedelta(days=1))
        .not_valid_after(today + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    form = serialization.Encoding.PEM
    secret = key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "both.pem"
        file.write_bytes(secret + made.public_bytes(form))
        context.load_cert_chain(file)
    return context
