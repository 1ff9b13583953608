"""``approve --always``: which rules are written, and where."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running as Exchange
from tests.running import running as running_exchange
from tests.running import wait_until
from tests.unit.cli.conftest import Running, trunkline
from trunkline import standing_rules
from trunkline.cli.client import ExchangeClient
from trunkline.home import Home
from trunkline.input_conditions import compiled
from trunkline.model import Decision, Rule
from trunkline.standing_rules import NoStandingRule, StandingRule, rule_for

NEW = '[[policy.rule]]\ncaller = "agent:a"\ntool = "b/c"\ndecision = "allow"\n'
WRITE = {"tool_id": "com.a/write", "input": {}}
OLD = '[[policy.rule]]  # first\ncaller = "*"\ntool = "x/*"\ndecision = "deny"\n'


def names(content: str) -> list[str]:
    return [rule["tool"] for rule in tomllib.loads(content)["policy"]["rule"]]


def test_a_rule_stands_at_the_end_or_before_the_one_that_asked() -> None:
    content = f"[http]\nlisten = 'x'\n\n{OLD}\n# second\n{OLD.replace('x/', 'y/')}"
    assert names(StandingRule(NEW, None).placed_in(content)) == ["x/*", "y/*", "b/c"]
    assert names(StandingRule(NEW, 2).placed_in(content)) == ["x/*", "b/c", "y/*"]
    assert names(StandingRule(NEW, 1).placed_in(content)) == ["b/c", "x/*", "y/*"]
    assert names(StandingRule(NEW, None).placed_in("")) == ["b/c"]


@pytest.mark.parametrize(
    ("content", "before"),
    [
        ('[policy]\nrule = [{caller = "*", tool = "*", decision = "ask"}]\n', None),
        (f'[http]\nlisten = """\n{OLD}"""\n\n{OLD}', 1),
        (OLD, 2),
    ],
)
def test_a_file_that_would_say_something_else_afterwards_is_not_written(content: str, before: int | None) -> None:
    with pytest.raises(NoStandingRule, match="add this by hand"):
        StandingRule(NEW, before).placed_in(content)


def test_what_is_allowed_from_now_on_is_this_tool_to_this_caller_and_not_for_strangers(running: Running) -> None:
    exchange = ExchangeClient(Home(running.home))
    shown = exchange.get(f"/v1/approvals/{running.exchange.approval_id}/rule")
    assert shown["also"] == []
    rules = tomllib.loads(shown["rule"])["policy"]["rule"]
    assert [(rule["caller"], rule["tool"]) for rule in rules] == [("http:alice", "com.example.mail/send")] * 2
    assert [(rule["decision"], rule.get("when")) for rule in rules] == [("ask", "untrusted"), ("allow", None)]


@pytest.mark.parametrize("change", [{"subject": "manifest"}, {"rule": "builtin-untrusted"}])
def test_what_has_to_be_asked_each_time_has_no_standing_rule(running: Running, change: dict[str, str]) -> None:
    exchange = ExchangeClient(Home(running.home))
    question = exchange.get(f"/v1/approvals/{running.exchange.approval_id}")
    with pytest.raises(NoStandingRule, match=r"by itself|--also-untrusted"):
        rule_for({**question, **change}, exchange.get("/v1/policy")["rules"], lambda _caller: {})


@pytest.mark.parametrize(
    ("when", "asks", "said"),
    [
        (None, ("rule-1", "rule-3"), "what stands between them would be passed over"),
        (None, ("rule-1", "builtin-ask"), "what stands between them would be passed over"),
        ("untrusted", ("rule-1", "rule-1"), "rule-1 asks under a condition"),
    ],
)
def test_a_chain_that_several_rules_ask_about_has_no_standing_rule(
    when: str | None, asks: tuple[str, str], said: str
) -> None:
    condition = {} if when is None else {"when": when}
    rules = [{"id": name, "decision": "ask", **condition} for name in ("rule-1", "rule-3", "builtin-ask")]
    verdicts = iter(asks)

    def check(_caller: str) -> dict[str, Any]:
        return {"decision": "ask", "rule": next(verdicts)}

    question = {"subject": "call", "rule": "x", "chain": ["http:a"], "asked_by": "agent:b", "tool_id": "c/d"}
    with pytest.raises(NoStandingRule, match=said):
        rule_for(question, rules, check)


@contextmanager
def with_a_writer(home: Path, parameters: str = "", also: str = "") -> Iterator[Exchange]:
    """An exchange that launches an agent with one tool, `com.a/write`."""
    config = f'[ossa]\nlisten = ""\n\n[[agent]]\nid = "com.a"\ncommand = ["python", "agent.py"]\n{also}'
    home.mkdir(mode=0o700)
    tool = f"@a.tool()\ndef write({parameters}): return {{}}"
    (home / "agent.py").write_text(f"from trunkline import Agent\na = Agent('com.a')\n{tool}\na.run()\n")
    with running_exchange(home, config) as exchange:
        exchange.wait_tool("com.a/write")
        yield exchange


@pytest.mark.slow
def test_once_allowed_from_now_on_it_is_not_asked_about_again(short_path: Path) -> None:
    home = short_path / "home"
    with with_a_writer(home, "n: int = 1") as exchange:
        told = trunkline("--home", str(home), "token", "new", "http", "--agent", "bob")
        asked = exchange.request("POST", "/v1/calls", WRITE, token=told.out.strip())[1]
        # Another input, which waits too: whoever writes the rule is shown it.
        other = exchange.request("POST", "/v1/calls", {**WRITE, "input": {"n": 2}}, token=told.out.strip())[1]
        before = exchange.config_file.read_text()
        refused = trunkline("--home", str(home), "approve", asked["approval_id"], "--always")
        assert (refused.code, exchange.config_file.read_text()) == (2, before)
        assert 'caller = "http:bob"' in refused.err
        assert other["approval_id"] in refused.err
        assert '"n": 2' in refused.err
        said = trunkline("--home", str(home), "approve", asked["approval_id"], "--always", "--yes")
        assert said.code == 0, said.err
        assert f"allowed by the rule: {other['approval_id']}" in said.out
        answered = exchange.wait_entry("question.closed", approval_id=asked["approval_id"])
        assert (answered["how"], answered["by"]) == ("approved", "operator")
        assert exchange.wait_entry("call.settled", call_id=other["call_id"])["status"] == "succeeded"
        assert exchange.config_file.read_text().startswith(before.rstrip())
        again = exchange.request("POST", "/v1/calls", WRITE, token=told.out.strip())[1]
        assert again["status"] == "succeeded"
        first = exchange.wait_entry("call.settled", call_id=asked["call_id"])
        assert first["status"] == "succeeded"
        # The same over HTTP, as the console does it: shown first, and written only as it was shown.
        told = trunkline("--home", str(home), "token", "new", "http", "--agent", "eve")
        asked = exchange.request("POST", "/v1/calls", WRITE, token=told.out.strip())[1]
        path = f"/v1/approvals/{asked['approval_id']}/rule"
        before = exchange.config_file.read_text()
        assert exchange.request("GET", path, token=told.out.strip())[0] == 403
        shown = exchange.request("GET", path)[1]["rule"]
        assert 'caller = "http:eve"' in shown
        assert exchange.request("POST", path, {"rule": shown + " "})[0] == 409
        assert exchange.config_file.read_text() == before
        assert exchange.request("POST", path, {"rule": shown})[1]["call_id"] == asked["call_id"]
        assert exchange.wait_entry("call.settled", call_id=asked["call_id"])["status"] == "succeeded"
        assert exchange.request("GET", path)[0] == 404
        # Asked again for another reason meanwhile: what was shown under the old name is not what would be allowed.
        told = trunkline("--home", str(home), "token", "new", "http", "--agent", "mallory")
        asked = exchange.request("POST", "/v1/calls", WRITE, token=told.out.strip())[1]
        reasoned = 'caller = "http:mallory"\ntool = "com.a/write"\ndecision = "ask"\nreason = "production since today"'
        exchange.config_file.write_text(f"{exchange.config_file.read_text()}\n[[policy.rule]]\n{reasoned}\n")
        assert trunkline("--home", str(home), "reload").code == 0
        before = exchange.config_file.read_text()
        wait_until(lambda: exchange.request("GET", f"/v1/approvals/{asked['approval_id']}")[0] == 200, "it is shown")
        refused = trunkline("--home", str(home), "approve", asked["approval_id"], "--always", "--yes")
        assert (refused.code, exchange.config_file.read_text()) == (2, before)
        assert "because: production since today" in refused.err
        assert "for another reason: production since today" in refused.err
        held = exchange.request("GET", f"/v1/calls/{asked['call_id']}", token=told.out.strip())[1]
        assert held["status"] == "waiting_approval"


@pytest.mark.slow
def test_a_person_who_wants_that_allows_it_also_after_what_strangers_wrote(short_path: Path) -> None:
    home = short_path / "home"
    with with_a_writer(home, also="reads_untrusted = true\n") as exchange:
        told = trunkline("--home", str(home), "token", "new", "http", "--agent", "bob")

        def call() -> dict[str, Any]:
            made: dict[str, Any] = exchange.request("POST", "/v1/calls", WRITE, token=told.out.strip())[1]
            return made

        def approve(made: dict[str, Any], *words: str) -> Any:
            return trunkline("--home", str(home), "approve", made["approval_id"], "--always", *words, "--yes")

        first = call()
        assert approve(first).code == 0
        exchange.wait_entry("call.settled", call_id=first["call_id"])
        # The tool's own result is what strangers wrote: from here on every call would be asked about.
        second = call()
        refused = approve(second)
        assert refused.code != 0
        assert f"approve {second['approval_id']} --always --also-untrusted" in refused.err
        path = f"/v1/approvals/{second['approval_id']}/rule"
        assert exchange.request("GET", path)[0] == 409
        shown = exchange.request("GET", f"{path}?also_untrusted=true")[1]["rule"]
        assert exchange.request("POST", path, {"rule": shown})[0] == 409, "it has to be said that it is meant"
        done = approve(second, "--also-untrusted")
        assert done.code == 0, done.err
        assert "strangers wrote" in done.err, "what is agreed to is shown"
        assert shown in exchange.config_file.read_text()
        exchange.wait_entry("call.settled", call_id=second["call_id"])
        assert call()["status"] == "succeeded"
        other = {"caller": "http:eve", "tool_id": "com.a/write"}
        assert exchange.request("POST", "/v1/policy/check", other)[1]["decision"] == "ask", "nobody else is meant"


def test_the_way_out_for_a_mounted_server_is_named() -> None:
    question = {"subject": "call", "rule": "r", "asked_by": "mcp:c", "tool_id": "mcp.files/list", "approval_id": "a1"}
    with pytest.raises(NoStandingRule, match="untrusted = false in its"):
        standing_rules.rule_for(question, [{"id": "r", "when": "untrusted"}], lambda _: {})


SHOP = """
from trunkline import Agent
a = Agent('com.me.shop')
@a.tool()
def buy(qty: int, note: str = ''): return {}
a.run()
"""
RULES = """
[ossa]
listen = ""

