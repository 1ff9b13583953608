r"""What a secret looks like: the rules that ``masking`` applies, and the judgement of named values.

The forms that others publish are a table of their own (``secret_forms``).

Each rule has a *seed*, which one Hyperscan scan over everything looks for, and a ``find`` that is asked only where a
seed was seen: it says which bytes to replace, or that this is none. Patterns are written for JSON as it stands on the
wire, inside strings: a quote arrives as ``\"`` and a line end as ``\n``.

Invariant: what ``find`` names lies within one string and cuts no escape sequence, or is one whole JSON value, so JSON
stays JSON. Every repetition is bounded or ends where it cannot begin again. UUIDs, hashes, call ids and fingerprints
are no secrets and match nothing here.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
import string
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from trunkline.ledger.secret_forms import FORMS, ISSUERS_WITHOUT_FORM, SecretForm

__all__ = ["RULES", "TOKEN_PREFIX", "Finding", "MaskingRule", "inside_escape"]

# Our own credentials, launch and standing: this and 43 characters of URL-safe base64, 256 bits, or 28 where a protocol
# wants 32 in all.
TOKEN_PREFIX: Final = "tlk_"  # noqa: S105 - the form, not a token


class Finding(NamedTuple):
    """Replace ``[start, end)`` by the mark of a rule; ``quoted`` where the mark has to bring its own quotes."""

    start: int
    end: int
    quoted: bool = False


Find = Callable[[bytes, int, int], Finding | None]


class MaskingRule(NamedTuple):
    """One kind of secret: where ``seed``, a Hyperscan expression, was seen, ``find(data, start, end)`` is asked."""

    name: str
    seed: bytes
    find: Find


def inside_escape(data: bytes, at: int) -> bool:
    r"""Whether cutting at ``at`` would cut an escape: the ``n`` of ``\n``, a digit of ``\u00e9``."""
    if b"\\" not in data[max(0, at - 5) : at]:
        return False
    for back in range(1, min(5, at) + 1):
        if data[at - back] == 0x5C and (back == 1 or data[at - back + 1] == 0x75):
            run = at - back
            while run and data[run - 1] == 0x5C:
                run -= 1
            # Of a run of backslashes every second one is escaped by the one before it.
            if (at - back - run) % 2 == 0:
                return True
    return False


_WORD_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")


def _begins_a_word(data: bytes, start: int) -> bool:
    """Whether no letter stands before it; the last one of an escape is none."""
    return start == 0 or data[start - 1] not in _WORD_BYTES or inside_escape(data, start - 1)


# Compiled where one is needed first: all of them take 40 ms, and a process that masks meets few.
@functools.cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern)


def _by(pattern: bytes, check: Callable[[bytes], bool] | None = None) -> Find:
    """Find the group ``secret`` of a pattern that begins where the seed does."""

    def find(data: bytes, start: int, _end: int) -> Finding | None:
        match = _compiled(pattern).match(data, start)
        if match is None or (check is not None and not check(match["secret"])):
            return None
        first, last = match.span("secret")
        return None if inside_escape(data, first) else Finding(first, last)

    return find


# --- tokens with a form of their own ----------------------------------------------------------------------------------

# The start of a word. The letter of an escape is not part of the word after it: `\nsk-…`.
_LEFT: Final = rb"(?:\\[bfnrt]|\\u[0-9a-fA-F]{4}|\b)"


def _token(
    name: str, seed: bytes, more: bytes = b"", *, left: bool = False, check: Callable[[bytes], bool] | None = None
) -> MaskingRule:
    """A token that begins with ``seed`` and goes on with ``more``: one character class, or an expression."""
    before = _LEFT if left else b""
    # Longer than 1,024 characters is no token. Without the bound, a body of one long run would be read again and again.
    tail = more + b"{0,1024}+" if more.endswith(b"]") else more
    return MaskingRule(name, before + seed, _by(before + b"(?P<secret>" + seed + tail + b")", check))


def _behind(name: str, before: bytes, seed: bytes, then: bytes) -> MaskingRule:
    """A token whose beginning has no form: ``seed`` is looked for, ``before`` stands before it, ``then`` follows."""
    whole = before + b"(?P<seed>" + seed + b")" + then + b"{0,1024}+"

    def find(data: bytes, start: int, _end: int) -> Finding | None:
        for first in range(max(0, start - _LONGEST_BEFORE), start):
            match = _compiled(whole).match(data, first)
            if match is not None and match.start("seed") == start and _begins_a_word(data, first):
                return None if inside_escape(data, first) else Finding(*match.span())
        return None

    return MaskingRule(name, seed, find)


def _base64_of(text: bytes) -> bytes:
    """An expression for the base64, in both alphabets, of anything that contains ``text``: at three alignments."""
    return b"(?:" + b"|".join(_aligned(text, lead, 0) for lead in (0, 2, 4)) + b")"


def _aligned(text: bytes, lead: int, enough: int) -> bytes:
    """The base64 of anything that contains ``text`` after ``lead`` bits of a character.

    Characters that it shares with a neighbour are left out where ``enough`` are its own: plain text is found faster.
    """
    pattern = "?" * lead + "".join(f"{byte:08b}" for byte in text)
    pattern += "?" * (-len(pattern) % 6)
    wanted = [pattern[place : place + 6] for place in range(0, len(pattern), 6)]
    own = [want for want in wanted if "?" not in want]
    return "".join(map(_letters, own if enough and len(own) >= enough else wanted)).encode()


_BASE64_LETTERS: Final = (*string.ascii_uppercase, *string.ascii_lowercase, *string.digits, r"+\-", "/_")


# Every process of the exchange makes the rules when it starts, and asks thousands of times for a few hundred of these.
@functools.cache
def _letters(want: str) -> str:
    """An expression for the characters of base64, in both alphabets, that stand for such six bits."""
    known, bits = int(want.replace("0", "1").replace("?", "0"), 2), int(want.replace("?", "0"), 2)
    fitting = "".join(letter for number, letter in enumerate(_BASE64_LETTERS) if number & known == bits)
    return fitting if len(fitting) == 1 else f"[{fitting}]"


def _has_a_digit(token: bytes) -> bool:
    return re.search(rb"[0-9]", token) is not None


_LONGEST_BEFORE: Final = 26
_WORD: Final = rb"[A-Za-z0-9_-]"
_NO_MORE: Final = rb"(?![A-Za-z0-9])"

_TOKENS: Final = (
    _token("trunkline-token", rb"tlk_[A-Za-z0-9_-]{28}", _WORD),
    # 32 bytes are 43 characters, 47 are 63; the first and the last may share their bits with a neighbour.
    _token("trunkline-token", _base64_of(b"tlk_") + rb"[A-Za-z0-9+/_-]{36}", rb"[A-Za-z0-9+/_-]{0,21}"),
    _token("trunkline-token", rb"746[cC]6[bB]5[fF][0-9a-fA-F]{56}", rb"(?:[0-9a-fA-F]{30})?"),
    _token("trunkline-token", rb"%74%6[cC]%6[bB]%5[fF](?:%[0-9a-fA-F]{2}){28}", rb"(?:%[0-9a-fA-F]{2}){0,15}"),
    _token("openai-key", rb"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20}", _WORD, left=True, check=_has_a_digit),
    _token("openai-key", rb"sk-[A-Za-z0-9]{32}", rb"[A-Za-z0-9]", left=True),
    # Telegram and Discord bots, and applications of Azure: no fixed beginning, and yet a form of their own.
    _token("vendor-token", rb"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}", rb"(?![A-Za-z0-9_-])"),
    _behind(
        "vendor-token",
        rb"[MNO][A-Za-z0-9_-]{23,25}",
        # Longer seeds of this kind make every scan a fifth slower.
        rb"\.[GXYZ][A-Za-z0-9_-]{5}\.",
        rb"[A-Za-z0-9_-]{27}[A-Za-z0-9_-]",
    ),
    _behind("vendor-token", rb"[A-Za-z0-9_~.]{3}", rb"[0-9]Q~", rb"[A-Za-z0-9_~.-]{31}[A-Za-z0-9_~.-]"),
    # Up to the end line, also over the line ends of a log; a key whose end is missing goes as far as its alphabet does.
    # The largest, RSA of 16,384 bits, has 13 KiB.
    _token(
        "private-key",
        rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY",
        rb"(?: BLOCK)?-----(?:[A-Za-z0-9+/=:,.\s]|\\++[nrt]|-(?!----)){0,16384}+(?:-----END [A-Z0-9 ]{0,40}-----)?",
    ),
)


# --- the forms that others publish ------------------------------------------------------------------------------------

_BASE64_BYTES: Final = _WORD_BYTES | frozenset(b"+/-")
_BASE64_RUN: Final = re.compile(rb"[A-Za-z0-9+/_-]{0,2048}+")
_TO_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_PIECE: Final = re.compile(r"(?P<one>\[[^\]]+\])\{(?P<times>[0-9]+)\}|(?P<plain>\\\.|[A-Za-z0-9_/:-])")
# So many characters after its beginning make it worth to look at; the whole form is judged then. More cost time.
SEED_CHARACTERS: Final = 16
# A shorter beginning is found in every picture. Five characters of its own are in a picture of 4 MiB once or twice.
_SHORTEST_ENCODED: Final = 3
_OWN_CHARACTERS: Final = 5
_MOST_BEGINNINGS: Final = 16
_SEARCHED_BYTES: Final = 1536


def _cut(then: str) -> str:
    """The beginning of what has to follow, if it is a plain sequence: long seeds cost memory and time to compile."""
    cut, left = "", SEED_CHARACTERS
    at = 0
    while at < len(then) and left > 0:
        piece = _PIECE.match(then, at)
        if piece is None:
            return then
        times = min(int(piece["times"] or 1), left)
        cut += f"{piece['one']}{{{times}}}" if piece["one"] else piece["plain"]
        left -= times
        at = piece.end()
    return cut


def _published(form: SecretForm) -> Iterator[MaskingRule]:
    """The rules of one published form, each with one seed: a beginning of it, as it is and in base64.

    One seed for each beginning: Hyperscan is a fifth slower with the same ones as alternatives.
    """
    begins = [begin.encode() for begin in form.begins.split()]
    longest_first = sorted(begins, key=len, reverse=True)
    # Longer than 1,024 characters is no token. Without the bound, a body of one long run would be read again and again.
    tail = b"[%b]{0,1024}+" % form.more.encode() if form.more else _NO_MORE
    whole = b"(?:" + b"|".join(map(re.escape, longest_first)) + b")" + form.then.encode() + tail
    then = _cut(form.then)

    def find(data: bytes, start: int, _end: int) -> Finding | None:
        match = _compiled(whole).match(data, start)
        if match is None or not _begins_a_word(data, start) or inside_escape(data, start):
            return None
        return Finding(*match.span())

    find_encoded = _find_encoded(whole)
    for begin in begins:
        yield MaskingRule(form.rule, re.escape(begin) + then.encode(), find)
    # So many differ in their last character only.
    for begin in begins if len(begins) <= _MOST_BEGINNINGS else [begins[0][:-1]]:
        if len(begin) >= _SHORTEST_ENCODED:
            for lead in (0, 2, 4):
                yield MaskingRule(form.rule, _aligned(begin, lead, _OWN_CHARACTERS), find_encoded)


def _find_encoded(whole: bytes) -> Find:
    """Find a form in what these bytes are the base64 of: the seed says only that it may begin here."""

    def find(data: bytes, start: int, _end: int) -> Finding | None:
        # The seed may begin with the second character.
        start -= start > 0 and data[start - 1] in _BASE64_BYTES
        run = _BASE64_RUN.match(data, start)
        assert run is not None
        text = run[0].translate(_TO_STANDARD)
        for lead in range(4):
            padded = b"A" * lead + text
            whole_bytes = len(padded) * 6 // 8
            decoded = base64.b64decode(padded + b"A" * (-len(padded) % 4))[:whole_bytes]
            match = _compiled(whole).search(decoded, 0, _SEARCHED_BYTES)
            if match is not None and match.start() <= 4:
                first = max(0, match.start() * 8 // 6 - lead)
                last = min(len(text), -(-match.end() * 8 // 6) - lead)
                return None if inside_escape(data, start + first) else Finding(start + first, start + last)
        return None

    return find


_PUBLISHED: Final = tuple(rule for form in FORMS for rule in _published(form))

_ISSUER_NAMED: Final = (
    rb"(?i:(?:"
    + "|".join(ISSUERS_WITHOUT_FORM).encode()
    + rb")(?:[ _.-]{0,2}(?:api|auth|access|personal|account|app)){0,2}"
    rb"(?:[ _.-]{0,2}(?:key|pat|id|sid|secret|token)){0,2}"
    rb"""(?: is)?\\{0,3}["']?\s{0,3}[:=]?\s{0,3}\\{0,3}["']?)"""
)


