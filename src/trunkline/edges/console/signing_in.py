"""Who is at the page: one-time codes, and sign-ins, each a cookie and a key that belongs to it.

Owns how long each is good, how many there are, and the file that keeps sign-ins over a restart of the exchange. Does
not own headers and addresses (``routes``). A code is spent by its first use. Of a sign-in only the hash of its cookie
is kept; its key is derived from that hash and a key of this operator, so that neither can be had from the file.

The cookie alone opens nothing: browsers send it to every port of this machine, so a program that listens on another
one may see it. The key stays with the page, whose origin includes the port (decision 98).

Invariant: a code opens once; a sign-in that was closed, has expired or was made with an operator's token that is not
the one of now never opens again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from trunkline import key_files
from trunkline.error_words import in_words
from trunkline.errors import ConfigError
from trunkline.model import Now

# A person who starts the exchange opens the page within minutes; `trunkline console` makes another code at any time.
CODE_S: Final = 900.0
# Codes that are not spent: one for each terminal that somebody asked in, and some more.
MAX_CODES: Final = 16
# A week of work, and a new address after it.
SIGN_IN_S: Final = 7 * 86_400
# Browsers and profiles of one person. The oldest makes room.
MAX_SIGN_INS: Final = 64
# Nobody guesses 256 bits.
SECRET_BYTES: Final = 32
FILE: Final = "console.json"


class SignIn(Struct, frozen=True):
    """Somebody who opened an address with a code."""

    # What the cookie is known by.
    sha256: str
    # Both in seconds of the wall clock.
    since: int
    expires: int


class NewSignIn(Struct, frozen=True):
    """The same at its beginning: the one time that its secrets are said."""

    cookie: str
    key: str
    expires: int


class _Kept(Struct, frozen=True):
    """What the file holds."""

    # Whose they are, as nobody can tell who does not have the key.
    mark: str
    sign_ins: list[SignIn]


class SignIns:
    """All codes and sign-ins of one exchange. ``operator_key`` is on no record, and another one with another token."""

    def __init__(self, operator_key: bytes, entropy: Callable[[int], bytes], folder: Path) -> None:
        self._operator_key = operator_key
        self._mark = hmac.new(operator_key, b"trunkline console sign-ins", hashlib.sha256).hexdigest()
        self._entropy = entropy
        self._file = folder / FILE
        # By the hash of a code: when it expires, by the clock that only goes forward.
        self._codes: dict[str, float] = {}
        self._open: dict[str, SignIn] = {}
        # Why sign-ins are forgotten at the next start; empty if they are kept.
        self.trouble = ""

    def load(self, now: Now) -> None:
        """Take up what an earlier run of the exchange kept. ``ConfigError`` if others can read the file."""
        try:
            found = msgspec.json.decode(key_files.read_private(self._file), type=_Kept)
        except (FileNotFoundError, msgspec.MsgspecError):
            return
        if hmac.compare_digest(found.mark.encode(), self._mark.encode()):
            self._open = {one.sha256: one for one in found.sign_ins[-MAX_SIGN_INS:] if one.expires > now.wall}

    # -- codes ---------------------------------------------------------------------------------------------------------

    def new_code(self, now: Now) -> str:
        """A code for an address."""
        code = self._secret()
        self._codes = {known: at for known, at in self._codes.items() if at > now.mono}
        self._codes[_digest(code)] = now.mono + CODE_S
        if len(self._codes) > MAX_CODES:
            del self._codes[next(iter(self._codes))]
        return code

    def try_spend(self, code: str, now: Now) -> bool:
        """Whether this code is good; from here on it is not any more."""
        expires = self._codes.pop(_digest(code), None)
        return expires is not None and now.mono < expires

    # -- sign-ins ------------------------------------------------------------------------------------------------------

    def begin(self, now: Now) -> NewSignIn:
        """Somebody is let in. Whatever cookie he came with, he gets a new one."""
        cookie = self._secret()
        made = SignIn(_digest(cookie), int(now.wall), int(now.wall) + SIGN_IN_S)
        self._open = {known: one for known, one in self._open.items() if one.expires > now.wall}
        if len(self._open) >= MAX_SIGN_INS:
            del self._open[next(iter(self._open))]
        self._open[made.sha256] = made
        self._keep()
        return NewSignIn(cookie, self.key_of(made), made.expires)

    def find(self, cookie: str, now: Now) -> SignIn | None:
        """Whose cookie this is."""
        found = self._open.get(_digest(cookie))
        return found if found is not None and now.wall < found.expires else None

    def is_open(self, sign_in: SignIn, now: Now) -> bool:
        """Whether it is still good."""
        return sign_in.sha256 in self._open and now.wall < sign_in.expires

    def end(self, sign_in: SignIn) -> None:
        """It is over."""
        if self._open.pop(sign_in.sha256, None) is not None:
            self._keep()

    def key_of(self, sign_in: SignIn) -> str:
        """The key that its page has."""
        mac = hmac.new(
            self._operator_key, b"trunkline console page " + sign_in.sha256.encode(), hashlib.sha256
        ).digest()
        return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()

    def is_key_of(self, sign_in: SignIn, key: str) -> bool:
        """Whether this is that key."""
        return hmac.compare_digest(self.key_of(sign_in).encode(), key.encode())

    def channel_secret(self, sign_in: SignIn) -> bytes:
        """What subscriptions of its pages are signed with."""
        return hmac.new(
            self._operator_key, b"trunkline console line " + sign_in.sha256.encode(), hashlib.sha256
        ).digest()

    @property
    def count(self) -> int:
        """How many sign-ins there are."""
        return len(self._open)

    def _secret(self) -> str:
        return base64.urlsafe_b64encode(self._entropy(SECRET_BYTES)).rstrip(b"=").decode()

    def _keep(self) -> None:
        try:
            key_files.write_private(self._file, msgspec.json.encode(_Kept(self._mark, list(self._open.values()))))
        except (OSError, ConfigError) as error:
            self.trouble = f"{self._file} cannot be written ({in_words(error)}): sign-ins end with the exchange"
        else:
            self.trouble = ""


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
