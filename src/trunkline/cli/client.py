"""How a verb reaches the running exchange: ``ready.json``, the operator's token, HTTP.

Owns finding it, asking it, and ending the command with its fault when it says no. Does not own what is asked
or shown. ``http.client`` and not a larger library: a call needs 80 ms from Enter to the request, and importing httpx
alone takes twice that.

Invariant: the operator's token goes to the process that wrote ``ready.json`` and to nobody else. A file left behind
by a run that died is recognised by its process, whose number may meanwhile belong to a stranger.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote, urlsplit

import msgspec

from trunkline.cli.terminal import CommandFailed, typed
from trunkline.error_words import in_words
from trunkline.errors import ExchangeUnreachable
from trunkline.home import Home

# The exchange answers everything but a call within 30 s, and shows a sign of life on a stream every 15 s.
TIMEOUT_S: Final = 45.0

# States of a process in /proc that are none of a living one: zombie, dead.
_ENDED: Final = frozenset({"Z", "X", "x"})

decode: Final = msgspec.json.decode
encode: Final = msgspec.json.encode


class ExchangeClient:
    """The running exchange of a home, asked over HTTP as the operator.

    Each request is a connection of its own: nothing is held while a person thinks.
    """

    def __init__(self, home: Home, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.ready = _ready(home)
        self.home = home
        # What becomes of a refusal; unless a verb says otherwise, the end of the command.
        self.refused: Callable[[dict[str, Any]], None] = end_with
        url = urlsplit(str(self.ready["http"]))
        self._host, self._port = url.hostname or "", url.port
        try:
            self._token = home.operator_token_file.read_text().strip()
        except OSError as error:
            raise ExchangeUnreachable(f"{home.operator_token_file}: {error.strerror}") from None

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The body of a good answer; any other ends the command."""
        with self._sent(method, path, body, "application/json") as answer:
            data = answer.read()
            if answer.status >= 400:
                self.refused(error_of(data))
            return data

    def answer(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """The status and the body of an answer, good or not."""
        with self._sent(method, path, body, "application/json") as answer:
            return answer.status, answer.read()

    def get(self, path: str) -> Any:
        """The decoded answer to a GET."""
        return decode(self.request("GET", path))

    def post(self, path: str, body: dict[str, object] | None = None) -> Any:
        """The decoded answer to a POST of ``body`` as JSON."""
        return decode(self.request("POST", path, None if body is None else encode(body)))

    def events(self, method: str, path: str, body: bytes | None = None) -> Iterator[tuple[str, bytes]]:
        """Server-sent events as they come, until the exchange ends the stream."""
        with self._sent(method, path, body, "text/event-stream") as answer:
            if answer.status >= 400:
                self.refused(error_of(answer.read()))
                return
            name, data = "", []
            while line := answer.readline():
                field, _, value = line.rstrip(b"\r\n").partition(b": ")
                if field == b"event":
                    name = value.decode()
                elif field == b"data":
                    data.append(value)
                elif not field and data:
                    yield name, b"\n".join(data)
                    name, data = "", []

    @contextmanager
    def _sent(self, method: str, path: str, body: bytes | None, accept: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, self._port or 80, timeout=self._timeout_s)
        headers = {"Authorization": f"Bearer {self._token}", "Accept": accept}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body, headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            why = f"the exchange at {self._host}:{self._port} went away ({in_words(error)})"
            # One that takes too long is still there.
            what = (
                f"{typed('doctor')} says how it is" if isinstance(error, TimeoutError) else f"{typed('up')} starts it"
            )
            raise ExchangeUnreachable(f"{why}; {what}") from None
        finally:
            connection.close()


def at(*parts: str, **query: object) -> str:
    """A path of the API, each part quoted, with those parameters that are not None."""
    path = "/v1/" + "/".join(quote(part, safe=":") for part in parts)
    given = [f"{name}={quote(str(value), safe='')}" for name, value in query.items() if value is not None]
    return path + ("?" + "&".join(given) if given else "")


def error_of(data: bytes) -> dict[str, Any]:
    """The error in an answer's body; anything else was not our exchange speaking."""
    try:
        error = decode(data)["error"]
        return {"code": str(error["code"]), "message": str(error["message"]), **error}
    except (msgspec.DecodeError, KeyError, TypeError):
        return {"code": "hub.unavailable", "message": "the answer is not one of an exchange"}


def end_with(error: dict[str, Any], below: str = "") -> NoReturn:
    """End the command with an error of the exchange."""
    retryable, details = bool(error.get("retryable")), error.get("details")
    raise CommandFailed(error["code"], error["message"], below=below, retryable=retryable, details=details)


def _ready(home: Home) -> dict[str, Any]:
    """What ``ready.json`` says, if the process that wrote it still lives."""
    try:
        ready: dict[str, Any] = decode(home.ready_file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise _not_running(home) from None
    except OSError as error:
        raise ExchangeUnreachable(f"{home.ready_file}: {error.strerror}") from None
    except msgspec.DecodeError:
        raise ExchangeUnreachable(
            f"{home.ready_file} cannot be read; remove it and start again: {typed('up')}"
        ) from None
    pid, start_time = ready.get("pid"), ready.get("start_time")
    if not isinstance(pid, int) or not is_alive(pid, start_time) or not isinstance(ready.get("http"), str):
        raise _not_running(home)
    return ready


def _not_running(home: Home) -> ExchangeUnreachable:
    return ExchangeUnreachable(f"not running: {typed('up')} (looked in {home.path})")


def is_alive(pid: int, start_time: object) -> bool:
    """Whether this process lives and is the one that started then, as far as the system can tell.

    One that ended and that its parent has not asked about yet (a zombie) keeps its number, and serves nobody.
    """
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    try:
        # The third field and the 22nd; the second one, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] not in _ENDED and (not isinstance(start_time, int) or int(fields[19]) == start_time)
    except (OSError, IndexError, ValueError):
        return True
