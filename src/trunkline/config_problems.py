"""What may be wrong with settings that their types do not tell: each with its key and what was expected.

Owns no setting (``config``) and reads no file (``config_file``).

Invariant: settings without a problem here can be used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from trunkline import input_conditions
from trunkline.addresses import host_and_port, is_loopback
from trunkline.config import (
    LISTENERS,
    SCHEMA_ID,
    AgentProgram,
    Jobs,
    McpServer,
    McpSignIn,
    Nostr,
    Notify,
    Profile,
    RuleLine,
    Sections,
)
from trunkline.model import (
    AGENT_ID,
    CALLER_EDGES,
    MOUNT_PREFIX,
    OPERATOR,
    RESERVED_PREFIXES,
    TOOL_NAME,
    Circumstance,
    reserved_prefix,
)
from trunkline.secret_references import FILE, placed, problem_of
from trunkline.toml_lines import KeyPath
from trunkline.tomlfile import placed_path, suggestion

# `sun_path` holds 108 bytes on Linux, the last of them zero.
MAX_SOCKET_PATH_BYTES: Final = 107
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
# What the transport itself says (MCP, streamable HTTP).
_OWN_HEADERS: Final = frozenset(
    {
        *("accept", "connection", "content-length", "content-type", "host", "last-event-id", "mcp-method", "mcp-name"),
        *("mcp-protocol-version", "mcp-session-id", "transfer-encoding"),
    }
)
# What OSSA calls the type of an agent (docs/protocols/ossa.md).
_AGENT_CLASS: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_CHECKPOINT: Final = re.compile(r"[0-9]{1,9}:[0-9a-f]{64}")


def problems(config: Sections, socket: str) -> Iterator[tuple[KeyPath, str]]:
    """What the types alone do not tell, in the order of the sections."""
    yield from _listen_problems(config)
    yield from _url_problems(config)
    yield from _tool_problems(("chiffon", "work"), config.chiffon.work, "the work")
    yield from _tool_problems(("ossa", "actions"), config.ossa.actions, "the action")
    yield from _offer_problems(config.nostr)
    for name in config.ossa.rate:
        if not _AGENT_CLASS.fullmatch(name):
            yield ("ossa", "rate", name), f"expected the class of an agent, {_AGENT_CLASS.pattern}"
    yield from _command_problems(("pylon", "codex"), config.pylon.codex)
    yield from _job_problems(config.jobs)
    if not AGENT_ID.fullmatch(config.pylon.app_key):
        yield ("pylon", "app_key"), "expected 1 to 128 of the characters A-Z a-z 0-9 . _ -, the first a letter or digit"
    yield from _agent_problems(config.agents)
    yield from _mcp_problems(config.mcp_servers)
    yield from _profile_problems(config.profile)
    for index, rule in enumerate(config.policy_table.rule):
        yield from _rule_problems(("policy", "rule", index), rule)
    for name, value in structs.asdict(config.limits).items():
        if not 0 <= value < float("inf"):
            yield ("limits", name), "expected a number from 0, where 0 means no bound"
    if (anchor := config.ledger.anchor) is not None:
        if (not anchor.file) == (not anchor.command):
            yield ("ledger", "anchor"), "expected one of the keys `file` and `command`"
        elif anchor.command:
            yield from _command_problems(("ledger", "anchor", "command"), anchor.command)
    if (notify := config.approvals.notify) is not None:
        yield from _notify_problems(("approvals", "notify"), notify)
    if config.otel.endpoint and not _is_told_safely(config.otel.endpoint):
        yield ("otel", "endpoint"), "expected https://HOST[:PORT]/v1/traces, or http:// on this machine"
    yield from _path_problems(("opensentience", "socket"), config.opensentience.socket)
    if config.ossa.client_ca:
        yield from _path_problems(("ossa", "client_ca"), config.ossa.client_ca)
    if (size := len(os.fsencode(socket))) > MAX_SOCKET_PATH_BYTES:
        problem = f"{socket} has {size} bytes and a socket's path at most {MAX_SOCKET_PATH_BYTES}; use a shorter --home"
        yield ("opensentience", "socket"), problem


def _notify_problems(key: KeyPath, notify: Notify) -> Iterator[tuple[KeyPath, str]]:
    if (notify.command is None) == (notify.url is None):
        yield key, "expected one of the keys `command` and `url`"
    elif notify.command is not None:
        yield from _command_problems((*key, "command"), notify.command)
    elif notify.url is not None and not _is_told_safely(notify.url):
        yield (*key, "url"), "expected https://HOST[:PORT]/PATH, or http:// on this machine"


def _is_told_safely(url: str) -> bool:
    from urllib.parse import urlsplit

    if not _is_url(url, ("http", "https"), has_path=True):
        return False
    parts = urlsplit(url)
    return parts.username is None and (parts.scheme == "https" or is_loopback(parts.hostname or ""))


def _listen_problems(config: Sections) -> Iterator[tuple[KeyPath, str]]:
    for key, may_be_off in LISTENERS.items():
        address: str = getattr(getattr(config, key[0]), key[1])
        if not address and may_be_off:
            continue
        try:
            host, _ = host_and_port(address)
        except ValueError as error:
            yield key, str(error)
            continue
        if is_loopback(host):
            continue
        if key != ("ossa", "listen"):
            yield key, f"{host} is not loopback, and only [ossa] may listen elsewhere: 127.0.0.1 or [::1]"
        elif not config.ossa.require_signature:
            # With TLS and a signature on every message it may be reached from anywhere; without signatures whoever
            # reaches it is whom he says he is.
            yield key, f"{host} is not loopback, and without `require_signature` it has to be: 127.0.0.1 or [::1]"


def _url_problems(config: Sections) -> Iterator[tuple[KeyPath, str]]:
    """Those that we connect to, or compare with; a password in one must not get into a message."""
    urls: list[tuple[KeyPath, str, tuple[str, ...], bool]] = []
    urls += [((name, "nats"), getattr(config, name).nats, ("nats", "tls"), False) for name in ("chiffon", "cluster")]
    urls += [(("nostr", "relays", index), url, ("ws", "wss"), True) for index, url in enumerate(config.nostr.relays)]
    for section, allowed in (("pylon", config.pylon.allowed_origins), ("nostr", config.nostr.allowed_origins)):
        urls += [
            ((section, "allowed_origins", index), origin, ("http", "https"), False)
            for index, origin in enumerate(allowed)
        ]
    for index, server in enumerate(config.mcp_servers):
        if server.url is not None:
            urls.append((("mcp", index, "url"), server.url, ("http", "https"), True))
    for key, url, schemes, has_path in urls:
        is_off = not url and key[1] == "nats"
        if not is_off and not _is_url(url, schemes, has_path=has_path):
            forms = " or ".join(f"{scheme}://HOST[:PORT]" for scheme in schemes)
            yield key, f"expected {forms}" + (", with or without a path" if has_path else "")


def _job_problems(jobs: Jobs) -> Iterator[tuple[KeyPath, str]]:
    """What belongs to the endpoint makes no sense without it."""
    from urllib.parse import urlsplit

    if not jobs.endpoint:
        for name in ("model", "embedding_model", "key"):
            if getattr(jobs, name):
                yield ("jobs", name), "has no effect without `endpoint`"
        return
    if not _is_url(jobs.endpoint, ("http", "https"), has_path=True) or "@" in jobs.endpoint:
        yield ("jobs", "endpoint"), "expected https://HOST[:PORT]/PATH, without a user; the key is named by `key`"
    elif urlsplit(jobs.endpoint).scheme == "http" and not is_loopback(urlsplit(jobs.endpoint).hostname or ""):
        yield ("jobs", "endpoint"), "http leaves this machine unencrypted: expected https"
    if not jobs.model and not jobs.embedding_model:
        yield ("jobs", "endpoint"), "expected `model`, `embedding_model` or both beside it"
    if jobs.key and not re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*|(file|keyring):[^\0]+", jobs.key):
        yield ("jobs", "key"), "expected env:NAME, file:PATH or keyring:NAME, and never the key itself"


def _tool_problems(place: KeyPath, tools: Mapping[str, str], what: str) -> Iterator[tuple[KeyPath, str]]:
    """Names of a protocol that stand for tools."""
    for name, tool_id in tools.items():
        agent_id, _, tool_name = tool_id.partition("/")
        if not name:
            yield (*place, name), f"the name of {what} is empty"
        if not AGENT_ID.fullmatch(agent_id) or not TOOL_NAME.fullmatch(tool_name):
            yield (*place, name), "expected the id of a tool, 'agent_id/tool_name'"


def _offer_problems(nostr: Nostr) -> Iterator[tuple[KeyPath, str]]:
    from urllib.parse import urlsplit

    judge_agent, _, judge_tool = nostr.buyer.judge.partition("/")
    if nostr.buyer.judge and not (AGENT_ID.fullmatch(judge_agent) and TOOL_NAME.fullmatch(judge_tool)):
        yield ("nostr", "buyer", "judge"), "expected the id of a tool, 'agent_id/tool_name'"
    connection = nostr.wallet.connection
    if connection and not re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*|file:[^\0]+", connection):
        yield ("nostr", "wallet", "connection"), "expected env:NAME or file:PATH, and never the connection itself"
    for index, mint in enumerate(nostr.wallet.mints):
        place: KeyPath = ("nostr", "wallet", "mints", index)
        if not _is_url(mint, ("http", "https"), has_path=True) or "@" in mint:
            yield place, "expected https://HOST[:PORT][/PATH], without a user"
        elif urlsplit(mint).scheme == "http" and not is_loopback(urlsplit(mint).hostname or ""):
            yield place, "http leaves this machine unencrypted: expected https"
    if nostr.wallet.prepay and not (connection or nostr.wallet.mints):
        yield ("nostr", "wallet", "prepay"), "has no effect without `connection` or `mints`"
    for index, line in enumerate(nostr.offer):
        key: KeyPath = ("nostr", "offer", index)
        agent_id, slash, tool_name = line.partition("/")
        is_tool = bool(slash and AGENT_ID.fullmatch(agent_id) and TOOL_NAME.fullmatch(tool_name))
        if not is_tool and (slash or not SCHEMA_ID.fullmatch(line)):
            yield key, "expected the id of a tool, 'agent_id/tool_name', or of a job type, such as 'oa.embedding.v1'"
        elif line in nostr.offer[:index]:
            yield key, f"{line} stands here twice"
    for index, checkpoint in enumerate(nostr.chain.checkpoints):
        if _CHECKPOINT.fullmatch(checkpoint) is None:
            yield ("nostr", "chain", "checkpoints", index), "expected the height of a block and its hash, 'HEIGHT:HASH'"
    kinds = structs.asdict(nostr.kinds)
    for name, kind in kinds.items():
        if list(kinds.values()).count(kind) > 1 or kind == nostr.kinds.result:
            yield ("nostr", "kinds", name), f"{kind} is also the kind of something else"


def _command_problems(key: KeyPath, words: tuple[str, ...]) -> Iterator[tuple[KeyPath, str]]:
    if words and not words[0]:
        yield key, "the first word, the program, is empty"
    if any("\0" in word for word in words):
        yield key, "a word holds a zero character"


def _path_problems(key: KeyPath, path: str) -> Iterator[tuple[KeyPath, str]]:
    if not path:
        yield key, "expected a path"
    if "\0" in path:
        yield key, "a path holds no zero character"


def _agent_problems(agents: tuple[AgentProgram, ...]) -> Iterator[tuple[KeyPath, str]]:
    seen: dict[str, str] = {}
    for index, agent in enumerate(agents):
        key: KeyPath = ("agent", index, "id")
        yield from _id_problems(key, agent.id, seen)
        if reserved_prefix(agent.id):
            yield key, f"{agent.id!r} starts with a reserved name ({', '.join(RESERVED_PREFIXES)})"
        yield from _command_problems(("agent", index, "command"), agent.command)
        yield from _path_problems(("agent", index, "cwd"), agent.cwd or ".")
        if agent.manifest is not None:
            yield from _path_problems(("agent", index, "manifest"), agent.manifest)
        yield from _environment_problems(("agent", index, "env"), agent.env)
        yield from _isolation_problems(("agent", index), agent)


def _environment_problems(key: KeyPath, env: Mapping[str, str]) -> Iterator[tuple[KeyPath, str]]:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            yield (*key, name), "not a name and a text that an environment can hold"
        elif name.startswith("OPENSENTIENCE_"):
            yield (*key, name), "set by the exchange for each run"
        elif problem := problem_of(value):
            yield (*key, name), problem


def _isolation_problems(place: KeyPath, agent: AgentProgram | McpServer) -> Iterator[tuple[KeyPath, str]]:
    is_sandbox = agent.isolation not in {"user", "none"}
    no_effect = f'has no effect with isolation = "{agent.isolation}", which is no sandbox'
    for key, paths in (("read", agent.read), ("write", agent.write)):
        if any(not path or "\0" in path for path in paths):
            yield (*place, key), "expected paths"
        if paths and not is_sandbox:
            yield (*place, key), no_effect
    if not agent.network and not is_sandbox:
        yield (*place, "network"), f"false {no_effect}"


def write_problems(config: Sections, file: Path) -> Iterator[tuple[KeyPath, str]]:
    """An agent that may write to this file, or move what is above it, decides itself what it may."""
    real = os.path.realpath(file)
    yield from _reference_problems(config, file.parent)
    written = [(("agent", index, "write"), agent.write) for index, agent in enumerate(config.agents)]
    written += [(("mcp", index, "write"), server.write) for index, server in enumerate(config.mcp_servers)]
    for key, paths in written:
        for path in paths:
            folder = os.path.realpath(placed_path(path, file.parent))
            if real == folder or real.startswith(folder.rstrip("/") + "/"):
                yield key, f"{path} holds this file itself: name a folder beside it"


def _reference_problems(config: Sections, folder: Path) -> Iterator[tuple[KeyPath, str]]:
    """Who may write to a file decides what is read as a secret from it: a link there would have it be any file."""
    named_writable = [agent.write for agent in config.agents] + [server.write for server in config.mcp_servers]
    writable = [os.path.realpath(placed_path(path, folder)) for paths in named_writable for path in paths]
    tables: list[tuple[KeyPath, dict[str, str]]] = []
    tables += [(("agent", at, "env"), agent.env) for at, agent in enumerate(config.agents)]
    for at, server in enumerate(config.mcp_servers):
        tables += [(("mcp", at, "env"), server.env), (("mcp", at, "headers"), server.headers)]
    for key, texts in tables:
        for name, text in placed(texts, folder).items():
            if not text.startswith(FILE):
                continue
            # Where it stands, not where it leads: whoever may write there can make a link of it.
            named = Path(text.removeprefix(FILE))
            place = os.path.join(os.path.realpath(named.parent), named.name)  # noqa: PTH118
            if any(place == top or place.startswith(top.rstrip("/") + "/") for top in writable):
                yield (*key, name), "an agent may write to this file: keep secrets where none may"


def _mcp_problems(servers: tuple[McpServer, ...]) -> Iterator[tuple[KeyPath, str]]:
    seen: dict[str, str] = {}
    for index, server in enumerate(servers):
        yield from _id_problems(("mcp", index, "id"), server.id, seen)
        yield from _command_problems(("mcp", index, "command"), server.command or ())
        if (server.command is None) == (server.url is None):
            yield ("mcp", index), "expected one of the keys `command` and `url`"
        if not AGENT_ID.fullmatch(server.agent_id):
            yield ("mcp", index, "id"), f"its agent {MOUNT_PREFIX}ID may have 128 characters"
        yield from _path_problems(("mcp", index, "cwd"), server.cwd or ".")
        yield from _environment_problems(("mcp", index, "env"), server.env)
        yield from _isolation_problems(("mcp", index), server)
        if server.url is None:
            if server.headers:
                yield ("mcp", index, "headers"), "has no effect without `url`"
            if server.oauth != McpSignIn():
                yield ("mcp", index, "oauth"), "has no effect without `url`"
        else:
            yield from _remote_problems(("mcp", index), server, server.url)


def _remote_problems(key: KeyPath, server: McpServer, url: str) -> Iterator[tuple[KeyPath, str]]:
    """What of a server at a URL makes no sense or is not safe."""
    if _is_url(url, ("http", "https"), has_path=True) and not _is_told_safely(url):
        yield (*key, "url"), "expected https://HOST[:PORT]/PATH without a user, or http:// on this machine"
    for name in ("env", "read", "write", "isolation"):
        if getattr(server, name):
            yield (*key, name), "has no effect with `url`: nothing is started here"
    for name, value in server.headers.items():
        if not _HEADER.fullmatch(name) or name.lower() in _OWN_HEADERS:
            yield (*key, "headers", name), f"not a header that can be set; ours are {', '.join(sorted(_OWN_HEADERS))}"
        elif not value.isascii() or not value.isprintable():
            yield (*key, "headers", name), "expected printable ASCII"
        elif problem := problem_of(value):
            yield (*key, "headers", name), problem
    yield from _sign_in_problems((*key, "oauth"), server.oauth)


def _sign_in_problems(key: KeyPath, oauth: McpSignIn) -> Iterator[tuple[KeyPath, str]]:
    for name in ("client_id", "client_secret", "scope"):
        value: str = getattr(oauth, name)
        if not value.isascii() or not value.isprintable():
            yield (*key, name), "expected printable ASCII"
    if oauth.client_secret and not oauth.client_id:
        yield (*key, "client_secret"), "has no effect without `client_id`"
    elif oauth.client_secret and not oauth.issuer:
        yield (*key, "client_secret"), "expected `issuer` beside it: else whoever the server names would be shown it"
    if problem := problem_of(oauth.client_secret):
        yield (*key, "client_secret"), problem
    if oauth.client_document and oauth.client_id:
        yield (*key, "client_document"), "has no effect beside `client_id`"
    elif oauth.client_document and not _is_client_document(oauth.client_document):
        yield (*key, "client_document"), "expected https://HOST[:PORT]/PATH and nothing more"
    if oauth.issuer and not _is_told_safely(oauth.issuer):
        yield (*key, "issuer"), "expected https://HOST[:PORT][/PATH] without a user, or http:// on this machine"


# A name that others can look up, in small letters, a port that is not the usual one, and a path in which nothing is
# escaped or empty.
_CLIENT_DOCUMENT: Final = re.compile(
    r"https://([a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z][a-z0-9-]*)(:[1-9][0-9]{0,4})?((?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+)"
)


def _is_client_document(url: str) -> bool:
    """Whether a URL can be the name of a client: what is compared byte by byte has one way to be written."""
    found = _CLIENT_DOCUMENT.fullmatch(url)
    return found is not None and found[2] != ":443" and not {".", ".."} & set(found[3].split("/"))


def _profile_problems(profiles: tuple[Profile, ...]) -> Iterator[tuple[KeyPath, str]]:
    seen: dict[str, str] = {}
    for index, profile in enumerate(profiles):
        yield from _id_problems(("profile", index, "name"), profile.name, seen)
        if not profile.caller.startswith("mcp:") and "*" not in profile.caller.partition(":")[0]:
            yield (
                ("profile", index, "caller"),
                f"{profile.caller!r} matches nobody: expected 'mcp:NAME'; * is any characters",
            )
        for number, pattern in enumerate(profile.tools):
            if "*" not in pattern and pattern.count("/") != 1:
                yield ("profile", index, "tools", number), f"{pattern!r} matches no tool: expected 'agent_id/tool_name'"


def _id_problems(key: KeyPath, name: str, seen: dict[str, str]) -> Iterator[tuple[KeyPath, str]]:
    """Decision 19: two ids equal after case folding are one. ``seen`` maps the folded to the written form."""
    if not AGENT_ID.fullmatch(name):
        yield key, "expected 1 to 128 of the characters A-Z a-z 0-9 . _ -, the first a letter or digit"
    folded = name.casefold()
    if folded in seen:
        yield key, f"{name!r} is taken; the id {seen[folded]!r} stands further up"
    seen[folded] = name


def _rule_problems(key: KeyPath, rule: RuleLine) -> Iterator[tuple[KeyPath, str]]:
    """A rule that can match nothing is a mistake, and a dangerous one if it says deny."""
    edge, colon, _ = rule.caller.partition(":")
    if rule.caller != OPERATOR and "*" not in edge and not (colon and edge in CALLER_EDGES):
        expected = (
            f"{rule.caller!r} matches nobody: expected 'operator', or an edge and an id as in 'agent:com.example.echo'"
            f" (edges: {', '.join(CALLER_EDGES)})"
        )
        yield (*key, "caller"), expected + suggestion(edge, (OPERATOR, *CALLER_EDGES))
    if isinstance(rule.when, dict):
        yield from _when_problems((*key, "when"), rule.when)
    if "*" not in rule.tool and rule.tool.count("/") != 1:
        yield (
            (*key, "tool"),
            f"{rule.tool!r} matches no tool: expected 'agent_id/tool_name'; * stands for any characters",
        )


def _when_problems(key: KeyPath, when: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    for name in when.keys() - {"input", "circumstance"}:
        yield (*key, name), f"no such key{suggestion(name, ('input', 'circumstance'))}"
    if not when:
        yield key, "expected the key `input`"
    if "circumstance" in when and when["circumstance"] not in [one.value for one in Circumstance]:
        yield (*key, "circumstance"), "expected " + " or ".join(f'"{one.value}"' for one in Circumstance)
    if "input" not in when:
        return
    if not isinstance(when["input"], dict):
        yield (*key, "input"), "expected a table of JSON pointers"
        return
    try:
        input_conditions.compiled(when["input"])
    except ValueError as problem:
        yield (*key, "input"), str(problem)


def _is_url(text: str, schemes: tuple[str, ...], *, has_path: bool) -> bool:
    from urllib.parse import urlsplit

    # What `urlsplit` takes out silently, and what no host or path of a URL holds.
    if not text.isascii() or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    is_bare = not (parts.path or parts.query or parts.fragment) and "," not in text
    return parts.scheme in schemes and bool(parts.hostname) and port != 0 and (has_path or is_bare)
