"""What one agent asks for: its requests, commands and events become calls, and outcomes become replies. Sans-IO.

Each message to each recipient is one ``OssaAsking``: it waits until those before it with the same correlation are over
(OSSA-083), becomes a call whose key is the message's id, and ends with one reply, the same for every repeat. What a
repeat is told follows from the record: ids are derived, times are those of the call. Only refusals, of which nothing is
on record, are remembered here, for as long as the exchange runs.

Owns order within a correlation, repeats, and the words of replies. Does not own who the agent is (``peers``), rates
(``rates``), nor how a reply travels: a ``Saying`` names the tickets of those who wait for it.

Invariant: each ticket that was taken in is answered once, unless its message is a command whose result follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Raw

from trunkline.edges.ossa import messages, reading, translate
from trunkline.edges.ossa.asked import Command, OssaAsking, offered_tools, outline_of, published_input, recipient_of
from trunkline.edges.ossa.messages import (
    ACK,
    BAD_REQUEST,
    COMMAND,
    COMMAND_RESULT,
    EVENT,
    INSUFFICIENT,
    MAX_MESSAGE_BYTES,
    NACK,
    REQUEST,
    RESPONSE,
    STREAM_DATA,
    STREAM_END,
    STREAM_START,
    TIMEOUT,
    ErrorInfo,
    Identity,
    Message,
    Refused,
)
from trunkline.edges.ossa.replies import OwedResults, Saying
from trunkline.edges.ossa.translate import EDGE, EXCHANGE, REGISTER, US, context_of, derived_id
from trunkline.effects import Answer, ConfirmTools, Progress, Reply, ToSession, Wait
from trunkline.events import CallRequested, Event, Noticed, ProcessStepped
from trunkline.model import EMPTY_OBJECT, Fault, LargeOutput, Now, Principal, ToolDefinition, fault, stamp
from trunkline.shown import CallView, ToolView

# What of one agent may wait or run at once; more is refused with 507 (OSSA-057), and before one provider's queue has no
# place for it any more.
MAX_OPEN: Final = 512
MAX_OPEN_BYTES: Final = 33_554_432
# Of one message to several, all copies together: each is read and compared by itself.
MAX_COPIES_BYTES: Final = 1_048_576
# Refusals that are remembered for repeats.
MAX_REMEMBERED: Final = 1000
# How often a tool that only reads is run again for the same message (decision 64).
MAX_RUNS: Final = 16
# Results of commands that are owed: one subject for each command.
COMMANDS: Final = "ossa.commands"
# The last progress of a stream of OSSA: it has ended, and shows nothing.
NOTHING_MORE: Final = b'{"json":{}}'
# What an OSSA reply can carry besides its payload.
REPLY_ROOM: Final = 8192
OTHER_CONTENT: Final = "this messageId was used before with other content; a new message needs a new one"


Registering = Callable[[str, tuple[ToolDefinition, ...], bool, Now], list[Event]]


class Asker:
    """One agent as a caller. ``find_…`` and ``absence`` look things up, ``register`` is told what it offers."""

    def __init__(
        self,
        number: int,
        principal: Principal,
        key: bytes,
        aliases: Mapping[str, str],
        *,
        find_tool: Callable[[str], ToolView | None],
        find_call: Callable[[str], CallView | None],
        find_keyed: Callable[[str, str], CallView | None],
        absence: Callable[[str], Fault | None],
        register: Registering,
    ) -> None:
        self.number = number
        self.principal = principal
        self._key = key
        self._aliases = aliases
        self._find_tool = find_tool
        self._find_call = find_call
        self._find_keyed = find_keyed
        self._absence = absence
        self._register = register
        self._open: dict[str, OssaAsking] = {}
        self._open_bytes = 0
        # By correlation: what is under way, then what waits for it.
        self._by_correlation: dict[str, deque[OssaAsking]] = {}
        self._remembered: dict[str, tuple[bytes, Message]] = {}
        # Results of commands that it has not acknowledged.
        self.owed = OwedResults()
        self._is_going_on = False
        # Commands from before a restart whose calls may still run.
        self._resumed: dict[str, OssaAsking] = {}
        self.output: list[Saying] = []

    @property
    def agent_id(self) -> str:
        """Who asks."""
        return self.principal.identity.partition(":")[2]

    def __len__(self) -> int:
        return len(self._open)

    # -- what it says --------------------------------------------------------------------------------------------------

    def receive(self, message: Message, ticket: int, now: Now, *, is_sealed: bool = False) -> list[Event]:
        """A request, command or event; its reply goes to ``ticket``, for each recipient one. ``Refused`` if it cannot
        be asked at all, and then nothing of it happened.
        """
        if message.type == EVENT and [one.agent_id for one in message.recipients] != [EXCHANGE]:
            raise Refused(BAD_REQUEST, f"an event goes to the recipient {EXCHANGE}, and to all who subscribed")
        copies = message.size * len(message.recipients)
        if len(message.recipients) > 1 and copies > MAX_COPIES_BYTES:
            raise Refused(
                INSUFFICIENT, f"the copies for all recipients have {copies} bytes, and {MAX_COPIES_BYTES} at most"
            )
        made = [self._asking(message, one, is_sealed, now) for one in message.recipients]
        new = [asking for asking in made if asking.ref not in self._open and asking.ref not in self._remembered]
        size = sum(asking.size for asking in new)
        if len(self._open) + len(new) > MAX_OPEN or (new and self._open_bytes + size > MAX_OPEN_BYTES):
            raise Refused(INSUFFICIENT, f"{MAX_OPEN} messages or {MAX_OPEN_BYTES} bytes of yours are not answered yet")
        for asking in made:
            self._check_same(asking)
        events: list[Event] = []
        for asking in made:
            events += self._take(asking, ticket, now)
        return events

    def _asking(self, message: Message, recipient: Identity, is_sealed: bool, now: Now) -> OssaAsking:
        tool_id = ""
        if message.type == EVENT:
            tool_id = translate.PUBLISH
        elif (recipient.agent_id, message.action) != (EXCHANGE, REGISTER):
            tool_id = translate.tool_of(recipient.agent_id, message.action, self._aliases)
            translate.check_depth(message.payload)
        # The first of a list has the message's own id, as one alone has: to write him in a list is no other message.
        is_first = recipient.agent_id == message.recipients[0].agent_id
        ref = message.message_id if is_first else f"{message.message_id}@{recipient.agent_id}"
        return OssaAsking(ref, message, recipient, tool_id, is_sealed, now.ms)

    def _check_same(self, asking: OssaAsking) -> None:
        found, remembered = self._open.get(asking.ref), self._remembered.get(asking.ref)
        if (found is not None and not found.is_same(asking)) or (
            remembered is not None and remembered[0] != asking.digest
        ):
            raise Refused(BAD_REQUEST, OTHER_CONTENT)

    def _take(self, asking: OssaAsking, ticket: int, now: Now) -> list[Event]:
        remembered = self._remembered.get(asking.ref)
        if remembered is not None:
            self._say(remembered[1], (ticket,), asking)
            return []
        found = self._open.get(asking.ref)
        if found is not None:
            found.tickets.append(ticket)
            return self._repeated(found)
        asking.tickets.append(ticket)
        self._open[asking.ref] = asking
        self._open_bytes += asking.size
        correlation = asking.message.correlation_id
        if correlation is None:
            return self._start(asking, now)
        waiting = self._by_correlation.setdefault(correlation, deque())
        waiting.append(asking)
        return self._start(asking, now) if len(waiting) == 1 else []

    def _repeated(self, asking: OssaAsking) -> list[Event]:
        """A command that is under way is acknowledged again; everything else is answered when it ends."""
        if asking.message.type == COMMAND and asking.call_id:
            self._acknowledge(asking)
        return []

    def _start(self, asking: OssaAsking, now: Now) -> list[Event]:
        message = asking.message
        if message.is_expired(now.ms):
            return self._expired(asking, now)
        if not asking.tool_id:
            return self._offer(asking, now)
        return [self._call(asking)]

    def _call(self, asking: OssaAsking) -> CallRequested:
        message = asking.message
        is_event = message.type == EVENT
        return CallRequested(
            self.number,
            asking.ref,
            self.principal,
            asking.tool_id,
            published_input(message) if is_event else translate.input_of(message.payload),
            key=asking.ref if asking.runs == 1 else f"{asking.ref}#{asking.runs}",
            correlation_id=message.correlation,
            context=context_of(message, self.principal.type, is_sealed=asking.is_sealed),
            expires_ms=message.expires_ms,
            announce=message.type == COMMAND,
            sensitive=message.sensitive,
        )

    def _expired(self, asking: OssaAsking, now: Now) -> list[Event]:
        message = asking.message
        noticed = Noticed("message.expired", EDGE, self.principal.identity, f"{message.type} {message.message_id}")
        info = ErrorInfo(TIMEOUT, "expired before it was handled", stamp(now.ms))
        if message.type in {REQUEST, COMMAND}:
            return [noticed, *self._end(asking, self._failure(asking, info), now)]
        return [noticed, *self._end(asking, None, now)]

    def _offer(self, asking: OssaAsking, now: Now) -> list[Event]:
        try:
            tools, replace = offered_tools(self.agent_id, asking.message.payload)
            return self._register(asking.ref, tools, replace, now)
        except Refused as refused:
            details = Raw(msgspec.json.encode(refused.details)) if refused.details else msgspec.UNSET
            info = ErrorInfo(refused.error_code, refused.text, stamp(now.ms), details)
            return self._end(asking, self._failure(asking, info), now, is_remembered=refused.error_code == BAD_REQUEST)

    # -- what the exchange says ----------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> list[Event]:
        """An outcome, or something on the way to it."""
        match effect:
            case Answer():
                return self._answered(effect, now)
            case Wait():
                return self._waits(effect)
            case Progress():
                self._progressed(effect, now)
            case Reply():
                asking = self._open.get(effect.ref.removeprefix("taken "))
                if asking is not None and effect.fault is None:
                    self._acknowledge(asking)
            case _:
                pass
        return []

    def registered(self, effect: ConfirmTools, now: Now) -> list[Event]:
        """What the exchange took of what was offered."""
        asking = self._open.get(effect.ref)
        if asking is None:
            return []
        names = [tool_id.partition("/")[2] for tool_id in effect.registered]
        rejected = {tool_id.partition("/")[2]: found.message for tool_id, found in effect.rejected}
        body = Raw(msgspec.json.encode({"registered": names, "rejected": rejected}))
        # Kept: an offer that is said again, by whomever, must not undo a later one.
        return self._end(asking, self._reply(asking, RESPONSE, body, now.ms), now, is_remembered=True)

    def not_registered(self, ref: str, code: int, text: str, now: Now) -> list[Event]:
        """Why nothing was taken."""
        asking = self._open.get(ref)
        if asking is None:
            return []
        return self._end(asking, self._failure(asking, ErrorInfo(code, text, stamp(now.ms))), now)

    def _waits(self, effect: Wait) -> list[Event]:
        """A command is on record: that its result is owed comes on record too, and then it is acknowledged."""
        asking = self._open.get(effect.ref)
        if asking is None or asking.message.type != COMMAND or asking.call_id:
            return []
        asking.call_id = effect.call_id
        command = Command(Raw(messages.encode(outline_of(asking.message))), effect.call_id, asking.is_sealed)
        return [self._command_step(asking.ref, "taken", Raw(msgspec.json.encode(command)), f"taken {asking.ref}")]

    def _command_step(self, ref: str, step: str, data: Raw, reply_ref: str = "", *, done: bool = False) -> Event:
        return ProcessStepped(
            self.number, reply_ref, COMMANDS, f"{self.agent_id}/{ref}", step, data, done, self.principal.identity
        )

    def _acknowledge(self, asking: OssaAsking) -> None:
        tickets, asking.tickets = tuple(asking.tickets), []
        view = self._find_call(asking.call_id)
        at = "" if view is None else view.accepted_at
        self._say(self._receipt(asking, ACK, at or asking.message.timestamp), tickets, asking)

    def _progressed(self, effect: Progress, now: Now) -> None:
        asking = self._open.get(effect.ref)
        if asking is None or asking.message.type == EVENT:
            return
        if not asking.is_streaming:
            asking.is_streaming, asking.streams, asking.shown = True, asking.streams + 1, 0
            self._stream(asking, effect.call_id, STREAM_START, now)
        if effect.done and bytes(effect.data) == NOTHING_MORE:
            self._end_stream(asking, effect.call_id, now)
            return
        shown = msgspec.json.decode(effect.data, type=dict[str, Raw])
        value = shown.get("json") or shown.get("text") or Raw(effect.data)
        self._stream(asking, effect.call_id, STREAM_DATA, now, value, asking.shown)
        asking.shown += 1
        if effect.done:
            self._end_stream(asking, effect.call_id, now)

    def _end_stream(self, asking: OssaAsking, call_id: str, now: Now) -> None:
        if asking.is_streaming:
            asking.is_streaming = False
            self._stream(asking, call_id, STREAM_END, now, sequence=asking.shown)

    def _stream(
        self,
        asking: OssaAsking,
        call_id: str,
        kind: str,
        now: Now,
        payload: Raw = EMPTY_OBJECT,
        sequence: int | None = None,
    ) -> None:
        stream_id = call_id if asking.streams == 1 else f"{call_id}.{asking.streams}"
        message_id = derived_id(self._key, kind, self.agent_id, asking.ref, stream_id, str(sequence))
        made = messages.reply(asking.message, kind, asking.recipient, message_id, now.ms, payload)
        self._say(msgspec.structs.replace(made, stream_id=stream_id, sequence=sequence), (), asking)

    def _answered(self, effect: Answer, now: Now) -> list[Event]:
        asking = self._open.get(effect.ref)
        if asking is None:
            return []
        if self._is_to_run_again(asking, effect):
            asking.runs += 1
            return [self._call(asking)]
        self._end_stream(asking, effect.call_id, now)
        ms = effect.finished_ms or now.ms
        found = effect.fault
        if found is not None and found.code == "tool.not_found":
            found = self._absence(asking.tool_id) or found  # it may well have that action (decision 63)
        elif found is not None and found.code == "idempotency.conflict":
            found = fault(found.code, OTHER_CONTENT)
        made = self._outcome(asking, effect.call_id, effect.output, found, effect.large, ms)
        if asking.message.type == COMMAND and not effect.refused:
            return self._command_ended(asking, effect.call_id, made, now)
        code = None if made is None or made.error is None else made.error.code
        is_remembered = effect.refused and code is not None and code not in translate.RETRYABLE
        return self._end(asking, made, now, is_remembered=is_remembered, is_stored=effect.after > 0)

    def _outcome(
        self,
        asking: OssaAsking,
        call_id: str,
        output: Raw | None,
        found: Fault | None,
        large: LargeOutput | None,
        ms: int,
    ) -> Message | None:
        """What is said of a call that ended; an event of quality 0 hears nothing of a success."""
        kind = asking.message.type
        if found is not None:
            info = translate.error_info(found, ms, call_id or None)
            if kind == EVENT:
                return msgspec.structs.replace(self._receipt(asking, NACK, stamp(ms)), error=info)
            return self._failure(asking, info)
        if kind == EVENT:
            return self._receipt(asking, ACK, stamp(ms)) if asking.message.level else None
        body = output or Raw(b"null")
        if len(body) + REPLY_ROOM > MAX_MESSAGE_BYTES and large is not None:
            body = large.reference()
        return self._reply(asking, RESPONSE if kind == REQUEST else COMMAND_RESULT, body, ms)

    def _command_ended(self, asking: OssaAsking, call_id: str, result: Message | None, now: Now) -> list[Event]:
        """Whoever waits is told that the command was taken; its result is owed until the agent acknowledges it."""
        assert result is not None
        is_on_record = bool(asking.call_id)
        asking.call_id = call_id
        if asking.tickets:
            self._acknowledge(asking)
        events = self._owe(
            asking.ref if is_on_record else "", Saying(result, (), asking.is_sealed, after_disk=True), now
        )
        return [*events, *self._end(asking, None, now)]

    def _is_to_run_again(self, asking: OssaAsking, effect: Answer) -> bool:
        """Decision 64: after a timeout, a repeat runs again what only reads."""
        is_old = (effect.finished_ms or asking.arrived_ms) < asking.arrived_ms
        if not is_old or effect.fault is None or effect.fault.code != "tool.timeout" or asking.runs >= MAX_RUNS:
            return False
        tool = self._find_tool(asking.tool_id)
        return tool is not None and not tool.side_effects

    def _end(
        self,
        asking: OssaAsking,
        message: Message | None,
        now: Now,
        *,
        is_remembered: bool = False,
        is_stored: bool = False,
    ) -> list[Event]:
        """``is_stored``: what is told waited for the disk already, and need not wait for what came after it."""
        del self._open[asking.ref]
        self._open_bytes -= asking.size
        if is_remembered and message is not None:
            self._remembered[asking.ref] = (asking.digest, message)
            if len(self._remembered) > MAX_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        if asking.tickets:
            after_disk = message is not None and asking.message.level > 0 and not is_stored
            self.output.append(Saying(message, tuple(asking.tickets), asking.is_sealed, after_disk))
        correlation = asking.message.correlation_id
        waiting = None if correlation is None else self._by_correlation.get(correlation)
        if waiting is None or correlation is None or waiting[0] is not asking:
            return []
        waiting.popleft()
        return self._go_on(correlation, now)

    def _go_on(self, correlation: str, now: Now) -> list[Event]:
        """Start the next of a correlation; those that end at once, because they expired, one after the other."""
        if self._is_going_on:
            return []
        self._is_going_on = True
        events: list[Event] = []
        try:
            waiting = self._by_correlation[correlation]
            while waiting:
                first = waiting[0]
                events += self._start(first, now)
                if waiting and waiting[0] is first:
                    return events
            del self._by_correlation[correlation]
        finally:
            self._is_going_on = False
        return events

    def give_up(self) -> list[tuple[int, ...]]:
        """A defect ended the conversation: the tickets of all who wait, each answered by nobody else from here on."""
        tickets = [tuple(asking.tickets) for asking in self._open.values()]
        self._open.clear()
        self._by_correlation.clear()
        self._open_bytes = 0
        return tickets

    # -- results of commands -------------------------------------------------------------------------------------------

    def _owe(self, ref: str, saying: Saying, now: Now) -> list[Event]:
        assert saying.message is not None
        self.owed.add(ref, saying, saying.message, now.ms)
        self.output.append(saying)
        return self._let_go(now)

    def _let_go(self, now: Now) -> list[Event]:
        """Forget results that nobody came for."""
        events: list[Event] = []
        for one in self.owed.drop_overdue(now.ms):
            what = f"of {one.ref or one.message.message_id}"
            events.append(Noticed("result.dropped", EDGE, self.principal.identity, what))
            if one.ref:
                events.append(self._command_step(one.ref, "dropped", EMPTY_OBJECT, done=True))
        return events

    def acknowledged(self, message_id: str) -> list[Event]:
        """The agent has a result."""
        found = self.owed.drop(message_id)
        if found is None or not found.ref:
            return []
        return [self._command_step(found.ref, "told", EMPTY_OBJECT, done=True)]

    def take_up(self, ref: str, command: Command, now: Now) -> None:
        """After a restart: a command whose result is owed."""
        message = reading.read_own(bytes(command.message))
        asking = self._asking(message, recipient_of(message, ref), command.is_sealed, now)
        asking.call_id = command.call_id
        self._resumed[ref] = asking

    @property
    def is_waiting(self) -> bool:
        """Whether ``look`` has something to look for."""
        return bool(self._resumed)

    def look(self, now: Now) -> list[Event]:
        """Whether calls that were open when the exchange stopped have ended: nobody tells this conversation."""
        events = self._let_go(now)
        for ref, asking in list(self._resumed.items()):
            view = self._find_call(asking.call_id)
            if view is None:  # its record was removed meanwhile
                del self._resumed[ref]
                events.append(self._command_step(ref, "dropped", EMPTY_OBJECT, done=True))
            elif view.status.is_outcome:
                del self._resumed[ref]
                view = self._as_it_was(view, ref)
                ms = messages.moment(view.finished_at) if view.finished_at else asking.arrived_ms
                made = self._outcome(asking, view.call_id, view.output, view.error, view.large, ms)
                events += self._owe(ref, Saying(made, (), asking.is_sealed), now)
        return events

    def _as_it_was(self, view: CallView, ref: str) -> CallView:
        """An outcome with what is only for its caller: the record shows it masked, and of a sensitive one a hash."""
        remembered = self._find_keyed(self.principal.identity, ref)
        return view if remembered is None or remembered.call_id != view.call_id else remembered

    # -- words ---------------------------------------------------------------------------------------------------------

    def _say(self, message: Message | None, tickets: tuple[int, ...], asking: OssaAsking) -> None:
        self.output.append(Saying(message, tickets, asking.is_sealed))

    def _id(self, asking: OssaAsking, kind: str) -> str:
        return derived_id(self._key, kind, self.agent_id, asking.ref, str(asking.runs))

    def _reply(self, asking: OssaAsking, kind: str, payload: Raw, ms: int) -> Message:
        return messages.reply(asking.message, kind, asking.recipient, self._id(asking, kind), ms, payload)

    def _receipt(self, asking: OssaAsking, kind: str, at: str) -> Message:
        body = messages.receipt(asking.message.message_id)
        sender = US if asking.message.type == EVENT else asking.recipient
        return Message(
            self._id(asking, kind), kind, sender, (asking.message.sender,), at, kind, body,
            correlation_id=asking.message.correlation,
        )  # fmt: skip

    def _failure(self, asking: OssaAsking, info: ErrorInfo) -> Message:
        return translate.failed(asking.message, info, self._id(asking, messages.ERROR), asking.recipient)