def _is_issued(value: bytes) -> bool:
    """Whether it looks like a key and not like a git id or a hash, which are hexadecimal."""
    return _looks_random(value, 20) and _HEXADECIMAL.fullmatch(value) is None


_HEXADECIMAL: Final = re.compile(rb"[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# Three parts signed, five encrypted.
_JWT: Final = (
    rb"(?P<secret>eyJ[A-Za-z0-9_-]{10,4096}+\.(?=[A-Za-z0-9_.-]{4})[A-Za-z0-9_-]{0,8192}+\.[A-Za-z0-9_-]{0,4096}+"
    rb"(?:\.[A-Za-z0-9_-]{1,8192}+\.[A-Za-z0-9_-]{1,4096}+)?)"
)


# --- headers, addresses, JWKs -----------------------------------------------------------------------------------------

_AUTH: Final = re.compile(rb"(?i:(?P<how>bearer|basic)(?:[ \t+]|%20){1,3})(?P<secret>[A-Za-z0-9+/_.~-]{8,2048}+={0,2})")


def _find_auth(data: bytes, start: int, _end: int) -> Finding | None:
    match = _AUTH.match(data, start)
    if match is None:
        return None
    secret = match["secret"]
    if match["how"].lower() == b"basic":
        try:
            # "Basic understanding" is English; `user:password` has a colon.
            good = b":" in base64.b64decode(secret + b"=" * (-len(secret) % 4), validate=True)
        except binascii.Error:
            good = False
    else:
        good = len(secret) >= 16 and re.search(rb"[0-9]", secret) is not None
    return Finding(*match.span("secret")) if good else None


_URL: Final = rb'://[^/\s:@"\\?#]{0,64}:(?P<secret>[^/\s@"\\]{1,128})@'
_SIGNED: Final = rb"(?i:[?&](?:x-amz-signature|x-goog-signature|signature|sig)=)(?P<secret>[A-Za-z0-9%/+=_-]{32,1024}+)"
_JWK: Final = rb'"d"\s{0,4}:\s{0,4}"(?P<secret>[A-Za-z0-9_-]{40,2048}+)"'


# --- named values: "password": "…" in JSON, password=… in text --------------------------------------------------------

# The judgement sees the whole word, so that `next_page_token` and `secret_name` are let go.
_SEED: Final = (
    rb"(?i:[A-Za-z0-9_.-]{0,40}(?:pass(?:word|wd|phrase|code)?|pwd?|secret|authorization|token|cookie|credentials|mnemonic|jwt"
    rb"|(?:api|secret|private|access|signing|encryption|master|account|shared|service|hmac|licen[cs]e|subscription)[_.-]?key"
    rb"|connection[_.-]?string|session[_.-]?id|(?:seed|recovery)[_.-]?phrase|(?:backup|recovery)[_.-]?codes?|cvv|pin)"
    rb"""\\{0,3}["']?\s{0,4}[=:])"""
)
# Any value under such a name is a secret.
_STRONG: Final = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "authorization", "mnemonic", "seedphrase",
    "recoveryphrase", "backupcodes", "recoverycodes", "apikey", "secretkey", "privatekey", "accesskey", "signingkey",
    "encryptionkey", "masterkey", "accountkey", "sharedkey", "servicekey", "hmackey", "connectionstring", "accesstoken",
    "authtoken", "refreshtoken", "sessiontoken", "bearertoken", "apitoken", "bottoken", "oauthtoken", "securitytoken",
    "dbpass", "userpass", "smtppass", "proxypass",
)  # fmt: skip
# One that looks like a secret is one.
_WEAK: Final = (
    "token", "cookie", "credentials", "jwt", "sessionid", "licensekey", "licencekey", "subscriptionkey", "backupcode",
    "recoverycode",
)  # fmt: skip
_WEAK_WORDS: Final = frozenset({"pass", "pin", "cvv"})
# Whole words only: `bypass` and `compass` are none, `admin_pass` and `rootPw` are.
_SHORT_WORD: Final = re.compile(rb"(?:[_.-](?i:pass|pw)|[a-z](?:Pass|Pw|PW))$")
# Tokens that only say where a list goes on, which request this is, or what a language model reads.
_NO_SECRET: Final = re.compile(
    r"(?:page|next|continuation|cursor|sync|progress|cancel|cancellation|idempotency|request|resume|change|start|end|eos|bos"
    r"|pad|unk|mask|sep|cls|stop|special|first|last|prev|previous|count|per|max|min|total)token$"
)

