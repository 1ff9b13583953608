"""What OpenAgents says in events: requests, results and feedback of jobs, announcements, deletions; built and read.

The protocol's own field names stop here. A job is known by its schema id, never by the number of a kind: these are
configuration, and the kind of a result is that of its request and 1000 (OA-006, silent point 4). Does not own
signatures (``events``), what a schema says of inputs and outputs, nor hashes.

Invariant: what a reader gives has the form that its type says. Whatever an event holds, a reader gives that or raises
``BadMessage``, whose text may be told to the author of the event.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline import strictjson
from trunkline.config import NostrKinds
from trunkline.edges.nostr import keys
from trunkline.edges.nostr.events import Draft, Event, Tag, Tags, is_id
from trunkline.model import OptionalRaw

# Contradiction 1: two or three names between `oa` and the version.
SCHEMA_ID: Final = re.compile(r"oa(\.[a-z][a-z0-9_]*){1,2}\.v[1-9][0-9]*")
MAX_SCHEMA_ID_CHARS: Final = 128
SHA256: Final = re.compile(r"sha256:[0-9a-f]{64}")
DELETION: Final = 5
# Silent point 11: the buyer's idempotency key, where he has one.
KEY_PARAM: Final = ("param", "idempotency_key")
MAX_KEY_CHARS: Final = 128
JSON_OUTPUT: Final = "application/json"
# What people read in a feedback; more is cut.
MAX_STATUS_CHARS: Final = 500
# Ways to pay for one job that are looked at.
MAX_AMOUNTS: Final = 8
# Schema ids and names in one announcement of somebody else.
MAX_LISTED: Final = 1000
# What a signature adds to a draft: three hexadecimal texts and their names.
SIGNED_BYTES: Final = 512
MAX_MSATS: Final = 2_100_000_000_000_000_000  # all there will ever be

T = TypeVar("T")
Decrypt = Callable[[str, str], str]
Encrypt = Callable[[str, str], str]


class BadMessage(ValueError):
    """An event that is none of ours; the text says why without quoting it."""


class TooLarge(ValueError):
    """What is to be said does not fit into an event that relays carry."""


class Status(enum.StrEnum):
    """How a job stands, in NIP-90's words."""

    PAYMENT_REQUIRED = "payment-required"
    PROCESSING = "processing"
    PARTIAL = "partial"
    SUCCESS = "success"
    ERROR = "error"


def is_schema_id(text: str) -> bool:
    """Whether a job's type can have this name."""
    return len(text) <= MAX_SCHEMA_ID_CHARS and SCHEMA_ID.fullmatch(text) is not None


# --- requests ---------------------------------------------------------------------------------------------------------


class JobRequest(Struct, frozen=True):
    """A job that somebody wants done."""

    id: str
    buyer: str
    created_at: int
    schema_id: str
    inputs: Raw
    # What the buyer says the job's hash is; empty where he used NIP-90's tags alone.
    job_hash: str = ""
    bid_msats: int | None = None
    # Public keys of those whom the buyer asks; nobody in particular if empty.
    providers: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    # It was encrypted to us, and so is every word about it.
    is_private: bool = False
    # The buyer's own name for what he wants: the same key is the same quote. Empty: he has none.
    key: str = ""


class _Envelope(Struct):
    job_type: str
    job_hash: str
    payload: Raw
    schema_version: int | str | None = None


_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_tags: Final = msgspec.json.Decoder(tuple[tuple[str, ...], ...]).decode


