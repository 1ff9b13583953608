from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.requirement import requirement
from trunkline.addresses import host_and_port
from trunkline.config import BUILTIN_RULES, Config
from trunkline.config_file import load
from trunkline.errors import ConfigError
from trunkline.home import Home
from trunkline.model import CALLER_EDGES, Circumstance, Decision, InputCondition, Limits
from trunkline.tomlfile import MAX_FILE_BYTES

REMOTE = '[[mcp]]\nid = "x"\nurl = "https://mcp.example/"\n'
ECHO = '[[agent]]\nid = "com.example.echo"\ncommand = ["python", "echo.py"]\n'
RULE = '[[policy.rule]]\ncaller = "operator"\ntool = "*"\ndecision = "allow"\n'

# Every section and key that is promised, with other values than the defaults.
ALL_KEYS = """
[http]
listen = "127.0.0.1:0"
[opensentience]
socket = "run/other.sock"
tcp = "127.0.0.1:7412"
heartbeat_interval_ms = 5000
max_frame_bytes = 1048576
max_inflight_requests = 8
timeout_s = 45
max_tool_input_bytes = 1000
max_tool_output_bytes = 2000
strict_types = true
schema_validation = "warn"
debug_errors = true
[ossa]
listen = "[::1]:0"
require_signature = false
any_uuid = true
client_ca = "/etc/ca.pem"
rate = {worker = 10}
actions = {greet = "com.example.hello/greet"}
[nostr]
relay = ""
relays = ["wss://relay.example"]
offer = ["oa.embedding.v1", "com.example.echo/echo"]
allowed_origins = ["https://page.example"]
max_jobs = 2
requests_per_minute = 60
max_context_tokens = 1000
pricing = { sandbox_per_minute_msats = 100 }
buyer = { judge = "com.example.judge/compare" }
chain = { confirmations = 3 }
wallet = { max_msats_per_job = 1, connection = "env:WALLET", prepay = true }
kinds = { request = 5051 }
[pylon]
listen = "localhost:0"
app_key = "key"
tls = false
allowed_origins = ["https://app.example"]
codex = []
[chiffon]
nats = "nats://127.0.0.1:4222"
timeout_s = 45
work = { infra_change = "com.example.infra/change" }
[jobs]
enabled = false
endpoint = "https://models.example/v1"
model = "chat"
embedding_model = "embed"
key = "file:secrets/models"
running = 2
memory_mb = 100
disk_mb = 100
timeout_s = 30
network = true
[cluster]
nats = "nats://127.0.0.1:4222"
[[agent]]
id = "com.example.echo"
command = ["python", "echo.py"]
cwd = "agents"
manifest = "opensentience.agent.json"
restart = "always"
env = { GREETING = "hello" }
reads_untrusted = true
pin_definitions = false
stop_grace_s = 1
max_log_bytes = 1000
isolation = "sandbox"
read = ["data", "~/models", "/srv/../opt"]
write = ["out"]
network = false
watch = true
[[mcp]]
id = "everything"
command = ["npx", "-y", "@modelcontextprotocol/server-everything"]
[[mcp]]
id = "remote"
url = "https://mcp.example"
[approvals]
expire_s = 60
notify = {command = ["tell-me"]}
[policy]
builtin = false
[[policy.rule]]
caller = "agent:com.example.*"
tool = "com.example.echo/*"
decision = "ask"
reason = "because"
side_effects = true
when = "untrusted"
[limits]
calls_per_s = 10
open_calls = 5
open_bytes = 1000
ledger_bytes_per_hour = 1000000
taint_s = 60
[log]
level = "debug"
format = "json"

[otel]
endpoint = "https://collector.example/v1/traces"
service = "mine"

[ledger]
retention_days = 30
anchor = {file = "share/heads"}
"""


NATS = "expected nats://HOST[:PORT] or tls://HOST[:PORT]"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(Path("/h"))
    home.config_file = tmp_path / "trunkline.toml"
    return home


def loaded(home: Home, text: str = "", **environ: str) -> Config:
    home.config_file.write_text(text, encoding="utf-8")
    return load(home, None, environ)


def refused(home: Home, text: str = "", **environ: str) -> str:
    """The error, with the file's folder cut away."""
    with pytest.raises(ConfigError) as error:
        loaded(home, text, **environ)
    return str(error.value).replace(f"{home.config_file.parent}/", "")


# --- what is accepted -------------------------------------------------------------------------------------------------


def test_without_a_file_the_defaults_are_in_force(home: Home) -> None:
    config = load(home, None, {})
    assert config.http.listen == "127.0.0.1:7411"
    assert config.agents == ()
    assert config.limits == Limits()
    assert config.approvals.expire_s == 3600


@requirement("OS-015")
def test_the_frame_limit_is_4_mib_unless_set(home: Home) -> None:
    assert loaded(home).opensentience.max_frame_bytes == 4_194_304
    assert loaded(home, "[opensentience]\nmax_frame_bytes = 8192").opensentience.max_frame_bytes == 8192


@requirement("OS-017")
def test_256_calls_may_be_in_flight_unless_set(home: Home) -> None:
    assert loaded(home).opensentience.max_inflight_requests == 256
    assert loaded(home, "[opensentience]\nmax_inflight_requests = 2").opensentience.max_inflight_requests == 2