[[agent]]
id = "com.me.shop"
command = ["python", "agent.py"]

[[policy.rule]]
caller = "http:*"
tool = "com.me.shop/buy"
decision = "ask"
when.input = { "/qty" = { ">" = 3 }, note = "a~b/*" }

[[policy.rule]]
caller = "*"
tool = "com.me.shop/buy"
decision = "deny"
when.input = { "/qty" = { "<" = 0 } }

[[policy.rule]]
caller = "http:*"
tool = "com.me.shop/buy"
decision = "allow"
"""


@pytest.mark.slow
def test_what_is_allowed_from_now_on_keeps_the_condition_under_which_it_was_asked(short_path: Path) -> None:
    home = short_path / "home"
    home.mkdir(mode=0o700)
    (home / "agent.py").write_text(SHOP)
    with running_exchange(home, RULES) as exchange:
        exchange.wait_tool("com.me.shop/buy")
        told = trunkline("--home", str(home), "token", "new", "http", "--agent", "bob").out.strip()

        def decided(**given: object) -> str:
            body = {"caller": "http:bob", "tool_id": "com.me.shop/buy", "input": given}
            return str(exchange.request("POST", "/v1/policy/check", body)[1]["decision"])

        body = {"tool_id": "com.me.shop/buy", "input": {"qty": 4, "note": "a~b/c"}}
        asked = exchange.request("POST", "/v1/calls", body, token=told)[1]["approval_id"]
        shown = exchange.request("GET", f"/v1/approvals/{asked}/rule")[1]
        rules = tomllib.loads(shown["rule"])["policy"]["rule"]
        wanted = {"/qty": {">": 3}, "/note": "a~b/*"}
        assert [one["when"] for one in rules] == [
            {"circumstance": "untrusted", "input": wanted},
            {"input": wanted},
        ]
        said = trunkline("--home", str(home), "approve", asked, "--always", "--yes")
        assert said.code == 0, said.err
        assert [decided(qty=4, note="a~b/c"), decided(qty=-1), decided(qty=2)] == ["allow", "deny", "allow"]
        # Without an input it is said what the answer depends on; the typo in a rule is told of wherever rules are.
        checked = trunkline("--home", str(home), "policy", "check", "http:eve", "com.me.shop/buy")
        assert "depends on the input: rule-3 asks where /qty > 3 and /note like 'a~b/*'" in checked.out
        assert "depends on the input: rule-4 denies where /qty < 0" in checked.out
        assert f"trunkline policy check http:eve com.me.shop/buy JSON --home {home}" in checked.out
        with exchange.config_file.open("a") as file:
            file.write('[[policy.rule]]\ncaller = "*"\ntool = "com.me.shop/byu"\ndecision = "deny"\n')
            file.write('[[policy.rule]]\ncaller = "http:eve"\ntool = "com.me.shop/buy"\ndecision = "deny"\n')
        wrong = "rule-6: no tool here is called com.me.shop/byu; did you mean `com.me.shop/buy`?"
        hidden = "rule-7 (deny http:eve com.me.shop/buy) is never reached: rule-5 (allow http:* com.me.shop/buy)"
        for verb in ("reload", "policy", "status", "doctor"):
            out = trunkline("--home", str(home), verb).out
            assert wrong in out, verb
            assert hidden in out, verb


def test_the_rules_of_a_person_that_are_not_reached_any_more_are_shown_before_they_are() -> None:
    def of_the_file(number: int, caller: str, decision: Decision, **rest: Any) -> Rule:
        return Rule(f"rule-{number}", caller, "c/d", decision, **rest)

    small = compiled({"n": {"<": 0}})
    policy = [
        of_the_file(1, "http:eve", Decision.DENY),
        of_the_file(2, "http:*", Decision.ASK),
        of_the_file(3, "*", Decision.DENY, input=small),
        of_the_file(4, "http:bob", Decision.DENY),
        Rule("builtin-x", "*", "*", Decision.ASK),
    ]
    question = {"subject": "call", "rule": "x", "asked_by": "http:bob", "tool_id": "c/d", "approval_id": "a1"}
    rules = [{"id": one.id, "decision": "ask"} for one in policy]

    def asks(_caller: str) -> dict[str, Any]:
        return {"decision": "ask", "rule": "rule-2"}

    made = rule_for(question, rules, asks)
    assert [one.id for one in made.passed_over(policy)] == ["rule-2"], "those after it were not reached before"
    assert [one.id for one in made.passed_over([*policy[2:3], *policy[3:4]])] == ["rule-3", "rule-4"]
    assert made.passed_over(policy[:1]) == []