def read_request(event: Event, decrypt: Decrypt | None = None) -> JobRequest:
    """The job in this event. The envelope in its content wins over its tags (silent point 2)."""
    is_private = "encrypted" in (tag[0] for tag in event.tags if tag)
    content, tags = event.content, event.tags
    if is_private:
        if decrypt is None:
            raise BadMessage("it is encrypted, and not to us")
        try:
            content = decrypt(event.content, event.pubkey)
        except keys.CannotDecrypt as error:
            raise BadMessage(str(error)) from None
        if content.lstrip().startswith("["):
            # NIP-90's own form: the private tags.
            tags, content = (*tags, *_private_tags(content)), ""
    schema_id, inputs, job_hash = _enveloped(content) if content.strip() else _tagged(tags)
    return JobRequest(
        id=event.id,
        buyer=event.pubkey,
        created_at=event.created_at,
        schema_id=schema_id,
        inputs=inputs,
        job_hash=job_hash,
        bid_msats=_msats(event.value("bid")),
        providers=providers_of(event),
        relays=tuple(url for tag in event.tags_named("relays") for url in tag[1:]),
        is_private=is_private,
        key=next((tag[2] for tag in tags if tag[:2] == KEY_PARAM and len(tag) > 2), "")[:MAX_KEY_CHARS],
    )


def providers_of(event: Event) -> tuple[str, ...]:
    """The public keys that a request is addressed to."""
    return tuple(key for key in event.values("p") if is_id(key))


def _private_tags(content: str) -> tuple[Tag, ...]:
    try:
        strictjson.check(content.encode(), max_depth=2)
        return _tags(content)
    except (strictjson.NotStrictJson, msgspec.DecodeError, UnicodeEncodeError):
        raise BadMessage("what is encrypted in it is neither an envelope nor a list of tags") from None


def _enveloped(content: str) -> tuple[str, Raw, str]:
    envelope = _read(content, _envelope, "its content is no envelope {job_type, schema_version, job_hash, payload}")
    schema_id = envelope.job_type
    _need_schema_id(schema_id)
    if envelope.schema_version is not None and not schema_id.endswith(f".v{envelope.schema_version}"):
        raise BadMessage("schema_version is not the version in job_type")
    if not SHA256.fullmatch(envelope.job_hash):
        raise BadMessage("job_hash: expected sha256: and 64 hexadecimal digits")
    return schema_id, _object(envelope.payload, "payload"), envelope.job_hash


def _tagged(tags: Sequence[Tag]) -> tuple[str, Raw, str]:
    schema_id = next((tag[2] for tag in tags if tag[:2] == ("param", "schema_id") and len(tag) > 2), "")
    _need_schema_id(schema_id)
    text = next((tag[1] for tag in tags if tag[:1] == ("i",) and len(tag) > 1 and tag[2:3] in {(), ("text",)}), "{}")
    try:
        strictjson.check(text.encode())
    except (strictjson.NotStrictJson, UnicodeEncodeError):
        raise BadMessage("the i tag is not a JSON object with the inputs") from None
    return schema_id, _object(Raw(text.encode()), "the i tag"), ""


def _need_schema_id(text: str) -> None:
    if not is_schema_id(text):
        raise BadMessage("no schema id: expected oa.<domain>.<operation>.v<version>")


def request_draft(
    kinds: NostrKinds,
    schema_id: str,
    inputs: Raw,
    job_hash: str,
    *,
    created_at: int,
    nonce: str,
    provider: str = "",
    bid_msats: int | None = None,
    relays: Sequence[str] = (),
    encrypt: Encrypt | None = None,
) -> Draft:
    """A request for a job. The nonce keeps two equal ones of one second apart; ``encrypt`` needs a provider."""
    version = int(schema_id.rpartition(".v")[2])
    envelope = {"job_type": schema_id, "schema_version": version, "job_hash": job_hash, "payload": inputs}
    content = msgspec.json.encode(envelope).decode()
    tags: list[Tag] = [("output", JSON_OUTPUT), ("nonce", nonce)]
    if encrypt is None:
        tags += [("i", bytes(inputs).decode(), "text"), ("param", "schema_id", schema_id)]
    else:
        content = encrypt(content, provider)
        tags.append(("encrypted",))
    if provider:
        tags.append(("p", provider))
    if bid_msats is not None:
        tags.append(("bid", str(bid_msats)))
    if relays:
        tags.append(("relays", *relays))
    return Draft(kinds.request, content, tuple(tags), created_at)