def test_every_promised_section_and_key_is_taken_also_for_edges_that_are_not_built(home: Home) -> None:
    config = loaded(home, ALL_KEYS)
    untouched = [
        f"{section}.{key}"
        for section in msgspec.structs.fields(Config)
        if isinstance(value := getattr(config, section.name), msgspec.Struct)
        for key, default in msgspec.structs.asdict(type(value)()).items()
        if getattr(value, key) == default
    ]
    assert untouched == []
    (agent,) = config.agents
    defaults = msgspec.structs.asdict(type(agent)(id="x", command=("y",)))
    assert [key for key, default in defaults.items() if getattr(agent, key) == default] == []
    assert config.mcp_servers[1].url == "https://mcp.example"
    assert config.limits == Limits(
        calls_per_s=10, open_calls=5, open_bytes=1000, ledger_bytes_per_hour=1_000_000, taint_s=60
    )


def test_paths_are_made_absolute_against_the_files_folder_and_the_home(home: Home) -> None:
    config = loaded(home, ALL_KEYS)
    folder = home.config_file.parent
    assert config.opensentience.socket == "/h/run/other.sock"
    assert config.agents[0].cwd == str(folder / "agents")
    assert config.jobs.key == f"file:{folder}/secrets/models"
    assert config.agents[0].manifest == str(folder / "opensentience.agent.json")
    assert config.agents[0].read == (str(folder / "data"), os.path.expanduser("~/models"), "/opt")  # noqa: PTH111
    assert config.agents[0].write == (str(folder / "out"),)


def test_an_agent_runs_in_the_files_folder_unless_it_says_otherwise_and_has_no_manifest(home: Home) -> None:
    (agent,) = loaded(home, ECHO).agents
    assert agent.cwd == str(home.config_file.parent)
    assert agent.manifest is None


def test_a_named_file_is_read_instead_of_the_homes_and_its_folder_counts(home: Home, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "my.toml"
    other.parent.mkdir()
    other.write_text(ECHO)
    home.config_file.write_text("not read")
    assert load(home, other, {}).agents[0].cwd == str(other.parent)


def test_windows_line_ends_are_fine_and_do_not_shift_lines(home: Home) -> None:
    home.config_file.write_bytes(b"[http]\r\n\r\nlisten = 3\r\n")
    with pytest.raises(ConfigError, match=r"trunkline.toml:3: http.listen"):
        load(home, None, {})


# --- the environment --------------------------------------------------------------------------------------------------


def test_a_variable_overrides_the_file(home: Home) -> None:
    config = loaded(home, '[http]\nlisten = "127.0.0.1:1"', TRUNKLINE_HTTP_LISTEN="127.0.0.1:2")
    assert config.http.listen == "127.0.0.1:2"


def test_what_is_not_text_is_written_as_in_toml(home: Home) -> None:
    config = loaded(
        home,
        TRUNKLINE_POLICY_BUILTIN="false",
        TRUNKLINE_OPENSENTIENCE_MAX_FRAME_BYTES="8192",
        TRUNKLINE_APPROVALS_EXPIRE_S="1.5",
        TRUNKLINE_PYLON_CODEX='["codex"]',
        TRUNKLINE_OPENSENTIENCE_SCHEMA_VALIDATION="warn",
    )
    assert config.policy().rules == ()
    assert config.opensentience.max_frame_bytes == 8192
    assert config.approvals.expire_s == 1.5
    assert config.pylon.codex == ("codex",)
    assert config.opensentience.schema_validation == "warn"


def test_a_variable_of_no_section_of_ours_is_not_judged(home: Home) -> None:
    loaded(home, TRUNKLINE_HOME="/h", TRUNKLINE_SERVICE_HOST="10.0.0.1", TRUNKLINE_AGENT_X="y")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TRUNKLINE_HTTP_LISTN", "x", "no such setting; did you mean `TRUNKLINE_HTTP_LISTEN`?"),
        ("TRUNKLINE_POLICY_RULE", "[]", "no such setting"),
        ("TRUNKLINE_POLICY_BUILTIN", "no", "policy.builtin: expected true or false, written as in TOML"),
        ("TRUNKLINE_POLICY_BUILTIN", "1", "policy.builtin: expected true or false, got an integer"),
        ("TRUNKLINE_APPROVALS_EXPIRE_S", "soon", "approvals.expire_s: expected a number, written as in TOML"),
        ("TRUNKLINE_PYLON_CODEX", "codex", "pylon.codex: expected an array, written as in TOML"),
        ("TRUNKLINE_HTTP_LISTEN", "0.0.0.0:80", "http.listen: 0.0.0.0 is not loopback"),
    ],
)
def test_a_bad_variable_is_named(home: Home, variable: str, value: str, message: str) -> None:
    error = refused(home, **{variable: value})
    assert error.startswith(f"${variable}: ")
    assert message in error


