"""Secrets that the configuration names instead of holding: ``env:NAME``, ``file:PATH``, ``keyring:NAME``.

Owns how a reference is written, and looking one up. Does not own when that is done (at each launch, so that a secret
that changed is taken by a restart), nor that what was found is masked (the ledger).

A text that begins like a reference and is none is written with ``literal:`` in front of it, which is taken off.

Invariant: what is found is in no text of an error; only the reference is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trunkline.error_words import in_words
from trunkline.errors import SecretMissing

ENVIRONMENT: Final = "env:"
FILE: Final = "file:"
KEYRING: Final = "keyring:"
LITERAL: Final = "literal:"
# The name under which keyrings keep what belongs to us.
SERVICE: Final = "trunkline"
# A key with its certificates has a few kilobytes; more is a file that was named by mistake.
MAX_BYTES: Final = 65_536


def is_reference(text: str) -> bool:
    """Whether this names a secret."""
    return text.startswith((ENVIRONMENT, FILE, KEYRING))


def may_wait(texts: Mapping[str, str]) -> bool:
    """Whether looking these up may take a while: a keyring may ask its owner to unlock it."""
    return any(text.startswith(KEYRING) for text in texts.values())


def problem_of(text: str) -> str:
    """What is wrong with how a reference is written; empty if nothing is, or it is none."""
    for prefix in (ENVIRONMENT, FILE, KEYRING):
        if text == prefix or (text.startswith(prefix) and "\0" in text):
            return f"expected a name after {prefix}; a text that begins so is written {LITERAL}{prefix}…"
    return ""


def placed(texts: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The same, with the files of references taken from this folder."""
    return {name: placed_one(text, folder) for name, text in texts.items()}


def placed_one(text: str, folder: Path) -> str:
    """The same of one text."""
    return f"{FILE}{folder / Path(text.removeprefix(FILE)).expanduser()}" if text.startswith(FILE) else text


class Found:
    """Texts with their references looked up, and which of them are secrets."""

    def __init__(self, texts: Mapping[str, str], environ: Mapping[str, str]) -> None:
        """``SecretMissing`` names the first one that is not there."""
        self.texts: dict[str, str] = {}
        # Each with the name under which its place is shown.
        self.secrets: list[tuple[str, str]] = []
        for name, text in texts.items():
            if is_reference(text):
                try:
                    self.texts[name] = look_up(text, environ)
                except SecretMissing as error:
                    raise SecretMissing(f"{name}: {error}") from None
                self.secrets.append((name, self.texts[name]))
            else:
                self.texts[name] = text.removeprefix(LITERAL)


def look_up(reference: str, environ: Mapping[str, str]) -> str:
    """What a reference names; ``SecretMissing`` if that is not there. Whoever asks tells it to the masker."""
    kind, _, place = reference.partition(":")
    if f"{kind}:" == ENVIRONMENT:
        found = environ.get(place, "")
        if not found:
            raise SecretMissing(f"the variable {place} is not set where the exchange was started")
        return found
    return _in_file(place) if f"{kind}:" == FILE else _in_keyring(place)


def _in_file(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            found_there = os.fstat(file.fileno())
            if found_there.st_uid not in {0, os.geteuid()} or found_there.st_mode & 0o002:
                raise SecretMissing(f"{path} is somebody else's, or everybody may write to it")
            data = file.read(MAX_BYTES + 1)
        found = data.decode().rstrip("\r\n")
    except OSError as error:
        raise SecretMissing(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SecretMissing(f"{path} is no text") from None
    if len(data) > MAX_BYTES or not found or "\0" in found:
        raise SecretMissing(f"{path} holds no secret: expected a text of 1 to {MAX_BYTES} bytes")
    return found


def _in_keyring(entry: str) -> str:
    try:
        import keyring
    except ImportError:
        raise SecretMissing("a keyring is read by the package keyring, which is missing: pip install keyring") from None
    try:
        found = keyring.get_password(SERVICE, entry)
    except keyring.errors.KeyringError as error:
        raise SecretMissing(f"the keyring cannot be asked: {in_words(error)}") from None
    if not found:
        raise SecretMissing(f"the keyring has no {entry} of {SERVICE}: keyring set {SERVICE} {entry}")
    return str(found)