# --- results ----------------------------------------------------------------------------------------------------------


class Provenance(Struct, frozen=True, omit_defaults=True):
    """Who and what made a result. ``provider_id`` is an npub (contradiction 16)."""

    model: Annotated[str, Meta(min_length=1, max_length=500)]
    provider_id: str
    token_counts: OptionalRaw = None
    sampling_params: OptionalRaw = None


class JobResult(Struct, frozen=True):
    """What a provider says came of a job."""

    id: str
    request_id: str
    buyer: str
    provider: str
    created_at: int
    outputs: Raw
    provenance: Provenance
    output_hash: str
    amount_msats: int | None = None
    invoice: str = ""
    is_private: bool = False


class _ResultContent(Struct):
    outputs: Raw
    provenance: Provenance
    output_hash: str


# The tag of a result that holds its receipt; of a private job it stands in the encrypted content.
RECEIPT: Final = "receipt"
_result: Final = msgspec.json.Decoder(_ResultContent).decode


def result_draft(
    kinds: NostrKinds,
    request: Event,
    outputs: Raw,
    provenance: Provenance,
    output_hash: str,
    *,
    created_at: int,
    amount_msats: int | None = None,
    invoice: str = "",
    receipt: str = "",
    encrypt: Encrypt | None = None,
    max_bytes: int | None = None,
) -> Draft:
    """The result of a job, with its request (NIP-90) and its receipt. Nothing of a private job stands in the clear.

    What NIP-90 repeats of the request is left out where the event would be larger than ``max_bytes``; ``TooLarge`` if
    it is even then.
    """
    written: dict[str, object] = {"outputs": outputs, "provenance": provenance, "output_hash": output_hash}
    if receipt and encrypt is not None:
        written[RECEIPT] = Raw(receipt.encode())
    content = msgspec.json.encode(written).decode()
    tags: list[Tag] = [*_about(request), *_amount(amount_msats, invoice)]
    if receipt and encrypt is None:
        tags.append((RECEIPT, receipt))
    repeated: list[Tag] = [("request", msgspec.json.encode(request).decode())]
    if encrypt is None:
        repeated += [tag for tag in request.tags if tag[:1] == ("i",)]
    else:
        content = encrypt(content, request.pubkey)
        tags.append(("encrypted",))
    for kept in (repeated, repeated[:1], []):
        draft = Draft(kinds.result, content, (*kept, *tags), created_at)
        if max_bytes is None or len(msgspec.json.encode(draft)) + SIGNED_BYTES <= max_bytes:
            return draft
    raise TooLarge("the result is larger than a relay carries")


def read_result(event: Event, decrypt: Decrypt | None = None) -> JobResult:
    """The result in this event. Who signed it, and whether its hash computes, is for its reader to judge."""
    content = _opened(event, decrypt)
    found = _read(content, _result, "its content is not {outputs, provenance, output_hash}")
    if not SHA256.fullmatch(found.output_hash):
        raise BadMessage("output_hash: expected sha256: and 64 hexadecimal digits")
    try:
        keys.public_of(found.provenance.provider_id)
    except ValueError:
        raise BadMessage("provenance.provider_id: expected an npub") from None
    amount, invoice = _amount_of(event)
    return JobResult(
        id=event.id,
        request_id=_request_of(event),
        buyer=event.value("p"),
        provider=event.pubkey,
        created_at=event.created_at,
        outputs=_object(found.outputs, "outputs"),
        provenance=found.provenance,
        output_hash=found.output_hash,
        amount_msats=amount,
        invoice=invoice,
        is_private=_is_encrypted(event),
    )


# --- feedback ---------------------------------------------------------------------------------------------------------