# --- what is refused: the place, the key, what was expected -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[htp]", "trunkline.toml:1: htp: no such section; did you mean `http`?"),
        ('\n[http]\nlistn = "x"', "trunkline.toml:3: http.listn: no such key; did you mean `listen`?"),
        (
            ECHO + ECHO.replace("echo", "two") + "evn = {}",
            "trunkline.toml:7: agent[1].evn: no such key; did you mean `env`?",
        ),
        (RULE + "resaon = ''", "trunkline.toml:5: policy.rule[0].resaon: no such key; did you mean `reason`?"),
        ("[http]\nzzz = 1", "trunkline.toml:2: http.zzz: no such key"),
        ("[http]\nlisten = 3", "trunkline.toml:2: http.listen: expected a string, got an integer"),
        ("http.listen = 3", "trunkline.toml:1: http.listen: expected a string, got an integer"),
        ("http = { listen = 3 }", "trunkline.toml:1: http.listen: expected a string, got an integer"),
        ("http = 3", "trunkline.toml:1: http: expected a table, got an integer"),
        ("agent = 3", "trunkline.toml:1: agent: expected an array, got an integer"),
        ("\n[policy]\nbuiltin = 1", "trunkline.toml:3: policy.builtin: expected true or false, got an integer"),
        (
            "[opensentience]\nmax_frame_bytes = 1",
            "trunkline.toml:2: opensentience.max_frame_bytes: expected an integer >= 4096",
        ),
        (
            "[opensentience]\nmax_frame_bytes = 5e6",
            "trunkline.toml:2: opensentience.max_frame_bytes: expected an integer, got a number",
        ),
        (
            "[opensentience]\nmax_inflight_requests = true",
            "trunkline.toml:2: opensentience.max_inflight_requests: expected an integer, got true or false",
        ),
        ("[opensentience]\nsocket = ''", "trunkline.toml:2: opensentience.socket: expected a path"),
        (
            "[approvals]\nnotify = {}",
            "trunkline.toml:2: approvals.notify: expected one of the keys `command` and `url`",
        ),
        (
            '[approvals]\nnotify = {url = "http://example.com/x"}',
            "trunkline.toml:2: approvals.notify.url: expected https://HOST[:PORT]/PATH, or http:// on this machine",
        ),
        ("[approvals]\nexpire_s = nan", "trunkline.toml:2: approvals.expire_s: expected a number >= 1.0"),
        ("[approvals]\nexpire_s = 1979-05-27", "trunkline.toml:2: approvals.expire_s: expected a number, got a date"),
        (
            "[limits]\ncalls_per_s = nan",
            "trunkline.toml:2: limits.calls_per_s: expected a number from 0, where 0 means no bound",
        ),
        (
            "[limits]\nopen_calls = -1",
            "trunkline.toml:2: limits.open_calls: expected a number from 0, where 0 means no bound",
        ),
        ('[jobs]\nmodel = "m"', "trunkline.toml:2: jobs.model: has no effect without `endpoint`"),
        (
            '[jobs]\nendpoint = "http://models.example/v1"\nmodel = "m"',
            "trunkline.toml:2: jobs.endpoint: http leaves this machine unencrypted: expected https",
        ),
        (
            '[jobs]\nendpoint = "https://models.example/v1"\nmodel = "m"\nkey = "sk-1234"',
            "trunkline.toml:4: jobs.key: expected env:NAME, file:PATH or keyring:NAME, and never the key itself",
        ),
        (
            '[jobs]\nendpoint = "https://models.example/v1"',
            "trunkline.toml:2: jobs.endpoint: expected `model`, `embedding_model` or both beside it",
        ),
        ("[ledger]\nanchor = {}", "trunkline.toml:2: ledger.anchor: expected one of the keys `file` and `command`"),
        (
            '[ledger]\nanchor = {file = "x", command = ["y"]}',
            "trunkline.toml:2: ledger.anchor: expected one of the keys `file` and `command`",
        ),
        ("[ledger]\nretention_days = -1", "trunkline.toml:2: ledger.retention_days: expected an integer >= 0"),
        ('[[agent]]\nid = "a"', "trunkline.toml:1: agent[0]: the key `command` is missing"),
        ('[[agent]]\nid = "a"\ncommand = []', "trunkline.toml:3: agent[0].command: expected an array of length >= 1"),
        ('[[agent]]\nid = "a"\ncommand = "a b"', "trunkline.toml:3: agent[0].command: expected an array, got a string"),
        (
            '[[agent]]\nid = "a"\ncommand = [\n"a",\n3]',
            "trunkline.toml:5: agent[0].command[1]: expected a string, got an integer",
        ),
        (
            '[[agent]]\nid = "a"\ncommand = [""]',
            "trunkline.toml:3: agent[0].command: the first word, the program, is empty",
        ),
        (
            ECHO + 'restart = "maybe"',
            'trunkline.toml:4: agent[0].restart: expected "never" or "on-failure" or "always"',
        ),
        (ECHO + "\nmanifest = 3", "trunkline.toml:5: agent[0].manifest: expected a string, got an integer"),
        (ECHO + "[agent.env]\nA = 'a'\nB = 1", "trunkline.toml:6: agent[0].env.B: expected a string, got an integer"),
        ("[ossa.rate]\nworker = 'x'", "trunkline.toml:2: ossa.rate.worker: expected an integer, got a string"),
        (
            "[ossa]\nrate = {worker = 100, governor = 'x'}",
            "trunkline.toml:2: ossa.rate.governor: expected an integer, got a string",
        ),
        ("[ossa.rate]\nworker = 1\ngovernor = 0", "trunkline.toml:3: ossa.rate.governor: expected an integer >= 1"),
        ("[ossa.actions]\na = 'b/c'\nd = 1", "trunkline.toml:3: ossa.actions.d: expected a string, got an integer"),
        (
            ECHO + "env.OPENSENTIENCE_SOCKET = 'x'",
            "trunkline.toml:4: agent[0].env.OPENSENTIENCE_SOCKET: set by the exchange for each run",
        ),
        (
            ECHO + 'env."A=B" = "x"',
            "trunkline.toml:4: agent[0].env.A=B: not a name and a text that an environment can hold",
        ),
        *(
            (f'[{section}]\nnats = "{url}"', f"trunkline.toml:2: {section}.nats: {NATS}")
            for section in ("chiffon", "cluster")
            for url in (
                "garbage",
                "127.0.0.1:4222",
                "http://127.0.0.1:4222",
                "nats://",
                "nats://:4222",
                "nats://127.0.0.1:99999",
                "nats://127.0.0.1:x",
                "nats://[::1",
                "nats://a b:4222",
                "nats://user:secret@host:4222/path",
                "nats://one:4222,nats://two:4222",
            )
        ),
        (
            '[chiffon.work]\na = "a/b"\nc = "nope"',
            "trunkline.toml:3: chiffon.work.c: expected the id of a tool, 'agent_id/tool_name'",
        ),
        ('[chiffon.work]\n"" = "a/b"', "trunkline.toml:2: chiffon.work.: the name of the work is empty"),
        (
            '[ossa.actions]\na = "nope"',
            "trunkline.toml:2: ossa.actions.a: expected the id of a tool, 'agent_id/tool_name'",
        ),
        (
            "[ossa.rate]\nworker = 1\nWorker = 2",
            "trunkline.toml:3: ossa.rate.Worker: expected the class of an agent, [a-z][a-z0-9_-]{0,63}",
        ),
        ("[ossa.rate]\nworker = 0", "trunkline.toml:2: ossa.rate.worker: expected an integer >= 1"),
        (
            '[nostr.chain]\ncheckpoints = ["840000", "x:y"]',
            "trunkline.toml:2: nostr.chain.checkpoints[0]: expected the height of a block and its hash, 'HEIGHT:HASH'",
        ),
        (
            '[nostr.wallet]\nconnection = "nostr+walletconnect://00?secret=11"',
            (
                "trunkline.toml:2: nostr.wallet.connection: "
                "expected env:NAME or file:PATH, and never the connection itself"
            ),
        ),
        (
            "[nostr.wallet]\nprepay = true",
            "trunkline.toml:2: nostr.wallet.prepay: has no effect without `connection` or `mints`",
        ),
        (
            '[nostr.buyer]\njudge = "compare"',
            "trunkline.toml:2: nostr.buyer.judge: expected the id of a tool, 'agent_id/tool_name'",
        ),
        (
            '[nostr]\nrelays = ["wss://relay.example", "relay.example"]',
            "trunkline.toml:2: nostr.relays[1]: expected ws://HOST[:PORT] or wss://HOST[:PORT], with or without a path",
        ),
        (
            '[pylon]\nallowed_origins = ["https://app.example/"]',
            "trunkline.toml:2: pylon.allowed_origins[0]: expected http://HOST[:PORT] or https://HOST[:PORT]",
        ),
        (
            '[pylon]\napp_key = "a/b"',
            (
                "trunkline.toml:2: pylon.app_key: expected 1 to 128 of the characters A-Z a-z 0-9 . _ -,"
                " the first a letter or digit"
            ),
        ),
        ('[pylon]\ncodex = [""]', "trunkline.toml:2: pylon.codex: the first word, the program, is empty"),
        (
            '[[mcp]]\nid = "x"\nurl = "mcp.example"',
            "trunkline.toml:3: mcp[0].url: expected http://HOST[:PORT] or https://HOST[:PORT], with or without a path",
        ),
        (
            '[[mcp]]\nid = "x"\ncommand = ["a\\u0000"]',
            "trunkline.toml:3: mcp[0].command: a word holds a zero character",
        ),
        (ECHO + 'cwd = "a\\u0000b"', "trunkline.toml:4: agent[0].cwd: a path holds no zero character"),
        (ECHO + 'manifest = "a\\u0000b"', "trunkline.toml:4: agent[0].manifest: a path holds no zero character"),
        (ECHO + 'manifest = ""', "trunkline.toml:4: agent[0].manifest: expected a path"),
        (
            '[opensentience]\nsocket = "a\\u0000b"',
            "trunkline.toml:2: opensentience.socket: a path holds no zero character",
        ),
        (
            REMOTE.replace("https://mcp.example/", "http://mcp.example/"),
            (
                "trunkline.toml:3: mcp[0].url: expected https://HOST[:PORT]/PATH without a user,"
                " or http:// on this machine"
            ),
        ),
        (
            REMOTE + 'env = {A = "b"}',
            "trunkline.toml:4: mcp[0].env: has no effect with `url`: nothing is started here",
        ),
        (REMOTE + 'headers = {A = "b\\n"}', "trunkline.toml:4: mcp[0].headers.A: expected printable ASCII"),
        (
            REMOTE + 'headers = {A = "env:"}',
            (
                "trunkline.toml:4: mcp[0].headers.A: expected a name after env:;"
                " a text that begins so is written literal:env:…"
            ),
        ),
        *(
            (
                REMOTE + f'oauth = {{client_document = "{url}"}}',
                "trunkline.toml:4: mcp[0].oauth.client_document: expected https://HOST[:PORT]/PATH and nothing more",
            )
            for url in (
                *("http://you.example/t.json", "https://you.example", "https://you.example/", "you.example/t.json"),
                *("https://me@you.example/t.json", "https://you.example/t.json?v=1", "https://you.example/t.json#me"),
                *("https://you.example/a/../t.json", "https://you.example/t t.json", "https://you.example/é.json"),
                *("HTTPS://you.example/t.json", "https://You.Example/t.json", "https://you.example:443/t.json"),
                *("https://you.example:/t.json", "https://you.example/%2e%2e/t.json", "https://you.example//t.json"),
                *("https://127.0.0.1/t.json", "https://you.example/t%00.json", "https://localhost/t.json"),
            )
        ),
        (
            REMOTE + 'oauth = {client_id = "me", client_document = "https://you.example/t.json"}',
            "trunkline.toml:4: mcp[0].oauth.client_document: has no effect beside `client_id`",
        ),
        (
            '[[mcp]]\nid = "x"\ncommand = ["a"]\nheaders = {A = "b"}',
            "trunkline.toml:4: mcp[0].headers: has no effect without `url`",
        ),
        (
            '[[mcp]]\nid = "x"\ncommand = ["a"]\nisolation = "none"\nread = ["/r"]',
            'trunkline.toml:5: mcp[0].read: has no effect with isolation = "none", which is no sandbox',
        ),
        (
            '[[mcp]]\nid = "x"\ncommand = ["a"]\nenv = {OPENSENTIENCE_RUN_ID = "b"}',
            "trunkline.toml:4: mcp[0].env.OPENSENTIENCE_RUN_ID: set by the exchange for each run",
        ),
        (
            f'[[mcp]]\nid = "{"x" * 126}"\ncommand = ["a"]',
            "trunkline.toml:2: mcp[0].id: its agent mcp.ID may have 128 characters",
        ),
        (
            ECHO + 'env = {A = "keyring:"}',
            (
                "trunkline.toml:4: agent[0].env.A: expected a name after keyring:;"
                " a text that begins so is written literal:keyring:…"
            ),
        ),
        ('[[mcp]]\nid = "x"', "trunkline.toml:1: mcp[0]: expected one of the keys `command` and `url`"),
        (
            RULE + RULE.replace("allow", "alow"),
            'trunkline.toml:8: policy.rule[1].decision: expected "allow" or "deny" or "ask"',
        ),
        (RULE + "when.input = 7", "trunkline.toml:5: policy.rule[0].when.input: expected a table of JSON pointers"),
        (
            RULE + 'when.input = {"a/b" = 7}',
            "trunkline.toml:5: policy.rule[0].when.input: 'a/b' is no JSON pointer such as '/path' or '/files/0/name'",
        ),
        (RULE + "when.inptu = {}", "trunkline.toml:5: policy.rule[0].when.inptu: no such key; did you mean `input`?"),
        (
            RULE + 'when = {circumstance = "x"}',
            'trunkline.toml:5: policy.rule[0].when.circumstance: expected "untrusted"',
        ),
        (RULE + "when = {}", "trunkline.toml:5: policy.rule[0].when: expected the key `input`"),
        (RULE + 'when = "tuesday"', 'trunkline.toml:5: policy.rule[0].when: expected "untrusted"'),
        ("a = 1\na = 2", "trunkline.toml:2: not TOML: cannot overwrite a value"),
        ("[http]\n[http]\n", "trunkline.toml:2: not TOML: cannot declare [http] twice"),
        ("a = {}\n[a.b]\n", "trunkline.toml:2: not TOML: cannot declare [a.b] twice"),
        (
            "[http]\nlisten = 127.0.0.1",
            "trunkline.toml:2: not TOML: expected newline or end of document after a statement",
        ),
        ('a = """', "trunkline.toml:1: not TOML: unterminated string"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place_and_what_was_expected(
    home: Home, text: str, message: str
) -> None:
    error = refused(home, text)
    assert error == message


@requirement("OS-004")
@pytest.mark.parametrize("key", ["http.listen", "opensentience.tcp", "nostr.relay", "pylon.listen"])
@pytest.mark.parametrize("address", ["0.0.0.0:7411", "[::]:7411", "192.168.1.2:7411", "example.org:7411"])
def test_no_listener_whose_messages_are_not_signed_may_leave_loopback(home: Home, key: str, address: str) -> None:
    assert f"trunkline.toml:1: {key}: " in (error := refused(home, f'{key} = "{address}"'))
    assert "is not loopback" in error


def test_authorities_of_clients_are_looked_for_beside_the_file(home: Home) -> None:
    placed = loaded(home, '[ossa]\nclient_ca = "ca.pem"').ossa.client_ca
    assert placed == str(home.config_file.parent / "ca.pem")


@pytest.mark.parametrize("address", ["0.0.0.0:7413", "[::]:7413", "192.168.1.2:7413", "example.org:7413"])
def test_where_every_message_is_signed_any_address_may_be_listened_on(home: Home, address: str) -> None:
    assert loaded(home, f'[ossa]\nlisten = "{address}"').ossa.listen == address


@pytest.mark.parametrize("address", ["0.0.0.0:7413", "[::]:7413", "192.168.1.2:7413", "example.org:7413"])
def test_without_signatures_ossa_may_not_leave_loopback_either(home: Home, address: str) -> None:
    text = '[ossa]\nlisten = "%s"\nrequire_signature = false'
    assert refused(home, text % address).startswith("trunkline.toml:2: ossa.listen: ")
    assert loaded(home, text % "[::1]:7413").ossa.listen == "[::1]:7413"


@requirement("OS-004")
def test_by_default_every_listener_is_on_loopback(home: Home) -> None:
    config = load(home, None, {})
    listeners = [config.http.listen, config.ossa.listen, config.nostr.relay, config.pylon.listen]
    assert {host_and_port(address)[0] for address in listeners} == {"127.0.0.1"}
    assert not config.opensentience.tcp


@pytest.mark.parametrize(
    "address", ["", "7411", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "::1:7411", "a b:1", "h:١"]
)
def test_an_address_is_a_host_and_a_port(home: Home, address: str) -> None:
    assert 'expected "host:port"' in refused(home, f'http.listen = "{address}"')


@pytest.mark.parametrize("url", ["nats://localhost", "nats://[::1]:4222", "tls://me:secret@broker.example:4222"])
def test_a_broker_is_named_by_its_url(home: Home, url: str) -> None:
    assert loaded(home, f'[chiffon]\nnats = "{url}"').chiffon.nats == url


def test_an_address_is_read_in_its_two_parts() -> None:
    assert host_and_port("127.0.0.1:7411") == ("127.0.0.1", 7411)
    assert host_and_port("[::1]:0") == ("::1", 0)


@pytest.mark.parametrize("name", ["", "-a", ".a", "a/b", "a b", "ä", "a" * 129, "a\\n"])
def test_an_agents_id_keeps_to_its_grammar(home: Home, name: str) -> None:
    text = ECHO.replace("com.example.echo", name)
    assert refused(home, text).startswith("trunkline.toml:2: agent[0].id: expected 1 to 128 of the characters")


@pytest.mark.parametrize("name", ["space.x", "Chiffon.x", "MCP.x", "nostr.x", "a2a.x", "trunkline.x"])
def test_an_agent_cannot_take_a_reserved_name_in_any_case(home: Home, name: str) -> None:
    assert "starts with a reserved name" in refused(home, ECHO.replace("com.example.echo", name))


def test_two_ids_that_differ_only_in_case_are_refused_at_the_second(home: Home) -> None:
    error = refused(home, ECHO + ECHO.replace("echo", "Echo"))
    assert error.startswith("trunkline.toml:5: agent[1].id: 'com.example.Echo' is taken")
    assert refused(home, ECHO + ECHO).startswith("trunkline.toml:5: agent[1].id: 'com.example.echo' is taken")


def test_a_socket_path_that_the_system_cannot_bind_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most 107; use a shorter --home"):
        load(Home(Path("/" + "h" * 100)), None, {})


@pytest.mark.parametrize("caller", ["operater", "agnet:x", "com.example.echo", "", "x:*"])
def test_a_rule_whose_caller_can_match_nobody_is_refused(home: Home, caller: str) -> None:
    error = refused(home, RULE.replace("operator", caller))
    assert error.startswith(f"trunkline.toml:2: policy.rule[0].caller: {caller!r} matches nobody")
    assert f"(edges: {', '.join(CALLER_EDGES)})" in error, "an edge that somebody wrote is not among them yet"


@pytest.mark.parametrize("tool", ["", "echo", "a/b/c"])
def test_a_rule_whose_tool_can_match_none_is_refused(home: Home, tool: str) -> None:
    error = refused(home, RULE.replace('"*"', f'"{tool}"'))
    assert error.startswith(f"trunkline.toml:3: policy.rule[0].tool: {tool!r} matches no tool")


# --- files that are no configuration ----------------------------------------------------------------------------------


def test_a_named_file_that_is_missing_is_an_error(home: Home, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing.toml: no such file"):
        load(home, tmp_path / "nothing.toml", {})


def test_a_folder_a_pipe_and_a_huge_file_are_refused(home: Home, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(home, tmp_path, {})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        load(home, tmp_path / "pipe", {})
    assert refused(home, "#" * (MAX_FILE_BYTES + 1)) == f"trunkline.toml: larger than {MAX_FILE_BYTES} bytes"


def test_text_that_is_not_utf_8_is_refused_with_its_line(home: Home) -> None:
    home.config_file.write_bytes(b"# fine\n# \xff\n")
    with pytest.raises(ConfigError, match=r"trunkline.toml:2: not UTF-8 text"):
        load(home, None, {})


def test_nesting_without_end_is_refused(home: Home) -> None:
    assert refused(home, "a = " + "[" * 5000 + "]" * 5000) == "trunkline.toml: nested too deeply"


def test_a_file_that_everybody_can_write_to_is_refused(home: Home) -> None:
    home.config_file.write_text("")
    home.config_file.chmod(0o666)
    with pytest.raises(ConfigError, match="everybody can write to it"):
        load(home, None, {})


def test_neither_an_error_nor_a_repr_shows_an_agents_environment(home: Home) -> None:
    secret = "hunter2-hunter2"
    config = loaded(home, ECHO + f'env = {{ PASSWORD = "{secret}" }}')
    assert config.agents[0].env["PASSWORD"] == secret
    assert secret not in repr(config)
    assert secret not in refused(home, ECHO + f'env = {{ A = "{secret}", B = 3 }}')
    assert secret not in refused(home, ECHO + f'env = {{ "A=" = "{secret}" }}')


# --- policy -----------------------------------------------------------------------------------------------------------


def test_the_files_rules_come_first_then_the_built_in_ones(home: Home) -> None:
    rules = loaded(home, RULE + RULE.replace("allow", "deny")).policy().rules
    assert [rule.id for rule in rules] == ["rule-1", "rule-2", *(rule.id for rule in BUILTIN_RULES)]
    assert rules[1].decision is Decision.DENY


def test_the_built_in_rules_can_be_removed(home: Home) -> None:
    assert loaded(home, "policy.builtin = false").policy().rules == ()


def test_the_built_in_rules_are_these_in_this_order(home: Home) -> None:
    rules = loaded(home).policy().rules
    assert [(rule.caller, rule.tool, rule.side_effects, rule.when, rule.decision) for rule in rules] == [
        ("nostr:*", "*", None, None, Decision.DENY),
        ("trunkline:trunkline.events", "*/a2a_handle_event", None, None, Decision.ALLOW),
        ("*", "*", True, "untrusted", Decision.ASK),
        ("operator", "*", None, None, Decision.ALLOW),
        ("*", "*", False, None, Decision.ALLOW),
        ("*", "trunkline/publish", None, None, Decision.ALLOW),
        ("pylon:*", "pylon.codex/request", None, None, Decision.ALLOW),
        ("pylon:*", "pylon.codex/respond", None, None, Decision.ALLOW),
        ("*", "*", True, None, Decision.ASK),
    ]
    assert all(rule.reason and rule.id.startswith("builtin-") for rule in rules)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("agent:com.example.*", "opensentience:com.example.*"),
        ("opensentience:x", "opensentience:x"),
        ("chiffon:type=infra", "chiffon:type=infra"),
        ("*", "*"),
        ("*:x", "*:x"),
        ("operator", "operator"),
    ],
)
def test_agent_in_a_caller_is_short_for_opensentience(home: Home, written: str, meant: str) -> None:
    assert loaded(home, RULE.replace("operator", written)).policy().rules[0].caller == meant


def test_equal_rules_have_equal_versions_and_any_difference_another_one(home: Home) -> None:
    texts = [
        RULE,
        RULE.replace("operator", "agent:x"),
        RULE.replace("allow", "ask"),
        RULE + "side_effects = false",
        RULE + 'when = "untrusted"',
        RULE + RULE,
        RULE + "[policy]\nbuiltin = false",
        "",
    ]
    versions = [loaded(home, text).policy().version for text in texts]
    assert len(set(versions)) == len(texts)
    assert loaded(home, f"# a remark\n{RULE}").policy().version == versions[0]
    short, long = (loaded(home, RULE.replace("operator", f"{edge}:x")).policy() for edge in ("agent", "opensentience"))
    assert short == long


# --- the home folder --------------------------------------------------------------------------------------------------


def test_the_home_is_the_option_else_the_variable_else_a_folder_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.chdir("/")
    assert Home.resolve("rel", {"TRUNKLINE_HOME": "/v"}).path == Path("/rel")
    assert Home.resolve(None, {"TRUNKLINE_HOME": "/v"}).path == Path("/v")
    assert Home.resolve(None, {"TRUNKLINE_HOME": ""}).path == Path("/home/somebody/.trunkline")
    assert Home.resolve("~/x", {}).path == Path("/home/somebody/x")


def test_a_new_home_and_its_folders_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        home = Home(tmp_path / "deep" / "home")
        home.create()
    finally:
        os.umask(before)
    for folder in (home.path, home.run_folder, home.logs_folder, home.keys_folder):
        assert folder.stat().st_mode & 0o777 == 0o700, folder
    home.create()


def test_a_folder_that_is_in_use_for_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "passwd").touch()
    (tmp_path / "keys").mkdir()
    with pytest.raises(ConfigError, match="it has files, and none of an exchange; choose a new or an empty folder"):
        Home(tmp_path).create()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert {path.name for path in tmp_path.iterdir()} == {"passwd", "keys"}