_HEAD: Final = re.compile(rb"""([A-Za-z0-9_.-]++)(\\{0,3}+["']?)(\s{0,4})([=:])""")
_OPENING: Final = re.compile(rb"""[=>]?\s{0,4}(\\{0,3}+["']|[\[0-9-]?)""")
# One JSON string without its quotes; one inside a JSON text inside a JSON string; one deeper, up to its first escape.
_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_NESTED: Final = re.compile(rb'(?:[^"\\]|\\[^"\\]|\\\\(?:[^"\\]|\\.)){0,8192}+', re.DOTALL)
_DEEPER: Final = re.compile(rb'(?:[^"\\]|\\[^"\\]){0,8192}+')
_SINGLE: Final = re.compile(rb"""[^'"\\]{0,1024}+""")
_BARE: Final = re.compile(rb"""[^\s"'\\,;&<>|(){}\[\]]{0,256}+""")
_NUMBER: Final = re.compile(rb"-?[0-9][0-9.eE+-]*+")
_STRINGS: Final = re.compile(rb'\[\s*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"\s*+,?\s*+)++\]', re.DOTALL)

_STAND_INS: Final = frozenset(
    b"null none nil undefined true false yes no string str number integer int boolean bool object array any bytes"
    b" required optional invalid missing expired empty unset unknown include omit same-origin default secret password"
    b" token passwd pwd bearer basic redacted masked hidden filtered (redacted) (masked) (hidden) (filtered)".split()
)
_PLACEHOLDER: Final = re.compile(
    rb"(?i)(?:\*+|x{3,}|\.{3,}|_+|-+|\?+|<[^>]*>|\$\{[^}]*\}|\$\([^)]*\)|\$[a-z_]+|%[a-z_]+%|\{\{.*\}\}|\{[a-z_.]*\}"
    rb"|%\([a-z_]+\)s|%s|\[(?:redacted|masked|hidden|filtered).*|your[-_ ].*)",
    re.DOTALL,
)
_CODE: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*+(?:(?:\.|->|::)[A-Za-z_][A-Za-z0-9_]*+)++")
_SPACE: Final = re.compile(rb"\s")
_DIGIT: Final = re.compile(rb"[0-9]")
_LETTER: Final = re.compile(rb"[A-Za-z]")
_SYMBOL: Final = re.compile(rb"[!@#$%^*+=~?/]")


