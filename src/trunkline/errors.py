"""Every exception Trunkline raises. A *fault* (``model.Fault``) is a value that travels, an exception a Python stack.

::

    TrunklineError
    ├── ConfigError            a file or a command line that cannot be used; names the place
    ├── ProtocolError
    │   ├── LocalProtocolError   we asked a session for something its state forbids
    │   └── RemoteProtocolError  the peer broke the protocol; carries the fault and whether the peer hears of it
    ├── LedgerError
    │   ├── LedgerCorrupt        an entry does not match its hash; carries its number
    │   ├── LedgerNotCopied      a copy cannot go to the file that was named
    │   ├── LedgerFull           the disk is full
    │   ├── LedgerFailed         a write or a sync failed: never retried
    │   └── LedgerLocked         another process holds this ledger
    ├── ExchangeUnreachable    no exchange is running in this home folder
    ├── NotAdmitted            the exchange does not let this agent in
    ├── ToolError              raised by a tool's author on purpose: the caller is told exactly this
    ├── ToolFailed             a call that an agent made did not succeed; carries the fault
    ├── WorkspaceError         a file or shell tool of ours could not do its work; carries what kind of reason
    │   └── ScriptChanged        a command was approved, and a file that it reads has changed since
    ├── SecretMissing          what the configuration refers to is not there; names the reference, never the secret
    ├── SignInRefused          nobody can sign in at a server, or not this way; says why, without a word of its own
    ├── JobRefused             the inputs of a job cannot be used; names the field
    ├── JobFailed              a job could not be done; nothing is wrong with its inputs
    └── InvariantBroken        ``hub.check()`` found a contradiction

It does not own the texts that reach a peer: those come from the table of faults in ``model``, never from ``str(exc)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from trunkline.model import Fault, Status

__all__ = [
    "ConfigError",
    "ExchangeUnreachable",
    "InvariantBroken",
    "JobFailed",
    "JobRefused",
    "LedgerCorrupt",
    "LedgerError",
    "LedgerFailed",
    "LedgerFull",
    "LedgerLocked",
    "LedgerNotCopied",
    "LocalProtocolError",
    "NotAdmitted",
    "ProtocolError",
    "RemoteProtocolError",
    "ScriptChanged",
    "SecretMissing",
    "SignInRefused",
    "ToolError",
    "ToolFailed",
    "TrunklineError",
    "WorkspaceError",
]


class TrunklineError(Exception):
    """The root of the tree."""


class ConfigError(TrunklineError):
    """A configuration that cannot be used. ``place`` is ``file:line`` or the key's path."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


class ProtocolError(TrunklineError):
    """A rule of a protocol was broken."""


class LocalProtocolError(ProtocolError):
    """We asked for something that the session's state does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol. ``code`` is one of that protocol's, ``message`` a text that is safe to send."""

    def __init__(self, code: str, message: str, *, in_reply_to: str | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.in_reply_to = in_reply_to


class LedgerError(TrunklineError):
    """The record could not be read or written."""


class LedgerCorrupt(LedgerError):
    """An entry differs from its hash, or is missing. Nothing is repaired or deleted."""

    def __init__(self, number: int, reason: str) -> None:
        # 0: no entry, but the file as a whole.
        super().__init__(f"entry {number}: {reason}" if number else reason)
        self.number = number
        self.reason = reason


class LedgerNotCopied(LedgerError):
    """A copy of the record cannot go to this file; the record itself is not in question."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class LedgerFull(LedgerError):
    """No room on the disk."""


class LedgerFailed(LedgerError):
    """A write or a sync failed. What was not acknowledged stays unacknowledged."""


class LedgerLocked(LedgerError):
    """Another exchange is using this ledger."""


class ExchangeUnreachable(TrunklineError):
    """No exchange is running where we looked."""


class NotAdmitted(TrunklineError):
    """The exchange does not let this agent in, and trying again will not help."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class ToolError(TrunklineError):
    """For a tool's author to raise: the call fails, and the caller is told exactly this. Put no secret into it."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "tool.failed",
        retryable: bool = False,
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        # Here, not above: the ledger's writer and the keeper need errors but not the model, which costs them 5 MB each.
        from trunkline.model import Fault

        self.fault = Fault(code, message, retryable, details)


class ToolFailed(TrunklineError):
    """A call that an agent made did not succeed. ``call_id`` is the exchange's, for `trunkline ledger show --call`."""

    def __init__(self, tool_id: str, status: Status, fault: Fault, call_id: str | None = None) -> None:
        super().__init__(f"{tool_id}: {fault.code}: {fault.message}")
        self.tool_id = tool_id
        self.status = status
        self.fault = fault
        self.call_id = call_id


class WorkspaceError(TrunklineError):
    """A file or shell tool could not do its work. ``message`` is safe to send: no path outside the workspace.

    ``in_doubt`` says that some or all of it may have been done.
    """

    def __init__(
        self, kind: Literal["validation", "policy", "execution", "system"], message: str, *, in_doubt: bool = False
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.in_doubt = in_doubt


class ScriptChanged(WorkspaceError):
    """A file that a command reads is another than was shown to the person who approved the command; it did not run."""

    def __init__(self) -> None:
        text = "A file that the command reads is another than was shown to the person who approved: ask again"
        super().__init__("policy", text)


class SecretMissing(TrunklineError):
    """A secret that the configuration refers to is not there. The text names the reference, for the operator."""


class SignInRefused(TrunklineError):
    """A person cannot sign in at a server. The text is ours alone and safe to show: no token, no text of a stranger."""


class JobRefused(TrunklineError):
    """The inputs of a job cannot be used. The text begins with the field, quotes no value, and is safe to send."""


class JobFailed(TrunklineError):
    """A job could not be done, though nothing is wrong with its inputs. The text is safe to send."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class InvariantBroken(TrunklineError):
    """The hub contradicts itself."""


# Where this package is, whatever the folder above it is called.
_PACKAGE: Final = __file__.rpartition("/")[0] + "/"


def where_raised(error: BaseException) -> str:
    """Where an exception came from, without its text (that may hold a payload) and without this machine's folders."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    file = trace.tb_frame.f_code.co_filename
    if file.startswith(_PACKAGE):
        inside = file.removeprefix(_PACKAGE)
    elif "/site-packages/" in file:
        inside = file.rpartition("/site-packages/")[2]
    else:
        inside = file.rpartition("/")[2]
    return f"{inside}:{trace.tb_lineno}"
