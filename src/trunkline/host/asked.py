"""Tells a person that something waits for an answer: a line where the exchange runs, and a command or a URL if wanted.

Owns which questions were told of, and how each is told. Does not own questions (``hub.approvals``) or their answers.
What is told of one leaves out its input: that is for the screen of whoever answers, not for a chat channel.

Invariant: each question is told of once in the life of this process, and nobody waits for a command or a URL.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from trunkline.config import Notify
from trunkline.edges import client
from trunkline.error_words import in_words
from trunkline.shown import Question

log = logging.getLogger("trunkline")

# What a command or an answer may take. A person is told by the line meanwhile.
NOTIFY_S: Final = 10.0
# That wait to be told of. Beyond that nobody reads them one by one.
MAX_WAITING: Final = 100
# In one look; the rest is counted.
MAX_LINES: Final = 10


class AskedPeople:
    """Of one exchange. ``say`` prints a line for who looks on, ``notify`` gives the setting in force, ``page`` the
    address where a question is answered.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        notify: Callable[[], Notify | None],
        page: Callable[[str], str | None] = lambda _approval_id: None,
    ) -> None:
        self._say = say
        self._notify = notify
        self._page = page
        self._told: frozenset[str] = frozenset()
        self._waiting: queue.Queue[tuple[Notify, bytes]] = queue.Queue(MAX_WAITING)
        self._worker: threading.Thread | None = None
        self._problem = ""

    def look(self, open_ids: Iterable[str], questions: Callable[[], Sequence[Question]]) -> None:
        """Tell of what is asked and was not at the last look."""
        now = frozenset(open_ids)
        fresh, self._told = now - self._told, now
        if not fresh:
            return
        found = [question for question in questions() if question.approval_id in fresh]
        for question in found[:MAX_LINES]:
            self._say(line_of(question))
        if len(found) > MAX_LINES:
            self._say(f"and {len(found) - MAX_LINES} more questions: `trunkline approvals`")
        notify = self._notify()
        if notify is not None:
            for question in found:
                self._hand_over(notify, question)

    def _hand_over(self, notify: Notify, question: Question) -> None:
        try:
            self._waiting.put_nowait((notify, message_of(question, self._page(question.approval_id))))
        except queue.Full:
            self._complain("more questions wait to be told of than it takes")
            return
        if self._worker is None:
            # A daemon: a command that does not end holds no stop.
            self._worker = threading.Thread(target=self._work, name="notify", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        while True:
            notify, message = self._waiting.get()
            try:
                _tell(notify, message)
            except subprocess.SubprocessError:
                # Its own text has the arguments of the command, and they may hold a secret.
                self._complain(f"the command did not end within {NOTIFY_S:g} s")
            except (client.Unreachable, _NotTold) as problem:
                self._complain(str(problem))
            except OSError as problem:
                # Of a command: a URL that cannot be asked is ``Unreachable``.
                self._complain(f"{notify.command[0] if notify.command else 'it'}: {in_words(problem)}")
            else:
                self._problem = ""
            self._waiting.task_done()

    def warnings(self) -> list[str]:
        """What keeps people from being told, as long as it does."""
        return [f"[approvals] notify: {self._problem}"] if self._problem else []

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("[approvals] notify: %s", problem)
        self._problem = problem


class _NotTold(Exception):
    """A command or a URL did not take a message."""


def line_of(question: Question) -> str:
    """One line for the person who looks on. Ids are printable; words of agents are left to `approvals`."""
    about = question.tool_id or question.agent_id or ""
    what = {"call": "call of", "definition": "changed definition of", "manifest": "permissions for"}
    subject = f"{what.get(question.subject, f'{question.subject} for')} {about}"
    return (
        f"{question.approval_id} waits for your answer: {subject}, asked by {question.asked_by}; `trunkline approvals`"
    )


def message_of(question: Question, page: str | None) -> bytes:
    """What a command gets on stdin, and a URL as a body."""
    said = {
        "approval_id": question.approval_id,
        "subject": question.subject,
        "asked_by": question.asked_by,
        "tool_id": question.tool_id,
        "agent_id": question.agent_id,
        "reason": question.reason,
        "expires_at": question.expires_at,
        "url": page,
    }
    return msgspec.json.encode({name: value for name, value in said.items() if value is not None})


def _tell(notify: Notify, message: bytes) -> None:
    if notify.command is not None:
        quiet = subprocess.DEVNULL
        done = subprocess.run(notify.command, input=message, stdout=quiet, stderr=quiet, timeout=NOTIFY_S, check=False)
        if done.returncode != 0:
            raise _NotTold(f"{notify.command[0]} ended with {done.returncode}")
    elif notify.url is not None:
        tls = ssl.create_default_context()
        answer = asyncio.run(client.request(notify.url, "POST", body=message, timeout_s=NOTIFY_S, tls=tls))
        if answer.status >= 300:
            place = client.endpoint_of(notify.url)
            raise _NotTold(f"{place.host}:{place.port} answered {answer.status}")