class JobFeedback(Struct, frozen=True):
    """How a job stands: an invoice, a step, the end (OA-003 to OA-005)."""

    id: str
    request_id: str
    buyer: str
    provider: str
    created_at: int
    status: Status
    text: str = ""
    # A piece of the result, where the provider shows one.
    content: str = ""
    amount_msats: int | None = None
    invoice: str = ""
    is_private: bool = False
    # Other amounts, and what each of them could be paid by instead.
    others: tuple[tuple[int | None, str], ...] = ()


def feedback_draft(
    kinds: NostrKinds,
    request: Event,
    status: Status,
    text: str = "",
    *,
    created_at: int,
    content: str = "",
    amount_msats: int | None = None,
    invoice: str = "",
    also: Tags = (),
    encrypt: Encrypt | None = None,
) -> Draft:
    """How a job stands. ``also`` are tags besides: other ways to pay. Of a private job the words stand in the encrypted
    content, and only the status in the clear.
    """
    text = text[:MAX_STATUS_CHARS]
    tags = [("status", status.value, text) if text and encrypt is None else ("status", status.value), *_about(request)]
    if encrypt is not None:
        content = encrypt(content or text, request.pubkey) if content or text else ""
        tags.append(("encrypted",))
    tags += [*_amount(amount_msats, invoice), *also]
    return Draft(kinds.feedback, content, tuple(tags), created_at)


def read_feedback(event: Event, decrypt: Decrypt | None = None) -> JobFeedback:
    """The feedback in this event."""
    tag = event.tag("status")
    try:
        status = Status(tag[1] if len(tag) > 1 else "")
    except ValueError:
        raise BadMessage(f"status: expected one of {', '.join(Status)}") from None
    content = _opened(event, decrypt) if event.content else ""
    amount, invoice = _amount_of(event)
    return JobFeedback(
        id=event.id,
        request_id=_request_of(event),
        buyer=event.value("p"),
        provider=event.pubkey,
        created_at=event.created_at,
        status=status,
        text=(tag[2] if len(tag) > 2 else "")[:MAX_STATUS_CHARS],
        content=content,
        amount_msats=amount,
        invoice=invoice,
        is_private=_is_encrypted(event),
        others=tuple(_other_amounts(event)),
    )


# --- announcements ----------------------------------------------------------------------------------------------------

AtLeastZero = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
SchemaId = Annotated[str, Meta(pattern=rf"^{SCHEMA_ID.pattern}\Z", max_length=MAX_SCHEMA_ID_CHARS)]
Name = Annotated[str, Meta(max_length=500)]
SupplyClass = Literal["SingleNode", "BundleLAN", "BundleRack", "InstanceMarket", "ReservePool"]


class Hardware(Struct, frozen=True):
    """What a provider's machine has."""

    memory_gb: AtLeastZero
    gpu_type: Name
    vram_gb: AtLeastZero


class Capabilities(Struct, frozen=True, omit_defaults=True):
    """What a provider does, and with what."""

    supported_jobs: Annotated[tuple[SchemaId, ...], Meta(max_length=MAX_LISTED)]
    models: Annotated[tuple[Name, ...], Meta(max_length=MAX_LISTED)]
    hardware: Hardware | None = None


class Pricing(Struct, frozen=True):
    """What a provider asks for, in thousandths of a satoshi."""

    input_tokens_per_1k_msats: AtLeastZero
    output_tokens_per_1k_msats: AtLeastZero
    sandbox_per_minute_msats: AtLeastZero


class Capacity(Struct, frozen=True):
    """How much a provider takes on."""

    max_concurrent_jobs: Annotated[int, Meta(ge=0)]
    max_context_tokens: Annotated[int, Meta(ge=0)]


class Stability(Struct, frozen=True):
    """How a provider did so far, by its own word."""

    success_rate: Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
    avg_latency_ms: AtLeastZero
    jobs_completed: Annotated[int, Meta(ge=0)]


class Announcement(Struct, frozen=True, omit_defaults=True):
    """What a provider says of itself (OA-107 to OA-115). Hardware and stability may be absent (silent point 27)."""

    supply_class: SupplyClass
    capabilities: Capabilities
    pricing: Pricing
    capacity: Capacity
    stability: Stability | None = None


