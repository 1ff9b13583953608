"""Signing in at one mounted server: the person's way to its tokens, and the tokens from then on.

Owns one attempt at a time (address, state, verifier), what is kept of the last one, and when a token is renewed. Does
not own documents and their checks (``oauth``), who may be asked (``sign_in_requests``), nor the page that a browser
comes back to (``callback``).

A person begins, always: a server that wants a token has nothing asked of anybody until then. Tokens go to the server's
own address and nowhere else, and what renews them to the endpoint that they came from.

Invariant: a state is taken once. Tokens, secrets, codes and verifiers are in no text that leaves here, and those that
are kept are known to the masker before they are used.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from trunkline.config import McpServer
from trunkline.edges.client import Unreachable
from trunkline.edges.edge import Surroundings
from trunkline.edges.exchange import SignInAddress
from trunkline.edges.mounts import oauth
from trunkline.edges.mounts.callback import CALLBACK_PATH
from trunkline.edges.mounts.names import EDGE
from trunkline.edges.mounts.oauth import Challenge, Client, Granted
from trunkline.edges.mounts.sign_in_file import Kept, SignInFile
from trunkline.edges.mounts.sign_in_requests import ask, check_place, is_public_place
from trunkline.error_words import in_words
from trunkline.errors import ConfigError, SecretMissing, SignInRefused
from trunkline.events import Noticed
from trunkline.secret_references import Found

log = logging.getLogger("trunkline")

# A person reads a page, types a password, finds a second factor.
PENDING_S: Final = 600.0
# A token is renewed so long before it ends: our clock and theirs differ, and a request takes its time.
EARLY_S: Final = 30.0
# Two renewals are so far apart: each token is one more text for the masker to look for.
RENEWALS_APART_S: Final = 20.0
# As much as goes into an address with everything else.
MAX_SCOPE_CHARS: Final = 4096
# RFC 7636 wants 43 characters at least.
SECRET_BYTES: Final = 32


class _Pending(Struct):
    """A person is on his way."""

    state: str
    verifier: str
    redirect_uri: str
    until: float
    # With which the code is exchanged; without tokens yet.
    kept: Kept
    names_issuer: bool
    may_be_private: bool


class SigningIn:
    """Of one server."""

    def __init__(self, given: Surroundings, server: McpServer) -> None:
        assert server.url is not None
        self._given = given
        self._server = server
        self._url = server.url
        self._file = SignInFile(given.home, given.key, server.agent_id, server.url, given.entropy)
        self._kept: Kept | None = None
        self._is_loaded = False
        self._pending: _Pending | None = None
        self._renewing = asyncio.Lock()
        self._renewed_at = float("-inf")
        self._asked = Challenge()
        # Set whenever there are tokens that were not there before.
        self.done = asyncio.Event()
        # Whether a person has to sign in before anything else can be done, and what came of the last attempt.
        self.is_wanted = False
        self.last = ""

    @property
    def is_pending(self) -> bool:
        """Whether a person is on his way."""
        return self._pending is not None and self._given.feed.now().mono < self._pending.until

    # -- tokens --------------------------------------------------------------------------------------------------------

    async def authorization(self) -> str:
        """What the header of a request says; empty if nobody signed in. ``Unreachable`` if it cannot be renewed now."""
        await self._load()
        kept = self._kept
        if kept is None or not kept.access_token:
            return ""
        if kept.expires_at is not None and kept.expires_at - EARLY_S < self._given.feed.now().wall:
            await self._renew(kept.access_token)
        kept = self._kept
        return "" if kept is None or not kept.access_token else f"Bearer {kept.access_token}"

    async def refused(self, used: str, header: str) -> bool:
        """A request with this authorization was answered 401; whether it can be sent again with another one."""
        self._asked = oauth.challenge(header)
        await self._load()
        if used and self._kept is not None:
            await self._renew(used.removeprefix("Bearer "))
            if self._kept.access_token and f"Bearer {self._kept.access_token}" != used:
                return True
            # What it was given last is not taken, and there is no other.
            await self._keep(replace(self._kept, access_token="", refresh_token="", expires_at=None))
        self.is_wanted = True
        return False

    def wants_more(self, header: str) -> bool:
        """A request was answered 403: whether for want of a scope, which the next sign-in then asks for."""
        asked = oauth.challenge(header)
        if asked.error != "insufficient_scope" or self._kept is None:
            return False
        self._asked = replace(asked, scope=" ".join(dict.fromkeys(f"{self._kept.scope} {asked.scope}".split())))
        return True

    async def _renew(self, used: str) -> None:
        """Another token than this one, if there can be one."""
        async with self._renewing:
            kept = self._kept
            if kept is None or kept.access_token != used:
                return
            now = self._given.feed.now()
            is_over = kept.expires_at is not None and kept.expires_at <= now.wall
            if not kept.refresh_token or now.mono - self._renewed_at < RENEWALS_APART_S:
                if is_over:
                    await self._keep(replace(kept, access_token="", expires_at=None))
                return
            self._renewed_at = now.mono
            given = {"grant_type": "refresh_token", "refresh_token": kept.refresh_token, "resource": kept.resource}
            try:
                # The operator signed in there: that it may be asked was decided then.
                found = await self._tokens(kept, given, may_be_private=True)
            except SignInRefused as refused:
                log.warning("%s: its token was not renewed: %s", self._server.agent_id, refused)
                await self._keep(replace(kept, access_token="", refresh_token="", expires_at=None))
                return
            await self._keep(self._with(kept, found))

    async def _tokens(self, kept: Kept, given: dict[str, str], *, may_be_private: bool) -> Granted:
        who = Client(kept.client_id, kept.client_secret, kept.auth_method)
        headers, body = oauth.token_request(who, given)
        status, data = await ask("POST", kept.token_endpoint, headers, body, may_be_private=may_be_private)
        if status >= 500 or status == 429:
            raise Unreachable(f"the authorization server answered HTTP {status}")
        if status != 200:
            why = oauth.reason(data)
            raise SignInRefused(f"the authorization server refused (HTTP {status}{f', {why}' if why else ''})")
        return oauth.checked_tokens(oauth.document(Granted, data, "the answer with tokens"))

    def _with(self, kept: Kept, found: Granted) -> Kept:
        seconds = oauth.lifetime_s(found)
        return replace(
            kept,
            access_token=found.access_token,
            # One that is not replaced stays good (RFC 6749, 6).
            refresh_token=found.refresh_token or kept.refresh_token,
            expires_at=None if seconds is None else self._given.feed.now().wall + seconds,
            scope=kept.scope if found.scope is None else found.scope[:MAX_SCOPE_CHARS],
        )

    # -- what is kept --------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        if self._is_loaded:
            return
        try:
            found = await asyncio.to_thread(self._file.read)
        except ConfigError as problem:
            log.warning("%s: what is kept of its sign-in is not used: %s", self._server.agent_id, problem)
            found = None
        if not self._is_loaded:
            self._is_loaded = True
            self._kept = found
            self._known(found)

    async def _keep(self, kept: Kept) -> None:
        self._known(kept)
        self._kept = kept
        try:
            await asyncio.to_thread(self._file.write, kept)
        except OSError as error:
            text = "%s: its sign-in is not kept over a restart: %s"
            log.warning(text, self._server.agent_id, in_words(error))

    def _known(self, kept: Kept | None) -> None:
        for name in ("access_token", "refresh_token", "client_secret"):
            secret = "" if kept is None else getattr(kept, name)
            if len(secret) >= oauth.SHORTEST_TOKEN:
                self._given.know_secret(f"{self._server.agent_id} {name}", secret)

    async def forget(self) -> None:
        """Sign out: what is kept is gone. The authorization server is not told."""
        self._pending, self._kept, self._is_loaded = None, None, True
        self.is_wanted, self.last = True, ""
        await asyncio.to_thread(self._file.remove)
        self._given.feed.feed([Noticed("mounts.signed_out", EDGE, who=self._server.agent_id)])

    # -- a person ------------------------------------------------------------------------------------------------------

    async def begin(self, base: str) -> SignInAddress:
        """The address for a person to open. ``base`` is where a browser of his finds us.

        ``SignInRefused`` says why nobody can sign in there.
        """
        await self._load()
        redirect_uri = f"{base}{CALLBACK_PATH}"
        try:
            pending, endpoint = await self._prepared(redirect_uri)
        except Unreachable as problem:
            raise SignInRefused(f"cannot be reached: {problem}") from None
        self._pending, self.last = pending, ""
        parameters = {
            "response_type": "code",
            "client_id": pending.kept.client_id,
            "redirect_uri": redirect_uri,
            "scope": pending.kept.scope,
            "state": pending.state,
            "code_challenge": oauth.challenge_of(pending.verifier),
            "code_challenge_method": oauth.S256,
            "resource": pending.kept.resource,
        }
        return SignInAddress(oauth.address(endpoint, parameters), pending.kept.issuer, PENDING_S)

    async def _prepared(self, redirect_uri: str) -> tuple[_Pending, str]:
        wanted = self._server.oauth
        described = await self._described()
        resource = oauth.checked_resource(described, self._url)
        issuers = described.authorization_servers or []
        if wanted.issuer and wanted.issuer not in issuers:
            raise SignInRefused("it names another authorization server than the `issuer` of its `oauth`")
        if not issuers:
            raise SignInRefused("it names no authorization server")
        issuer = wanted.issuer or issuers[0]
        # Whom the operator named, or who is where the server is, may be on a private network.
        may_be_private = bool(wanted.issuer) or not await is_public_place(self._url)
        server = await self._authorization_server(issuer, may_be_private=may_be_private)
        await check_place(server.authorization_endpoint, may_be_private=may_be_private)
        scope = oauth.scopes(wanted.scope, self._asked, described, server)
        kept = Kept(issuer, server.token_endpoint, resource, "", scope=scope)
        kept = await self._as_client(kept, server, redirect_uri, may_be_private=may_be_private)
        names_issuer = bool(server.authorization_response_iss_parameter_supported)
        state, verifier = self._secret(), self._secret()
        until = self._given.feed.now().mono + PENDING_S
        pending = _Pending(state, verifier, redirect_uri, until, kept, names_issuer, may_be_private)
        return pending, server.authorization_endpoint

    async def _described(self) -> oauth.ResourceMetadata:
        for url in oauth.resource_metadata_urls(self._url, self._asked):
            # In the place that the operator configured, wherever that is.
            status, data = await ask("GET", url, {}, may_be_private=True)
            if status == 200:
                return oauth.document(oauth.ResourceMetadata, data, "what it says of itself")
        raise SignInRefused("it does not say where to sign in: a token that you have goes into `headers`")

    async def _authorization_server(self, issuer: str, *, may_be_private: bool) -> oauth.ServerMetadata:
        for url in oauth.server_metadata_urls(issuer):
            status, data = await ask("GET", url, {}, may_be_private=may_be_private)
            if status == 200:
                found = oauth.document(oauth.ServerMetadata, data, "what the authorization server says of itself")
                oauth.checked_server(found, issuer)
                return found
        raise SignInRefused("its authorization server does not describe itself")

    async def _as_client(
        self, kept: Kept, server: oauth.ServerMetadata, redirect_uri: str, *, may_be_private: bool
    ) -> Kept:
        """As whom we ask: as the operator says, as his document says, as we are known there, or as somebody new."""
        wanted, before = self._server.oauth, self._kept
        methods = server.token_endpoint_auth_methods_supported
        if wanted.client_id:
            try:
                found = await asyncio.to_thread(Found, {"client_secret": wanted.client_secret}, os.environ)
            except SecretMissing as missing:
                raise SignInRefused(f"a secret is missing: {missing}") from None
            who = oauth.client(wanted.client_id, found.texts["client_secret"], methods)
            return self._known_as(kept, who, "")
        if wanted.client_document and server.client_id_metadata_document_supported:
            return self._known_as(kept, oauth.client(wanted.client_document, "", methods), "")
        if before is not None and (before.issuer, before.redirect_uri) == (kept.issuer, redirect_uri):
            who = Client(before.client_id, before.client_secret, before.auth_method)
            return self._known_as(kept, who, redirect_uri)
        if not server.registration_endpoint:
            key = "client_document" if server.client_id_metadata_document_supported else "client_id"
            raise SignInRefused(f"its authorization server registers nobody by itself: set `oauth.{key}`")
        body, headers = oauth.registration(redirect_uri, kept.scope), {"content-type": "application/json"}
        place = server.registration_endpoint
        status, data = await ask("POST", place, headers, body, may_be_private=may_be_private)
        if status not in {200, 201}:
            why = oauth.reason(data)
            raise SignInRefused(f"registration was refused (HTTP {status}{f', {why}' if why else ''})")
        who = oauth.registered_client(oauth.document(oauth.Registered, data, "the registration"), redirect_uri)
        return self._known_as(kept, who, redirect_uri)

    def _known_as(self, kept: Kept, who: Client, redirect_uri: str) -> Kept:
        found = replace(
            kept,
            client_id=who.client_id,
            client_secret=who.secret,
            auth_method=who.auth_method,
            redirect_uri=redirect_uri,
        )
        self._known(found)
        return found

    def is_state(self, state: str) -> bool:
        """Whether this is the state of the person who is on his way."""
        return self._pending is not None and hmac.compare_digest(self._pending.state.encode(), state.encode())

    async def finish(self, *, code: str, issuer: str | None, error: str) -> str:
        """A browser came back with the state; why that led to nothing, or an empty text. The state is spent."""
        pending, self._pending = self._pending, None
        assert pending is not None
        # Whoever looks meanwhile still waits.
        self.last = "waiting"
        try:
            if self._given.feed.now().mono >= pending.until:
                raise SignInRefused("it took too long; begin again")
            # RFC 9207: an answer that another server made this browser bring is not taken.
            is_other = pending.names_issuer if issuer is None else issuer != pending.kept.issuer
            if is_other:
                raise SignInRefused("the answer is not from the authorization server that was asked")
            if error or not code:
                why = oauth.word(error)
                raise SignInRefused(f"the authorization server said no{f' ({why})' if why else ''}")
            given = {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": pending.redirect_uri,
                "code_verifier": pending.verifier,
                "resource": pending.kept.resource,
            }
            found = await self._tokens(pending.kept, given, may_be_private=pending.may_be_private)
        except (SignInRefused, Unreachable) as problem:
            self.last = str(problem)
            return self.last
        await self._keep(self._with(pending.kept, found))
        # A token that is minutes old may be renewed at once, if the server does not take it.
        self._renewed_at = float("-inf")
        self.is_wanted, self.last = False, "done"
        self._given.feed.feed([Noticed("mounts.signed_in", EDGE, who=self._server.agent_id)])
        self.done.set()
        return ""

    def _secret(self) -> str:
        return base64.urlsafe_b64encode(self._given.entropy(SECRET_BYTES)).rstrip(b"=").decode()
