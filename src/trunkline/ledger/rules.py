r"""What a secret looks like: the rules that ``masking`` applies, as data, and the judgement of named values.

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
from collections.abc import Callable
from typing import Final, NamedTuple

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


def _by(pattern: re.Pattern[bytes], check: Callable[[bytes], bool] | None = None) -> Find:
    """Find the group ``secret`` of a pattern that begins where the seed does."""

    def find(data: bytes, start: int, _end: int) -> Finding | None:
        match = pattern.match(data, start)
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
    return MaskingRule(name, before + seed, _by(re.compile(before + b"(?P<secret>" + seed + tail + b")"), check))


def _base64_of(text: bytes) -> bytes:
    """An expression for the base64, in both alphabets, of anything that contains ``text``: at three alignments."""
    letters = [*"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", r"+\-", "/_"]
    bits = "".join(f"{byte:08b}" for byte in text)
    alternatives = []
    for lead in (0, 2, 4):
        pattern = "?" * lead + bits
        pattern += "?" * (-len(pattern) % 6)
        groups = (pattern[place : place + 6] for place in range(0, len(pattern), 6))
        fitting = ("".join(letter for number, letter in enumerate(letters) if _fits(number, want)) for want in groups)
        alternatives.append("".join(f"[{one}]" for one in fitting))
    return f"(?:{'|'.join(alternatives)})".encode()


def _fits(number: int, want: str) -> bool:
    return all(bit in {"?", have} for bit, have in zip(want, f"{number:06b}", strict=True))


def _has_a_digit(token: bytes) -> bool:
    return re.search(rb"[0-9]", token) is not None


def _has_a_number(token: bytes) -> bool:
    return re.search(rb"[0-9]{4}", token) is not None


_WORD: Final = rb"[A-Za-z0-9_-]"
_NO_MORE: Final = rb"(?![A-Za-z0-9])"

_TOKENS: Final = (
    _token("trunkline-token", rb"tlk_[A-Za-z0-9_-]{28}", _WORD),
    # 32 bytes are 43 characters, 47 are 63; the first and the last may share their bits with a neighbour.
    _token("trunkline-token", _base64_of(b"tlk_") + rb"[A-Za-z0-9+/_-]{36}", rb"[A-Za-z0-9+/_-]{0,21}"),
    _token("trunkline-token", rb"746[cC]6[bB]5[fF][0-9a-fA-F]{56}", rb"(?:[0-9a-fA-F]{30})?"),
    _token("trunkline-token", rb"%74%6[cC]%6[bB]%5[fF](?:%[0-9a-fA-F]{2}){28}", rb"(?:%[0-9a-fA-F]{2}){0,15}"),
    _token("aws-key", rb"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}", _NO_MORE, left=True),
    _token("github-token", rb"gh[oprsu]_[A-Za-z0-9]{36}", rb"[A-Za-z0-9]"),
    _token("github-token", rb"github_pat_[A-Za-z0-9_]{22}", rb"[A-Za-z0-9_]"),
    _token("gitlab-token", rb"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt)-[A-Za-z0-9_-]{20}", rb"[A-Za-z0-9_.-]"),
    _token("slack-token", rb"xox[abeprs]-[A-Za-z0-9-]{10}", rb"[A-Za-z0-9-]", left=True, check=_has_a_number),
    _token("slack-token", rb"xapp-[0-9]-[A-Z0-9]{6}", rb"[A-Za-z0-9-]", left=True),
    _token("slack-token", rb"hooks\.slack\.com/services/[A-Za-z0-9/]{20}", rb"[A-Za-z0-9/]"),
    _token("stripe-key", rb"[rs]k_(?:live|test)_[A-Za-z0-9]{16}", rb"[A-Za-z0-9]"),
    _token("stripe-key", rb"whsec_[A-Za-z0-9+/]{24}", rb"[A-Za-z0-9+/=]"),
    _token("anthropic-key", rb"sk-ant-[a-z]{3,8}[0-9]{2}-[A-Za-z0-9_-]{20}", _WORD),
    _token("openai-key", rb"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20}", _WORD, left=True, check=_has_a_digit),
    _token("openai-key", rb"sk-[A-Za-z0-9]{32}", rb"[A-Za-z0-9]", left=True),
    _token("openai-key", rb"sk-or-v1-[0-9a-f]{32}", rb"[0-9a-f]"),
    _token("google-key", rb"AIza[A-Za-z0-9_-]{35}", rb"(?![A-Za-z0-9_-])"),
    _token("google-key", rb"ya29\.[A-Za-z0-9_-]{20}", rb"[A-Za-z0-9_.-]", left=True),
    _token("google-key", rb"GOCSPX-[A-Za-z0-9_-]{20}", _WORD),
    _token("vendor-token", rb"npm_[A-Za-z0-9]{36}", _NO_MORE, left=True),
    _token("vendor-token", rb"pypi-AgE[A-Za-z0-9_-]{40}", _WORD),
    _token("vendor-token", rb"hf_[A-Za-z]{34}", _NO_MORE, left=True),
    _token("vendor-token", rb"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{40}", _WORD, left=True),
    _token("vendor-token", rb"do[opr]_v1_[0-9a-f]{64}"),
    _token("vendor-token", rb"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    _token("vendor-token", rb"hv[bs]\.[A-Za-z0-9_-]{24}", _WORD, left=True),
    _token("vendor-token", rb"dckr_pat_[A-Za-z0-9_-]{20}", _WORD),
    _token("vendor-token", rb"gsk_[A-Za-z0-9]{40}", rb"[A-Za-z0-9]", left=True),
    _token("vendor-token", rb"xai-[A-Za-z0-9]{60}", rb"[A-Za-z0-9]", left=True),
    _token("vendor-token", rb"AGE-SECRET-KEY-1[A-Z0-9]{58}"),
    _token("vendor-token", rb"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}", rb"(?![A-Za-z0-9_-])"),
    _token("nostr-key", rb"nsec1[02-9ac-hj-np-z]{58}", rb"(?![a-z0-9])"),
    _token("cashu-token", rb"cashu[AB][A-Za-z0-9_-]{40}", rb"[A-Za-z0-9_=-]", left=True),
    # Up to the end line, also over the line ends of a log; a key whose end is missing goes as far as its alphabet does.
    # The largest, RSA of 16,384 bits, has 13 KiB.
    _token(
        "private-key",
        rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY",
        rb"(?: BLOCK)?-----(?:[A-Za-z0-9+/=:,.\s]|\\++[nrt]|-(?!----)){0,16384}+(?:-----END [A-Z0-9 ]{0,40}-----)?",
    ),
)

# Three parts signed, five encrypted.
_JWT: Final = re.compile(
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


_URL: Final = re.compile(rb'://[^/\s:@"\\?#]{0,64}:(?P<secret>[^/\s@"\\]{1,128})@')
_SIGNED: Final = re.compile(
    rb"(?i:[?&](?:x-amz-signature|x-goog-signature|signature|sig)=)(?P<secret>[A-Za-z0-9%/+=_-]{32,1024}+)"
)
_JWK: Final = re.compile(rb'"d"\s{0,4}:\s{0,4}"(?P<secret>[A-Za-z0-9_-]{40,2048}+)"')


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
    find = _by(re.compile(start + rb"(?P<secret>" + _SHELL_WORD + rb"{1,256}+)"), _is_argument)

    def find_after(data: bytes, at: int, end: int) -> Finding | None:
        return find(data, at, end) if program in data[max(0, at - _LINE_BYTES) : at] else None

    return MaskingRule("command-line", start + _SHELL_WORD, find_after)


_TAG: Final = rb"(?i:<[a-z0-9_.:-]{0,40}(?:password|passwd|passphrase|secret|token|api[_-]?key)>)"


RULES: Final = (
    *_TOKENS,
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
        _by(re.compile(_TAG + rb"""(?P<secret>[^<\s"\\]{4,1024}+)(?=<)"""), _is_flag_value),
    ),
    MaskingRule("jwk", rb'"d"\s{0,4}:\s{0,4}"[A-Za-z0-9_-]{40}', _by(_JWK)),
    MaskingRule("named", _SEED, _find_named),
    MaskingRule(
        "named",
        _FLAG + rb"[^\s-]",
        _by(
            re.compile(_FLAG + rb"""(?P<secret>[^\s"'\\,;&<>|(){}\[\]-][^\s"'\\,;&<>|(){}\[\]]{0,256}+)"""),
            _is_flag_value,
        ),
    ),
)