@pytest.mark.parametrize(
    "found",
    [
        ("trunkline.toml", "notes.txt"),
        ("ledger.sqlite", "keys"),
        ("run", "logs"),
        # Another exchange begins here at this moment: the lock tells the two apart.
        ("run", "logs", "keys", "something of its own"),
        (),
    ],
)
def test_an_empty_folder_or_one_with_files_of_an_exchange_is_taken(tmp_path: Path, found: tuple[str, ...]) -> None:
    for name in found:
        (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).touch()
    Home(tmp_path).create()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_home_that_others_could_read_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Home(tmp_path).create()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702])
def test_a_home_that_others_can_write_to_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=f"others can write to the home folder; chmod 700 {tmp_path}"):
        Home(tmp_path).create()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_home_of_somebody_else_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, -1)
    with pytest.raises(ConfigError, match="belongs to user 65534"):
        Home(tmp_path).create()


def test_a_home_that_is_a_file_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file: the home folder cannot be made: File exists"):
        Home(tmp_path / "file").create()


# --- start-up ---------------------------------------------------------------------------------------------------------


def test_importing_the_configuration_brings_no_slow_module_along() -> None:
    code = "import sys, trunkline.config; print(*sorted(sys.modules))"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout
    loaded_modules = set(names.split())
    slow = {"asyncio", "ssl", "http", "logging", "difflib", "rich", "click", "starlette", "trunkline.host"}
    assert not slow & loaded_modules