@functools.lru_cache(maxsize=1024)
def _strength(written: bytes) -> tuple[str, int]:
    """The name without its separators (``AWS_SECRET-Key`` is ``awssecretkey``), and 2 strong, 1 weak, 0 no secret."""
    name = written.lower().translate(None, b"_.-").decode()
    if name.endswith("token") and _NO_SECRET.search(name):
        return name, 0
    if name.endswith(_STRONG):
        return name, 2
    # Whole words only of the short ones: `bypass`, `mapping`.
    return name, int(name.endswith(_WEAK) or name in _WEAK_WORDS or _SHORT_WORD.search(written) is not None)


def _is_stand_in(name: str, value: bytes) -> bool:
    """Whether a value only stands where a secret would: ``<password>``, ``${TOKEN}``, ``required``."""
    if value.lower() in _STAND_INS or _PLACEHOLDER.fullmatch(value):
        return True
    # The shell's PWD and OLDPWD are folders.
    return name.endswith("pwd") and value.startswith((b"/", b"~"))


def _looks_random(value: bytes, least: int) -> bool:
    return len(value) >= least and not _SPACE.search(value) and bool(_DIGIT.search(value) and _LETTER.search(value))


def _good_member(name: str, strength: int, value: bytes) -> bool:
    if not value or _is_stand_in(name, value):
        return False
    if strength == 2:
        return True
    if name in {"pin", "cvv"}:
        return re.fullmatch(rb"[0-9]{3,12}", value) is not None
    if name.endswith("cookie"):
        return b"=" in value
    if name.endswith(("pass", "pw", "code")):
        return _looks_random(value, 6) or (len(value) >= 6 and _SYMBOL.search(value) is not None)
    return _looks_random(value, 12) or (len(value) >= 24 and not _SPACE.search(value))


