"""The wire of Agent Spaces 1.0: which operations and events there are, their fields, and what is wrong with one.

Owns the protocol's field names, their types, defaults and bounds. A validator reads a value (JSON as Python has it)
and answers with a dictionary: ``success``, and ``data`` with the defaults filled in or ``error`` with every fault. It
does not own what an operation does, or whether it may.

Invariant: a validator never raises, whatever it is given; only ``parse_operation`` does.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct

from trunkline import strictjson
from trunkline.errors import RemoteProtocolError, WorkspaceError
from trunkline.workspace.paths import check_cwd, check_path

PROTOCOL_VERSION: Final = "1.0"
# One message in either direction: a file of the largest size in base64, and what stands around it.
MAX_MESSAGE_BYTES: Final = 16_777_216
# More is a program that should have been a shell script.
MAX_OPERATIONS: Final = 1000
# An edit is searched for in the whole file; this many still take under a second.
MAX_EDITS: Final = 1000
DEFAULT_TIMEOUT_MS: Final = 30_000
# Of one command; rules look at the name of each.
MAX_VARIABLES: Final = 1000
# The ids that clients give their operations. They come back in events and go to no other edge: names that do are half
# as long (``model.MAX_NAME_CHARS``).
MAX_ID_CHARACTERS: Final = 256
# A message may have a fault in each field of each operation; this many tell what is wrong with it.
MAX_FAULTS: Final = 100

STATUSES: Final = ("completed", "awaiting_approval", "error")
CATEGORIES: Final = ("validation", "policy", "execution", "timeout", "system")
ENCODINGS: Final = ("utf-8", "base64")

Result = dict[str, Any]
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Issue(Struct, frozen=True):
    """One thing that is wrong. ``path`` is where, from the message's root: ``operations[2].path``."""

    path: str
    message: str
    index: int | None = None