@pytest.mark.parametrize("isolation", ["user", "none"])
@pytest.mark.parametrize("line", ['read = ["x"]', 'write = ["x"]', "network = false"])
def test_what_only_a_sandbox_heeds_is_refused_where_there_is_none(home: Home, isolation: str, line: str) -> None:
    with pytest.raises(ConfigError, match=f'no effect with isolation = "{isolation}"'):
        loaded(home, f'{ECHO}\nisolation = "{isolation}"\n{line}\n')


def test_an_isolation_that_there_is_not_is_refused(home: Home) -> None:
    with pytest.raises(ConfigError, match="isolation"):
        loaded(home, f'{ECHO}\nisolation = "jail"\n')


@pytest.mark.parametrize("table", ["env", "headers"])
def test_a_secret_that_an_agent_could_exchange_for_another_file_is_refused(home: Home, table: str) -> None:
    folder = home.config_file.parent / "work"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/hostname")
    place = 'command = ["y"]' if table == "env" else 'url = "https://y.example/mcp"'
    server = f'[[mcp]]\nid = "y"\n{place}\n'
    writes = '[[mcp]]\nid = "x"\ncommand = ["x"]\nwrite = ["work"]\n'
    for path in ("work/token", "work/link"):
        with pytest.raises(ConfigError, match=f"{table}.A: an agent may write to this file"):
            loaded(home, f'{server}{table} = {{ A = "file:{path}" }}\n{writes}')
    loaded(home, f'{server}{table} = {{ A = "file:token" }}\n{writes}')