def _good_text(name: str, strength: int, value: bytes, *, quoted: bool, tight: bool, after: bytes) -> bool:
    if len(value) < 4 or _is_stand_in(name, value) or _CODE.fullmatch(value):
        return False
    if strength < 2:
        return _looks_random(value, 12)
    if quoted:
        return not _SPACE.search(value) or _DIGIT.search(value) is not None
    if after in {b"(", b"[", b"{"}:
        return False
    if tight:
        # `connect(user=user, password=stored)` is code; `PASSWORD=stored` in a file is not.
        return after not in {b",", b")"} or _DIGIT.search(value) is not None
    # "Password: required" is prose.
    return _looks_random(value, 6) or (len(value) >= 6 and _SYMBOL.search(value[:-1]) is not None)


def _find_named(data: bytes, start: int, end: int) -> Finding | None:
    if start and data[start - 1] == 0x5C and inside_escape(data, start):
        # `\npassword` is a password, `\u00e9token` a token.
        start += 5 if data[start] == 0x75 else 1
    head = _HEAD.match(data, start, end)
    if head is None:
        return None
    name, strength = _strength(head[1])
    if strength == 0:
        return None
    opening = _OPENING.match(data, end)
    assert opening is not None
    mark = opening[1]
    quoted = mark[-1:] in {b'"', b"'"}
    first = opening.end() if quoted else opening.start(1)
    if head[2] == b'"':
        return _member(data, first, mark, name, strength) if head[4] == b":" else None
    if mark[-1:] == b'"':
        if len(mark) % 2:
            # No backslash before it, or two: this quote ends the string, there is no value.
            return None
        value = (_NESTED if len(mark) == 2 else _DEEPER).match(data, first)
    else:
        value = (_SINGLE if quoted else _BARE).match(data, first)
    assert value is not None
    if quoted and head[2][-1:] == b'"':
        good = _good_member(name, strength, value[0])
    else:
        tight = head[4] == b"=" and not head[3] and opening.start(1) == end
        after = data[value.end() : value.end() + 1]
        good = _good_text(name, strength, value[0], quoted=quoted, tight=tight, after=after)
    return Finding(*value.span()) if good else None


