"""Who an OSSA agent is, and whom it talks to: its two key pairs, the exchange's keys, and whose certificate it trusts.

Owns reading what ``trunkline token new ossa --json`` printed, and the choice of trust: a pin, a file of authorities,
the certificate in the exchange's home folder, or the authorities of this system, in this order. Does not own sockets.

Invariant: a connection is made only to a server that one of these vouches for, with TLS 1.3.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from msgspec import Struct
from nacl.signing import VerifyKey

from trunkline import hints, key_files
from trunkline.addresses import is_loopback
from trunkline.edges import tls
from trunkline.edges.ossa import signing
from trunkline.edges.ossa.messages import UNAUTHORIZED as NOT_PROVEN
from trunkline.edges.ossa.messages import Identity, Message, Refused
from trunkline.edges.ossa.reading import AGENT_TYPE
from trunkline.errors import ConfigError, ExchangeUnreachable
from trunkline.model import AGENT_ID

DEFAULT_TYPE: Final = "worker"
HOME: Final = "~/.trunkline"
EXPECTED: Final = "expected what `trunkline token new ossa --agent ID --json` prints: agent, jwk and enc_jwk"


class OwnIdentity(Struct, frozen=True):
    """An agent's name and its private keys."""

    identity: Identity
    signs: signing.Key
    opens: OKPKey


def read_identity(
    given: str | Path | Mapping[str, Any] | None,
    agent_type: str | None = None,
    instance_name: str | None = None,
    version: str | None = None,
) -> OwnIdentity:
    """The identity in a file, or in the object that it holds; ``OSSA_IDENTITY`` names the file if nothing is given."""
    place = ""
    if not isinstance(given, Mapping):
        place = str(given or os.environ.get("OSSA_IDENTITY") or "")
        if not place:
            raise ConfigError(
                "an identity is needed: a file with what `trunkline token new ossa --agent ID --json` prints"
            )
        given = _read_file(Path(place))
    try:
        jwk, enc_jwk, agent_id = given["jwk"], given["enc_jwk"], given["agent"]
        signs = signing.key_of(signing.decoded(jwk["d"]))
        opens = OKPKey.import_key({name: str(enc_jwk[name]) for name in ("kty", "crv", "x", "d", "kid")})
    except (KeyError, TypeError, ValueError, JoseError):
        raise ConfigError(EXPECTED, place) from None
    found = agent_type or given.get("type") or DEFAULT_TYPE
    if not isinstance(agent_id, str) or AGENT_ID.fullmatch(agent_id) is None:
        raise ConfigError(f"{agent_id!r} is no agent id", place)
    if not isinstance(found, str) or AGENT_TYPE.fullmatch(found) is None:
        raise ConfigError(f"{found!r} is no agent type: {AGENT_TYPE.pattern}", place)
    return OwnIdentity(Identity(agent_id, found, instance_name, version), signs, opens)


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(key_files.read_private(path.expanduser()))
    except FileNotFoundError:
        raise ConfigError("there is no such file", str(path)) from None
    except ValueError:
        raise ConfigError(EXPECTED, str(path)) from None
    if not isinstance(found, dict):
        raise ConfigError(EXPECTED, str(path))
    return found


# --- the exchange -----------------------------------------------------------------------------------------------------


class ExchangeKeys(Struct, frozen=True):
    """The exchange's public keys: by ``kid`` those it signs with, and the one to encrypt for it."""

    checks: Mapping[str, VerifyKey]
    seals: OKPKey

    def check(self, message: Message, data: bytes) -> None:
        """``Refused`` unless the exchange signed this."""
        if message.signature is None:
            raise Refused(NOT_PROVEN, "not signed")
        claim = signing.read_claim(message.signature)
        key = self.checks.get(claim.kid)
        if key is None:
            raise UnknownKey
        signing.check(data, claim, key)


class UnknownKey(Refused):
    """Signed with a key that the exchange did not have when it was asked for its keys."""

    def __init__(self) -> None:
        super().__init__(NOT_PROVEN, "signed with a key that is not the exchange's")


def read_keys(body: bytes) -> ExchangeKeys:
    """The keys in an answer of ``GET /ossa/v1/keys``; ``ExchangeUnreachable`` if it is none."""
    try:
        keys: list[dict[str, Any]] = msgspec.json.decode(body)["keys"]
        checks = {str(key["kid"]): signing.read_public(key) for key in keys if key.get("use") == "sig"}
        seals = [OKPKey.import_key({**key}) for key in keys if key.get("use") == "enc"]
        return ExchangeKeys(checks, seals[0])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, IndexError, AttributeError, JoseError):
        raise ExchangeUnreachable("its answer to GET /ossa/v1/keys is no set of keys") from None


class Place(Struct, frozen=True):
    """Where the exchange is, and why it is believed to be the one."""

    url: str | None = None
    home: Path | None = None
    pin: str = ""
    ca: Path | None = None

    def find(self) -> tuple[str, ssl.SSLContext]:
        """Its address now, and the terms of a connection; ``ExchangeUnreachable`` if it does not run."""
        url = self.url or self._from_home()
        if urlsplit(url).scheme != "https":
            raise ConfigError(f"{url}: expected https://HOST:PORT")
        return url.rstrip("/"), self._context(url)

    def _folder(self) -> Path:
        return Path(self.home or os.environ.get("TRUNKLINE_HOME") or HOME).expanduser()

    def _from_home(self) -> str:
        folder = self._folder()
        try:
            url = json.loads((folder / "ready.json").read_bytes())["ossa"]
        except (OSError, ValueError, KeyError, TypeError):
            start = hints.command("up", None if self.home is None else str(folder))
            raise ExchangeUnreachable(f"no exchange runs in {folder}: `{start}` starts one") from None
        if not isinstance(url, str):
            raise ExchangeUnreachable(f"the exchange in {folder} does not speak OSSA now")
        return url

    def _context(self, url: str) -> ssl.SSLContext:
        if self.pin:
            return tls.client_context(self.pin)
        if self.ca is not None:
            try:
                context = ssl.create_default_context(cafile=self.ca)
            except (OSError, ssl.SSLError):
                raise ConfigError("holds no certificates of authorities", str(self.ca)) from None
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            return context
        is_here = is_loopback(urlsplit(url).hostname or "")
        if is_here and (self.home is not None or self.url is None):
            try:
                certificate = tls.shown_certificate(self._folder() / "keys" / tls.OWN_FILE).decode()
            except FileNotFoundError:
                raise ExchangeUnreachable(f"no exchange has run in {self._folder()}: it has no certificate") from None
            return tls.client_context(tls.pin_of(ssl.PEM_cert_to_DER_cert(certificate)))
        return tls.client_context()
