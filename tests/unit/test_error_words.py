"""What a person reads of an exception."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from pathlib import Path

import pytest

import trunkline
from trunkline.error_words import in_words

CLOSED = "the connection was closed before an answer was complete"


class NoServersError(Exception):
    pass


class HTTPBroken(Exception):
    pass


def _tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "there is no host of this name"),
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"), "nobody listens there"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 111] …"), "nobody listens there"),
        (OSError("what a peer wrote"), "it cannot be reached"),
        (ConnectionResetError(), CLOSED),
        (asyncio.IncompleteReadError(b"what a peer wrote", 40), CLOSED),
        (TimeoutError(), "there was no answer in time"),
        (asyncio.LimitOverrunError("", 1), "the answer is too long"),
        (ValueError("what a peer wrote"), "the answer cannot be read"),
        (ssl.SSLError(1, "[SSL] wrong version number"), "TLS does not work with it (the handshake failed)"),
        (_tls_error("WRONG_VERSION_NUMBER"), "no TLS is spoken there"),
        (_tls_error("TLSV1_ALERT_INTERNAL_ERROR"), "TLS does not work with it (tlsv1 alert internal error)"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "permission denied"),
        (NoServersError("what a peer wrote"), "no servers"),
        (HTTPBroken(), "HTTP broken"),
        (type("Error", (Exception,), {})(), "it does not say why"),
    ],
)  # fmt: skip
def test_an_exception_is_told_in_words_that_are_no_peers(error: Exception, words: str) -> None:
    assert in_words(error) == words


# Where the name of a class is for whoever mends the code, or is written by the SDK of an agent about its own code.
_FOR_AUTHORS = {
    "check/suite.py",  # what an implementer's endpoint answered
    "edges/log_lines.py", "host/edges.py", "host/keeper.py", "host/runner.py", "host/up.py",  # defects
    "edges/opensentience/session.py", "trajectory/bundle.py", "trajectory/check.py",  # names of our own structs
    "ledger/search_process.py",
    "sdk/chiffon.py", "sdk/json_form.py", "sdk/ossa_handling.py", "sdk/running_calls.py",
    "error_words.py",
}  # fmt: skip


def test_nobody_else_names_the_class_of_an_exception() -> None:
    source = Path(trunkline.__file__).parent
    found = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if re.search(r"type\(\w+\)\.__name__", file.read_text()) and "testing" not in file.relative_to(source).parts
    }
    assert found == _FOR_AUTHORS