def _member(data: bytes, first: int, mark: bytes, name: str, strength: int) -> Finding | None:
    """A member of a JSON object: the whole value goes, if it is a string, strings, or (for a password) a number."""
    if mark == b'"':
        value = _STRING.match(data, first)
        assert value is not None
        return Finding(*value.span()) if _good_member(name, strength, value[0]) else None
    if strength < 2:
        return None
    if mark == b"[":
        whole = _STRINGS.match(data, first)
    elif name.endswith(("password", "passwd", "passcode", "pwd", "secret")):
        whole = _NUMBER.match(data, first)
    else:
        return None
    return Finding(*whole.span(), quoted=True) if whole else None


_FLAG: Final = rb"(?i:--(?:[a-z]{1,16}-){0,2}(?:password|passwd|passphrase|secret|token|api-?key)\s{1,2})"


def _is_flag_value(value: bytes) -> bool:
    return len(value) >= 4 and not _is_stand_in("", value) and bool(_DIGIT.search(value) or _SYMBOL.search(value))


# --- where programs expect a password without a name for it -----------------------------------------------------------

# What cannot be part of a word on a command line: the end of it, of the string, or of the quotes around it.
_SHELL_WORD: Final = rb"""[^\s"'\\,;&<>|(){}\[\]]"""
# How the word before it begins, and the program that must have been named in the line before.
_COMMANDS: Final = (
    (rb"\s(?:-u|--user)[ =]['\"]?[A-Za-z0-9_.@-]{1,32}:", b"curl"),
    (rb"\s-p", b"mysql"),
    (rb"\s-p\s{0,2}['\"]?", b"sshpass"),
    (rb"(?i:\spassword\s{1,4})", b"machine "),
    (rb"(?i:\sidentified\s{1,4}by\s{1,4})'", b""),
)
_LINE_BYTES: Final = 200