class Announced(Struct, frozen=True):
    """An announcement, and what tells it from others: a provider has one for each ``d`` tag."""

    id: str
    provider: str
    name: str
    created_at: int
    announcement: Announcement
    kinds: tuple[int, ...] = ()

    def replaces(self, other: Announced) -> bool:
        """Whether this one holds, of two of the same provider and name: the newer one, of equals the lower id."""
        return (-self.created_at, self.id) < (-other.created_at, other.id)


_announcement: Final = msgspec.json.Decoder(Announcement).decode


def announcement_draft(kinds: NostrKinds, name: str, announcement: Announcement, *, created_at: int) -> Draft:
    """What we say of ourselves, for the kind of our requests (NIP-89)."""
    content = msgspec.json.encode(announcement).decode()
    return Draft(kinds.announcement, content, (("d", name), ("k", str(kinds.request))), created_at)


def read_announcement(event: Event) -> Announced:
    """The announcement in this event."""
    found = _read(event.content, _announcement, "its content is no announcement of a provider")
    numbers = tuple(int(text) for text in event.values("k") if text.isascii() and text.isdigit() and len(text) < 6)
    return Announced(event.id, event.pubkey, event.value("d"), event.created_at, found, numbers)


# --- deletions --------------------------------------------------------------------------------------------------------


def deletion_draft(request_ids: Sequence[str], kind: int, text: str, *, created_at: int) -> Draft:
    """We take these back (NIP-09): a request so deleted is canceled."""
    tags = (*(("e", name) for name in request_ids), ("k", str(kind)))
    return Draft(DELETION, text, tags, created_at)


def deleted_by(event: Event) -> tuple[str, ...]:
    """The events that the author of this one takes back, if they are his: whoever knows them has to look."""
    return tuple(name for name in event.values("e") if is_id(name))


# --- what they share --------------------------------------------------------------------------------------------------


def _read(content: str, decode: Callable[[str], T], what: str) -> T:
    """A typed value of an event's content, if it is strict JSON of that form."""
    try:
        strictjson.check(content.encode(), want_object=True)
        return decode(content)
    except (strictjson.NotStrictJson, msgspec.DecodeError, UnicodeEncodeError):
        raise BadMessage(what) from None


def _about(request: Event) -> list[Tag]:
    return [("e", request.id), ("p", request.pubkey)]


def _is_encrypted(event: Event) -> bool:
    return bool(event.tag("encrypted"))


def _opened(event: Event, decrypt: Decrypt | None) -> str:
    if not _is_encrypted(event):
        return event.content
    if decrypt is None:
        raise BadMessage("it is encrypted, and not to us")
    try:
        return decrypt(event.content, event.pubkey)
    except keys.CannotDecrypt as error:
        raise BadMessage(str(error)) from None


def _request_of(event: Event) -> str:
    name = event.value("e")
    if not is_id(name):
        raise BadMessage("it names no request: expected a tag e")
    return name


def _object(raw: Raw, what: str) -> Raw:
    if not bytes(raw).lstrip().startswith(b"{"):
        raise BadMessage(f"{what}: expected a JSON object")
    return Raw(bytes(raw))


def _amount(msats: int | None, invoice: str) -> list[Tag]:
    if msats is None:
        return []
    return [("amount", str(msats), invoice) if invoice else ("amount", str(msats))]


def _amount_of(event: Event) -> tuple[int | None, str]:
    tag = event.tag("amount")
    return _msats(tag[1] if len(tag) > 1 else ""), tag[2] if len(tag) > 2 else ""


def _other_amounts(event: Event) -> Iterator[tuple[int | None, str]]:
    for tag in list(event.tags_named("amount"))[1:MAX_AMOUNTS]:
        if len(tag) > 2:
            yield _msats(tag[1]), tag[2]


def _msats(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        return None
    return min(int(text), MAX_MSATS)
