"""OAuth as a mounted server wants it of its clients: what is read, what is checked, what is asked; pure.

Owns the documents and their checks: where a server says who signs people in (RFC 9728), what that one says of itself
(RFC 8414, OpenID discovery), registration of a client (RFC 7591), the address that a person opens (RFC 6749, PKCE of
RFC 7636, ``resource`` of RFC 8707), and answers with tokens. Does not own requests (``sign_in_requests``), nor when
something is asked, or what is kept (``signing_in``).

Invariant: no text of the other side is in an error but a name that was compared with one of ours; nothing raises but
``SignInRefused``.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from trunkline import strictjson
from trunkline.edges.client import endpoint_of
from trunkline.errors import SignInRefused

# The one challenge method that does not show the verifier to whoever sees the address.
S256: Final = "S256"
# Without it an answer may have no token to renew with.
OFFLINE: Final = "offline_access"
# Shorter ones cannot be told from ordinary text, and so not be masked.
SHORTEST_TOKEN: Final = 8
# Real ones have up to some kilobytes (a signed token with its claims); they stand in a header.
LONGEST_TOKEN: Final = 16_384
# How a client shows at the token endpoint that it is the one; the first that both sides know is used.
PUBLIC, BASIC, POSTED = "none", "client_secret_basic", "client_secret_post"
# What RFC 6749 and 7591 call reasons, and no more than that is shown of one.
_REASON: Final = re.compile(r"[a-z_]{1,40}")
_PARAMETER: Final = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_TOKEN: Final = re.compile(r"[!-~]+")

T = TypeVar("T", bound=Struct)


class Challenge(Struct, frozen=True):
    """What a server says in ``WWW-Authenticate`` when it wants another token."""

    resource_metadata: str = ""
    scope: str = ""
    error: str = ""


class ResourceMetadata(Struct, frozen=True):
    """What a mounted server says of itself (RFC 9728)."""

    resource: str
    authorization_servers: list[str] | None = None
    scopes_supported: list[str] | None = None


class ServerMetadata(Struct, frozen=True):
    """What an authorization server says of itself (RFC 8414)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    scopes_supported: list[str] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


class Registered(Struct, frozen=True):
    """The answer to a registration (RFC 7591)."""

    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None
    redirect_uris: list[str] | None = None


class Granted(Struct, frozen=True):
    """Tokens, as they are answered."""

    access_token: str
    token_type: str = ""
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None


class Client(Struct, frozen=True):
    """Who we are to one authorization server."""

    client_id: str
    secret: str = ""
    auth_method: str = PUBLIC


class _Reason(Struct, frozen=True):
    error: str = ""


# --- what a server says of itself -------------------------------------------------------------------------------------