@pytest.mark.parametrize("written", [".", "..", "trunkline.toml"])
def test_an_agent_that_could_rewrite_this_file_is_refused(home: Home, written: str) -> None:
    with pytest.raises(ConfigError, match="holds this file itself"):
        loaded(home, f'{ECHO}\nwrite = ["{written}"]\n')


def test_a_rule_may_look_at_the_input_and_name_a_circumstance(home: Path) -> None:
    lines = """
[[policy.rule]]
caller = "agent:com.a"
tool = "com.b/write"
decision = "allow"
when.input = { "path" = "docs/*", "/size" = { "<=" = 10 } }

[[policy.rule]]
caller = "*"
tool = "*"
decision = "deny"
when = { circumstance = "untrusted", input = { "force" = true } }
"""
    first, second = loaded(home, lines).policy().rules[:2]
    assert first.input == (InputCondition(("path",), "like", "docs/*"), InputCondition(("size",), "<=", 10))
    assert (first.when, second.when) == (None, Circumstance.UNTRUSTED)
    assert second.input == (InputCondition(("force",), "==", True),)


def test_a_mounted_server_is_an_agent_that_reads_what_strangers_wrote_and_is_pinned(home: Home) -> None:
    text = (
        '[[mcp]]\nid = "a"\ncommand = ["x"]\ncwd = "c"\nread = ["r"]\nenv = {K = "file:key"}\n'
        '[[mcp]]\nid = "b"\nurl = "http://127.0.0.1:1/"\nuntrusted = false\npin_definitions = false\n'
        'headers = {K = "file:key"}\n'
    )
    home.config_file.write_text(text)
    config = load(home, None, {})
    settings = config.hub_settings()
    assert (settings.untrusted_agents, settings.unpinned_agents) == ({"mcp.a"}, {"mcp.b"})
    first, second = config.mcp_servers
    folder = home.config_file.parent
    assert (first.cwd, first.read, first.env) == (f"{folder}/c", (f"{folder}/r",), {"K": f"file:{folder}/key"})
    assert second.headers == {"K": f"file:{folder}/key"}
    assert "key" not in repr(first)
