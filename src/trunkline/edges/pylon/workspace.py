"""One workspace: a ``codex app-server`` in a folder, the clients that connected it, and what each side waits for.

Owns the process, from the call that starts it to its end, and the questions that codex asks. Does not own what is said
on its pipes (``app_server``), which client may do what (``client``), nor calls (``agent``).

What codex asks of a person is a call of ``pylon.codex/approve``, on which policy asks; a client may answer, too, and
the first answer counts: the question is taken out before the answer is written, so there is one. With no client left,
it ends.

Invariant: every call that was handed in is finished, also when the process crashes. A defect met here ends this
workspace alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw, Struct

from trunkline.edges.exchange import BaseSink, Timer
from trunkline.edges.piped import PipedProcess, PipedSpec
from trunkline.edges.pusher.frames import encode
from trunkline.edges.pylon import messages, translate
from trunkline.edges.pylon.app_server import (
    INITIALIZE,
    Answered,
    AppServer,
    Asked,
    Broken,
    Notified,
    Said,
    Started,
    is_approval,
    verdict,
)
from trunkline.edges.pylon.messages import RequestId
from trunkline.effects import Answer, ToSession, Wait
from trunkline.events import CallRequested, CancelRequested
from trunkline.model import Fault, Now, Status, fault

if TYPE_CHECKING:
    from trunkline.edges.pylon.agent import CodexAgent
    from trunkline.edges.pylon.client import Client

# From its start to the end of its handshake; a cold one takes 2 s on a slow disk.
START_S: Final = 30.0
# What codex may ask at the same time.
MAX_QUESTIONS: Final = 64
# What codex finds of our environment, besides what every program does: where its own settings are.
PASSED_ON: Final = ("CODEX_HOME",)

STARTING, RUNNING, ENDING = "starting", "running", "ending"


class CodexQuestion(Struct):
    """Something that codex asks, until it is answered."""

    request_id: RequestId
    method: str
    params: Any
    # The call that asks a person, once there is one.
    call_id: str = ""


class Workspace(BaseSink):
    """One of them. ``start`` once; it is over when ``agent.over`` was told."""

    def __init__(self, agent: CodexAgent, workspace_id: str, cwd: str, token: str) -> None:
        self._agent = agent
        self._feed = agent.feed
        self.workspace_id = workspace_id
        self.cwd = cwd
        # Tells questions of this process from those of another one: an old question must not answer a new one.
        self._token = token
        self.state = STARTING
        # Clients that see what happens here, and calls of others that wait to be let in.
        self.clients: dict[str, Client] = {}
        self._joining: dict[str, str] = {}
        self._server = AppServer(agent.version)
        self._process: PipedProcess
        self._questions: dict[str, CodexQuestion] = {}
        # Calls whose answers wait in the app-server.
        self._requests: set[str] = set()
        self._deadline: Timer | None = None
        # Why it ends, if codex was not asked to.
        self._reason = ""
        self.number = self._feed.open_session(self)

    @property
    def key(self) -> tuple[str, str]:
        """By which it is known."""
        return self.workspace_id, self.cwd

    def start(self) -> None:
        """Start the app-server."""
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self._deadline = self._feed.call_later(START_S, self._too_late)
        spec = PipedSpec(translate.AGENT, self._agent.command, self.cwd, env)
        self._process = self._agent.start_piped(spec, self)
        self._write()

    # -- clients -------------------------------------------------------------------------------------------------------

    def join(self, call_id: str, client_id: str) -> None:
        """A call of ``connect`` that was let through: it is finished when the app-server is there."""
        self._joining[call_id] = client_id
        if self.state == RUNNING:
            self._let_in()

    def _let_in(self) -> None:
        output = Raw(encode({"workspace_id": self.workspace_id, "cwd": self.cwd}))
        for call_id in self._joining:
            self._agent.finish(call_id, Status.SUCCEEDED, output=output)

    def attach(self, client: Client) -> bool:
        """Its call succeeded, and it is still there."""
        self._joining = {call: other for call, other in self._joining.items() if other != client.socket_id}
        if self.state == RUNNING:
            self.clients[client.socket_id] = client
        return self.state == RUNNING

    def detach(self, client_id: str) -> None:
        """It is not told any more; without anybody the workspace ends."""
        self.clients.pop(client_id, None)
        self._joining = {call: other for call, other in self._joining.items() if other != client_id}
        if not self.clients and not self._joining:
            self.stop("")

    # -- calls ---------------------------------------------------------------------------------------------------------

    def request(self, call_id: str, method: str, params: Any) -> None:
        """Hand a request to the app-server."""
        if self.state != RUNNING:
            self._agent.finish(call_id, Status.FAILED, fault("tool.unavailable", "codex does not run"))
        elif method == INITIALIZE:
            # It was initialized when it started, and refuses a second time.
            self._agent.finish(call_id, Status.SUCCEEDED, output=self._server.introduction)
        else:
            self._requests.add(call_id)
            self._server.request(call_id, method, params)
            self._write()

    def respond(self, question: str, result: object) -> bool:
        """A client's answer; False if codex does not wait for it any more."""
        asked = self._questions.pop(question, None)
        if asked is None:
            return False
        self._server.respond(asked.request_id, result)
        self._write()
        if asked.call_id:
            self._withdraw(asked.call_id)
        return True

    def decide(self, question: str, *, approved: bool) -> bool:
        """A person's answer, or what policy says without one; False if codex does not wait for it any more."""
        asked = self._questions.pop(question, None)
        if asked is None:
            return False
        self._server.respond(asked.request_id, verdict(asked.method, asked.params, approved=approved))
        self._write()
        return True

    def question_of(self, request_id: RequestId) -> str:
        """How a question is called in calls: by the process that asks, and its own id."""
        return f"{self._token}:{request_id!r}"

    def open_question(self, request_id: RequestId) -> str:
        """What a client means by an id, which it may have made a text of; empty if codex waits for no such answer."""
        spelled = [
            request_id,
            int(request_id) if isinstance(request_id, str) and request_id.isdecimal() else request_id,
        ]
        return next((name for name in map(self.question_of, spelled) if name in self._questions), "")

    def _withdraw(self, call_id: str) -> None:
        by, reason = self._agent.principal, "answered elsewhere"
        self._feed.feed([CancelRequested(self.number, "withdraw", by, call_id=call_id, reason=reason)])

    # -- the sink: what comes of the questions -------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:  # noqa: ARG002  (no clock is needed)
        """The exchange says something about a call of ``approve``."""
        match effect:
            case Wait():
                if (asked := self._questions.get(effect.ref)) is not None:
                    asked.call_id = effect.call_id
            case Answer() if effect.status is not Status.SUCCEEDED:
                self.decide(effect.ref, approved=False)
            case _:
                pass

    def abort(self) -> None:
        """A defect of ours ended this conversation."""
        self.number = 0
        self.stop("a defect of the exchange ended it; it is on record")

    # -- the process ---------------------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Some bytes of its stdout."""
        self._guarded(lambda: self._hear(data))

    def ended(self, reason: str) -> None:
        """Nothing of it is left."""
        self._guarded(lambda: self._over(reason))

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._feed.failed(self.number, error)

    def _hear(self, data: bytes) -> None:
        for said in self._server.receive(data):
            self._heard(said)
        self._write()

    def _heard(self, said: Said) -> None:
        match said:
            case Started():
                if self.state == STARTING:
                    self.state = RUNNING
                    self._in_time()
                    self._let_in()
            case Notified():
                self._tell(messages.CODEX_EVENT, messages.envelope(self.workspace_id, said.message))
            case Asked():
                self._tell(messages.CODEX_EVENT, messages.envelope(self.workspace_id, said.message))
                self._ask(said)
            case Answered():
                self._requests.discard(said.ref)
                if said.error is None:
                    self._agent.finish(said.ref, Status.SUCCEEDED, output=said.result)
                else:
                    problem = fault("tool.failed", "codex answered with an error", details={"error": said.error})
                    self._agent.finish(said.ref, Status.FAILED, problem)
            case Broken():
                self.stop(said.reason)

    def _ask(self, said: Asked) -> None:
        question = self.question_of(said.request_id)
        if len(self._questions) >= MAX_QUESTIONS or question in self._questions:
            self.stop(f"codex asked {MAX_QUESTIONS} things at once, or the same twice")
            return
        self._questions[question] = CodexQuestion(said.request_id, said.method, said.params)
        if is_approval(said.method):
            asked = translate.ApproveInput(self.workspace_id, self.cwd, question, said.method, said.params)
            by, body = self._agent.principal, Raw(encode(asked))
            self._feed.feed([CallRequested(self.number, question, by, translate.APPROVE, body, announce=True)])

    def _write(self) -> None:
        output = self._server.take_output()
        if output and self.state != ENDING and not self._process.write(output):
            self.stop("codex does not read what it is sent")

    def _tell(self, event: str, payload: dict[str, object]) -> None:
        if self.clients:
            data = encode(payload).decode()
            for client in list(self.clients.values()):
                client.tell(event, data)

    def _too_late(self) -> None:
        if self.state == STARTING:
            self.stop(f"codex did not answer within {START_S:g} s")

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- the end -------------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the process. ``reason`` is empty if nobody needs it any more."""
        if self.state != ENDING:
            self._reason = reason
            self.state = ENDING
            self._agent.leaving(self)
            self._process.stop()

    def _over(self, reason: str) -> None:
        """Whatever was open gets its end."""
        is_wanted = self.state == ENDING and not self._reason
        self.state = ENDING
        self._in_time()
        text = self._reason or reason
        problem = fault("tool.unavailable", f"codex does not run: {text}", details={"status": translate.FAILED})
        lost = fault("agent.lost", "codex ended before it answered; whether it did it is not known")
        for call_id in self._requests:
            self._agent.finish(call_id, Status.UNKNOWN, lost)
        for call_id in self._joining:
            self._agent.finish(call_id, Status.FAILED, problem)
        self._requests.clear()
        self._joining.clear()
        for question in list(self._questions.values()):
            if question.call_id and self.number:
                self._withdraw(question.call_id)
        self._questions.clear()
        word, detail = (translate.DISCONNECTED, "") if is_wanted else (translate.FAILED, text)
        for client in list(self.clients.values()):
            client.workspace_over(self, word, detail)
        self.clients.clear()
        if self.number:
            self._feed.close_session(self.number)
            self.number = 0
        self._agent.over(self)


def not_connected() -> Fault:
    """What is said of a workspace that this client has not connected."""
    return fault("not_found", "this workspace is not connected here")