def _is_argument(value: bytes) -> bool:
    """Whether it could be a password: `-u 1000:1000` is none, and neither is `-p$PASSWORD`."""
    return len(value) >= 4 and not _is_stand_in("", value) and _LETTER.search(value) is not None


def _command(start: bytes, program: bytes) -> MaskingRule:
    find = _by(start + rb"(?P<secret>" + _SHELL_WORD + rb"{1,256}+)", _is_argument)

    def find_after(data: bytes, at: int, end: int) -> Finding | None:
        return find(data, at, end) if program in data[max(0, at - _LINE_BYTES) : at] else None

    return MaskingRule("command-line", start + _SHELL_WORD, find_after)


_TAG: Final = rb"(?i:<[a-z0-9_.:-]{0,40}(?:password|passwd|passphrase|secret|token|api[_-]?key)>)"


RULES: Final = (
    *_TOKENS,
    *_PUBLISHED,
    MaskingRule(
        "vendor-token",
        _ISSUER_NAMED + rb"[A-Za-z0-9_-]{20}",
        _by(_ISSUER_NAMED + rb"(?P<secret>[A-Za-z0-9_-]{20,128}+)(?![A-Za-z0-9_+/=])", _is_issued),
    ),
    MaskingRule("jwt", rb"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_.-]{4}", _by(_JWT)),
    MaskingRule("auth-header", rb"(?i:(?:bearer|basic)(?:[ \t+]|%20){1,3})[A-Za-z0-9+/_.~-]{8}", _find_auth),
    MaskingRule(
        "url-password",
        rb'://[^/\s:@"\\?#]{0,64}:[^/\s@"\\]{1,128}@',
        _by(_URL, lambda value: not _is_stand_in("", value)),
    ),
    MaskingRule(
        "signed-url",
        rb"(?i:[?&](?:x-amz-signature|x-goog-signature|signature|sig)=)[A-Za-z0-9%/+=_-]{32}",
        _by(_SIGNED),
    ),
    *(_command(start, program) for start, program in _COMMANDS),
    MaskingRule(
        "named",
        _TAG + rb"[^<\s]",
        _by(_TAG + rb"""(?P<secret>[^<\s"\\]{4,1024}+)(?=<)""", _is_flag_value),
    ),
    MaskingRule("jwk", rb'"d"\s{0,4}:\s{0,4}"[A-Za-z0-9_-]{40}', _by(_JWK)),
    MaskingRule("named", _SEED, _find_named),
    MaskingRule(
        "named",
        _FLAG + rb"[^\s-]",
        _by(
            _FLAG + rb"""(?P<secret>[^\s"'\\,;&<>|(){}\[\]-][^\s"'\\,;&<>|(){}\[\]]{0,256}+)""",
            _is_flag_value,
        ),
    ),
)