def challenge(header: str) -> Challenge:
    """What ``WWW-Authenticate`` asks of a bearer; nothing where it does not."""
    at = header.lower().find("bearer")
    said = _PARAMETER.findall(header[at:]) if at >= 0 else ()
    found = {name.lower(): quoted or plain for name, quoted, plain in said}
    return Challenge(found.get("resource_metadata", ""), found.get("scope", ""), found.get("error", ""))


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. ``SignInRefused`` for what is no address that we go to."""
    try:
        place = endpoint_of(url)
    except ValueError:
        raise SignInRefused("an address that it names is none: expected https, or http on this machine") from None
    return ("https" if place.is_tls else "http"), place.host.lower(), place.port


def resource_metadata_urls(server: str, asked: Challenge) -> list[str]:
    """Where a server may say who signs people in, in the order in which to look."""
    if asked.resource_metadata:
        if origin(asked.resource_metadata) != origin(server):
            raise SignInRefused("it says that its description is elsewhere, where it is not looked for")
        return [asked.resource_metadata]
    return _well_known(server, "oauth-protected-resource", with_root=True)


def server_metadata_urls(issuer: str) -> list[str]:
    """Where an authorization server may describe itself, in the order in which to look."""
    origin(issuer)
    parts = urlsplit(issuer)
    if parts.query:
        raise SignInRefused("the authorization server that it names has a query in its address")
    found = _well_known(issuer, "oauth-authorization-server") + _well_known(issuer, "openid-configuration")
    path = parts.path.rstrip("/")
    return found + ([f"{parts.scheme}://{parts.netloc}{path}/.well-known/openid-configuration"] if path else [])


def _well_known(url: str, name: str, *, with_root: bool = False) -> list[str]:
    parts = urlsplit(url)
    root, path = f"{parts.scheme}://{parts.netloc}/.well-known/{name}", parts.path.rstrip("/")
    return [root + path, root] if path and with_root else [root + path]


def checked_resource(found: ResourceMetadata, server: str) -> str:
    """What tokens are asked for: the server itself, or what is above it in the same place."""
    if origin(found.resource) != origin(server):
        raise SignInRefused("it describes another server than itself")
    above, own = urlsplit(found.resource).path.rstrip("/"), urlsplit(server).path.rstrip("/")
    if own != above and not own.startswith(f"{above}/"):
        raise SignInRefused("it describes another server than itself")
    return found.resource


def checked_server(found: ServerMetadata, issuer: str) -> None:
    """Whether this description can be used, and is that of the one who was asked for."""
    if found.issuer != issuer:
        raise SignInRefused("the authorization server says that it is another one")
    if S256 not in (found.code_challenge_methods_supported or ()):
        raise SignInRefused("the authorization server does not know PKCE with S256")
    for url in (found.authorization_endpoint, found.token_endpoint, found.registration_endpoint):
        if url:
            origin(url)


# --- what is asked ----------------------------------------------------------------------------------------------------


def scopes(configured: str, asked: Challenge, resource: ResourceMetadata, server: ServerMetadata) -> str:
    """Which scopes are asked for: the operator's word, else the server's, the narrower first."""
    wanted = configured or asked.scope or " ".join(resource.scopes_supported or ())
    if not configured and OFFLINE in (server.scopes_supported or ()) and OFFLINE not in wanted.split():
        wanted = f"{wanted} {OFFLINE}".strip()
    return wanted


def registration(redirect_uri: str, scope: str) -> bytes:
    """A program on this machine that keeps no secret asks to be known."""
    wanted: dict[str, object] = {
        "client_name": "Trunkline",
        "application_type": "native",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": PUBLIC,
    }
    return msgspec.json.encode({**wanted, "scope": scope} if scope else wanted)


def registered_client(found: Registered, redirect_uri: str) -> Client:
    """Who we are from now on."""
    if found.redirect_uris is not None and redirect_uri not in found.redirect_uris:
        raise SignInRefused("the authorization server would send you elsewhere than back here")
    secret = found.client_secret or ""
    method = found.token_endpoint_auth_method or (BASIC if secret else PUBLIC)
    return client(found.client_id, secret, (method,))


def client(client_id: str, secret: str, methods: Sequence[str] | None) -> Client:
    """A client that shows itself in one of these ways."""
    if not client_id or not _TOKEN.fullmatch(client_id) or len(client_id) > LONGEST_TOKEN:
        raise SignInRefused("the name that it is known by there is none")
    if not secret:
        return Client(client_id)
    # A server that says nothing takes this one (RFC 8414, 2).
    known = methods or (BASIC,)
    chosen = next((method for method in (BASIC, POSTED) if method in known), "")
    if not chosen:
        raise SignInRefused("the authorization server takes a secret in no way that we know")
    return Client(client_id, secret, chosen)


def challenge_of(verifier: str) -> str:
    """What the address shows of a verifier."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def address(endpoint: str, parameters: Mapping[str, str]) -> str:
    """What the person opens; parameters that the endpoint has itself stay, unless they are ours."""
    parts = urlsplit(endpoint)
    kept = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in parameters]
    given = [(name, value) for name, value in parameters.items() if value]
    return parts._replace(query=urlencode([*kept, *given], quote_via=quote)).geturl()


def token_request(who: Client, parameters: Mapping[str, str]) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request for tokens."""
    headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
    said = {**parameters, "client_id": who.client_id}
    if who.auth_method == BASIC:
        pair = f"{quote(who.client_id, safe='')}:{quote(who.secret, safe='')}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif who.auth_method == POSTED:
        said["client_secret"] = who.secret
    return headers, urlencode({name: value for name, value in said.items() if value}).encode()


# --- what is answered -------------------------------------------------------------------------------------------------


def document(kind: type[T], data: bytes, what: str) -> T:
    """An answer as this type; ``what`` names it in the refusal."""
    try:
        strictjson.check(data)
        return msgspec.json.decode(data, type=kind)
    except (strictjson.NotStrictJson, msgspec.DecodeError):
        raise SignInRefused(f"{what} cannot be read") from None


def reason(data: bytes) -> str:
    """Why a request was refused, if that is one of the words that there are for it."""
    try:
        strictjson.check(data)
        found = msgspec.json.decode(data, type=_Reason).error
    except (strictjson.NotStrictJson, msgspec.DecodeError):
        return ""
    return word(found)


def word(text: str) -> str:
    """A reason that can be shown: one of those short words, or nothing."""
    return text if _REASON.fullmatch(text) else ""


def checked_tokens(found: Granted) -> Granted:
    """Tokens that can be used, and kept to ourselves."""
    if found.token_type.lower() != "bearer":
        raise SignInRefused("the tokens are of a kind that we do not know")
    for token in (found.access_token, found.refresh_token):
        if token is not None and not (SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN and _TOKEN.fullmatch(token)):
            raise SignInRefused(f"a token is none: expected {SHORTEST_TOKEN} to {LONGEST_TOKEN} printable characters")
    return found


def lifetime_s(found: Granted) -> float | None:
    """How long its token is good, if that was said."""
    try:
        given = None if found.expires_in is None else float(found.expires_in)
    except ValueError:
        return None
    # A year is as good as for ever, and what is no number of seconds says nothing.
    return None if given is None or not 0 < given < 31_536_000 else given