class Bad(Exception):
    """A value is not what its field wants; says what that would be. ``at`` is where inside the value."""

    def __init__(self, message: str, at: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.at = at


Reader = Callable[[Any], Any]


class Field(Struct, frozen=True):
    """One field: how its value is read, and what it is if absent; UNSET: it has to be there, None: it stays away."""

    read: Reader
    default: Any = None


# --- values -----------------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """A string that can be written down: lone surrogates have no UTF-8."""
    if not isinstance(value, str):
        raise Bad("must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Bad("is not valid Unicode: it holds half a surrogate pair") from None
    return value


def name(value: Any) -> str:
    """An operation's id, by which its events name it."""
    found = text(value)
    if not found or len(found) > MAX_ID_CHARACTERS or not found.isprintable():
        raise Bad(f"must have 1 to {MAX_ID_CHARACTERS} printable characters")
    return found


def path(value: Any) -> str:
    """A path of a file in the workspace (SP-076 to SP-080)."""
    return _checked(text(value), check_path)


def folder(value: Any) -> str:
    """A path of a folder in the workspace; ``.`` is its root."""
    return _checked(text(value), check_cwd)


def _checked(value: str, check: Callable[[str], object]) -> str:
    try:
        check(value)
    except WorkspaceError as error:
        raise Bad(error.message) from None
    return value


def boolean(value: Any) -> bool:
    """True or false, not 1 or 0."""
    if not isinstance(value, bool):
        raise Bad("must be true or false")
    return value


def whole_number(value: Any) -> int:
    """An integer, or a float that is one (SP-036: the text says number, fractions of a millisecond mean nothing)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Bad("must be a number")
    if isinstance(value, float) and not value.is_integer():
        raise Bad("must be a whole number")
    return int(value)


def timeout(value: Any) -> int:
    """Milliseconds; too many are capped where the command is run."""
    found = whole_number(value)
    if not 1 <= found <= 2**53:
        raise Bad("must be a positive number of milliseconds")
    return found


def command(value: Any) -> str:
    """A command line; the operating system ends its words at null bytes."""
    found = text(value)
    if "\0" in found:
        raise Bad("must not contain a null byte")
    return found


def environment(value: Any) -> dict[str, str]:
    """Names and texts."""
    if not isinstance(value, dict):
        raise Bad("must be an object")
    if len(value) > MAX_VARIABLES:
        raise Bad(f"must have at most {MAX_VARIABLES} variables")
    for key, content in value.items():
        if not isinstance(key, str) or not _VARIABLE.fullmatch(key):
            raise Bad("a name must be letters, digits and underscores, and not begin with a digit")
        try:
            command(content)
        except Bad as error:
            raise Bad(error.message, f".{key}") from None
    return dict(value)


def _edits(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise Bad("must be an array")
    if not 1 <= len(value) <= MAX_EDITS:
        raise Bad(f"must have 1 to {MAX_EDITS} edits")
    found = []
    for number, edit in enumerate(value):
        faults: list[tuple[str, str]] = []
        read = _read_fields(edit, EDIT, faults)
        if faults:
            raise Bad(faults[0][1], f"[{number}]{faults[0][0]}")
        if not read["oldContent"]:
            raise Bad("must not be empty", f"[{number}].oldContent")
        found.append(read)
    return found


def one_of(*allowed: str) -> Reader:
    """One of some words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise Bad(f"must be one of {', '.join(allowed)}")
        return value

    return read


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Bad("must be an object")
    return dict(value)


def _moment(value: Any) -> str:
    try:
        dt.datetime.fromisoformat(text(value))
    except ValueError:
        raise Bad("must be an ISO 8601 time") from None
    return str(value)


def _yes(value: Any) -> bool:
    if value is not True:
        raise Bad("must be true")
    return True


def _path_text(value: Any) -> str:
    """A path as an event repeats it."""
    return text(value)


# --- the table --------------------------------------------------------------------------------------------------------

EDIT: Final = {"oldContent": Field(text, UNSET), "newContent": Field(text, UNSET), "replaceAll": Field(boolean)}
_ENCODING: Final = Field(one_of(*ENCODINGS), "utf-8")

OPERATIONS: Final[dict[str, dict[str, Field]]] = {
    "message": {"content": Field(text, UNSET)},
    "createFile": {
        "path": Field(path, UNSET),
        "content": Field(text, UNSET),
        "encoding": _ENCODING,
        "overwrite": Field(boolean, default=False),
    },
    "readFile": {"path": Field(path, UNSET), "encoding": _ENCODING},
    "editFile": {"path": Field(path, UNSET), "edits": Field(_edits, UNSET)},
    "deleteFile": {"path": Field(path, UNSET)},
    "shell": {
        "command": Field(command, UNSET),
        "cwd": Field(folder),
        "timeout": Field(timeout, DEFAULT_TIMEOUT_MS),
        "env": Field(environment),
    },
}

_FILE: Final = {"path": Field(_path_text, UNSET), "success": Field(boolean, UNSET), "error": Field(text)}
EVENTS: Final[dict[str, dict[str, Field]]] = {
    "message": {"success": Field(_yes, UNSET)},
    "createFile": {**_FILE, "bytesWritten": Field(whole_number)},
    "readFile": {
        **_FILE,
        "content": Field(text),
        "encoding": Field(one_of(*ENCODINGS)),
        "size": Field(whole_number),
    },
    "editFile": {**_FILE, "editsApplied": Field(whole_number)},
    "deleteFile": _FILE,
    "shell": {
        "command": Field(text, UNSET),
        "success": Field(boolean, UNSET),
        "exitCode": Field(whole_number),
        "stdout": Field(text),
        "stderr": Field(text),
        "durationMs": Field(whole_number),
        "timedOut": Field(boolean),
    },
    "approvalRequired": {
        "operationId": Field(text, UNSET),
        "operationType": Field(one_of(*OPERATIONS), UNSET),
        "reason": Field(text, UNSET),
        "details": Field(_object, UNSET),
    },
    "policyDenied": {
        "operationType": Field(one_of(*OPERATIONS), UNSET),
        "reason": Field(text, UNSET),
        "suggestion": Field(text),
    },
    "error": {
        "category": Field(one_of(*CATEGORIES), UNSET),
        "message": Field(text, UNSET),
        "details": Field(_object, UNSET),
    },
}
# What an event that tells of success has to tell besides.
_ON_SUCCESS: Final = {
    "readFile": ("content", "encoding", "size"),
    "editFile": ("editsApplied",),
}


def _read_fields(value: Any, fields: dict[str, Field], faults: list[tuple[str, str]]) -> dict[str, Any]:
    """The known fields of an object, defaults filled in; what is wrong goes to ``faults`` with its place."""
    if not isinstance(value, dict):
        faults.append(("", "must be an object"))
        return {}
    found: dict[str, Any] = {}
    for key, field in fields.items():
        given = value.get(key)
        if given is None:  # decision 20: null is the same as absent
            if field.default is UNSET:
                faults.append((f".{key}", "is missing"))
            elif field.default is not None:
                found[key] = field.default
            continue
        try:
            found[key] = field.read(given)
        except Bad as error:
            faults.append((f".{key}{error.at}", error.message))
    return found


# --- operations -------------------------------------------------------------------------------------------------------


def _operation(value: Any, faults: list[tuple[str, str]]) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, dict) else None
    fields = OPERATIONS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        if not isinstance(value, dict):
            faults.append(("", "an operation must be an object"))
        else:  # SP-001, SP-010
            faults.append((".type", f"must be one of {', '.join(OPERATIONS)}"))
        return {}
    data = {"type": kind, **_read_fields(value, {"id": Field(name), **fields}, faults)}
    if data.get("encoding") == "base64" and isinstance(content := data.get("content"), str):
        try:
            base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            faults.append((".content", "is not valid base64"))
    return data


def validate_operation(value: Any) -> Result:
    """``{"success": True, "data": …}`` with the defaults filled in, or ``{"success": False, "error": …}`` (SP-081)."""
    faults: list[tuple[str, str]] = []
    data = _operation(value, faults)
    return _result(data, [Issue(where.removeprefix("."), problem) for where, problem in faults])


def parse_operation(value: Any) -> dict[str, Any]:
    """The operation, or ``RemoteProtocolError`` with code ``validation`` (SP-083)."""
    result = validate_operation(value)
    if not result["success"]:
        raise RemoteProtocolError("validation", result["error"]["message"])
    data: dict[str, Any] = result["data"]
    return data


def validate_operations_message(value: Any) -> Result:
    """The same for a whole message (SP-082): all faults of all operations, and ids that appear twice."""
    if not isinstance(value, dict):
        return _result({}, [Issue("", "the message must be an object")])
    if "events" in value and "operations" not in value:  # SP-002
        return _result({}, [Issue("events", "events messages go from the runtime to the agent, not to it")])
    found = [*_version_faults(value)]
    data: dict[str, Any] = {"protocolVersion": PROTOCOL_VERSION, "operations": []}
    given = value.get("operations")
    if not isinstance(given, list):
        found.append(Issue("operations", "is missing" if given is None else "must be an array"))
        given = []
    elif len(given) > MAX_OPERATIONS:
        found.append(Issue("operations", f"has {len(given)} operations; the limit is {MAX_OPERATIONS}"))
        given = []
    stop = value.get("stopOnError")
    if isinstance(stop, bool):
        data["stopOnError"] = stop
    elif stop is not None:
        found.append(Issue("stopOnError", "must be true or false"))
    ids: dict[str, int] = {}
    for index, item in enumerate(given):
        faults: list[tuple[str, str]] = []
        operation = _operation(item, faults)
        own = operation.get("id")
        if own is not None and (first := ids.setdefault(own, index)) != index:
            faults.append((".id", f"is also the id of operations[{first}]"))
        found += [Issue(f"operations[{index}]{where}", problem, index) for where, problem in faults]
        data["operations"].append(operation)
    return _result(data, found)


def read_operations_message(data: bytes) -> Result:
    """The same for bytes: strict JSON of a bounded size first."""
    if len(data) > MAX_MESSAGE_BYTES:
        return _result({}, [Issue("", f"the message is larger than {MAX_MESSAGE_BYTES} bytes")])
    try:
        value = strictjson.load(data)
    except strictjson.NotStrictJson as error:
        return _result({}, [Issue("", f"the message is not strict JSON: {error}")])
    return validate_operations_message(value)


def _version_faults(value: dict[str, Any]) -> list[Issue]:
    version = value.get("protocolVersion")
    if version is None:  # SP-004
        return [Issue("protocolVersion", "is missing")]
    if version != PROTOCOL_VERSION or not isinstance(version, str):  # SP-006
        return [Issue("protocolVersion", f'must be the string "{PROTOCOL_VERSION}"')]
    return []


def _result(data: dict[str, Any], faults: list[Issue]) -> Result:
    if not faults:
        return {"success": True, "data": data}
    issues: list[dict[str, Any]] = []
    for found in faults[:MAX_FAULTS]:
        issue: dict[str, Any] = {"path": found.path, "message": found.message}
        if found.index is not None:
            issue["index"] = found.index
        issues.append(issue)
    first = issues[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    message = f"{first['path']}: {first['message']}" if first["path"] else first["message"]
    return {"success": False, "error": {"message": message + more, "issues": issues}}


# --- events -----------------------------------------------------------------------------------------------------------


def validate_event(value: Any) -> Result:
    """Whether this is an event of the fixed set. Fields that we do not know stay: a later runtime may tell more."""
    faults: list[tuple[str, str]] = []
    kind = value.get("type") if isinstance(value, dict) else None
    fields = EVENTS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        problem = f"must be one of {', '.join(EVENTS)}" if isinstance(value, dict) else "an event must be an object"
        return _result({}, [Issue("type", problem)])
    # Accepted without a time and without an id: the specification's own examples of failures have neither.
    read = _read_fields(value, {"timestamp": Field(_moment), "operationId": Field(text), **fields}, faults)
    if read.get("success") is True:
        faults += [(f".{key}", "is missing") for key in _ON_SUCCESS.get(str(kind), ()) if key not in read]
    elif fields.get("error") is not None and "error" not in read and not faults:
        faults.append((".error", "is missing"))
    return _result(dict(value), [Issue(where.removeprefix("."), problem) for where, problem in faults])


def validate_events_message(value: Any) -> Result:
    """The same for a whole events message."""
    if not isinstance(value, dict):
        return _result({}, [Issue("", "the message must be an object")])
    found = [*_version_faults(value)]
    faults: list[tuple[str, str]] = []
    fields = {"runId": Field(text, UNSET), "status": Field(one_of(*STATUSES), UNSET)}
    _read_fields(value, fields, faults)
    found += [Issue(where.removeprefix("."), problem) for where, problem in faults]
    events = value.get("events")
    if not isinstance(events, list):
        found.append(Issue("events", "must be an array"))
        events = []
    for index, event in enumerate(events):
        result = validate_event(event)
        if not result["success"]:
            issues = result["error"]["issues"]
            found += [Issue(f"events[{index}].{issue['path']}", issue["message"], index) for issue in issues]
    return _result(dict(value), found)


# --- bodies of our own routes -----------------------------------------------------------------------------------------


class NewSpace(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/spaces``. ``policy`` replaces single values of the preset: ``{"network": {"allowed": true}}``."""

    name: str
    preset: str = "standard"
    policy: dict[str, dict[str, Any]] = {}
    # A folder that is there already, in which the space works; empty: one of its own.
    at: str = ""


class Undo(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/spaces/{space}/undo``. ``run`` is a run, an undo or the number of a snapshot; without one it is the
    last run that is still in the files. ``redo``: to before the last undo. ``dry_run``: only tell.
    """

    run: str = ""
    redo: bool = False
    dry_run: bool = False


class Approval(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The answer to what a run asked. ``approval_id`` is that of the event which it answers, where there were more."""

    operation_id: str
    decision: Literal["approved", "denied"]
    reason: Annotated[str, Meta(max_length=2000)] | None = None
    approval_id: str | None = None


class Resume(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/runs/{id}/resume``."""

    approval: Approval


# The specification's own names (SP-081 to SP-083).
validateOperation: Final = validate_operation  # noqa: N816
validateOperationsMessage: Final = validate_operations_message  # noqa: N816
parseOperation: Final = parse_operation  # noqa: N816
