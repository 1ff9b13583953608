"""What is allowed from now on: the rule that would have allowed what was asked, and how it is put into the file.

Owns which rule that is and where it stands among the others, for ``approve --always`` and for the console. Does not own
policy: what the rules say is asked of the exchange, and what they are after the change is what it reads from the file.

Invariant: the file says afterwards what it said before and the shown rules, or it is as it was.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from trunkline.input_conditions import fulfilled, matches, written
from trunkline.model import MOUNT_PREFIX, Circumstance, Decision, InputCondition, Rule
from trunkline.rule_remarks import OF_THE_FILE, covers
from trunkline.shown import Question

_HEADER: Final = re.compile(r"^[ \t]*\[\[[ \t]*policy[ \t]*\.[ \t]*rule[ \t]*\]\]", re.MULTILINE)


class NoStandingRule(Exception):
    """Why something cannot be allowed from now on; ``rule`` is what a person may add by hand, if there is one."""

    def __init__(self, text: str, rule: str = "") -> None:
        super().__init__(text)
        self.rule = rule


class StandingRule:
    """The rules for one question, and the number of the file's rule that they stand before; None: at the end."""

    def __init__(self, text: str, before: int | None, callers: Sequence[str] = (), rules: Sequence[Rule] = ()) -> None:
        self.text = text
        # Those whom the rules let through.
        self.callers = frozenset(callers)
        self._before = before
        self._rules = rules

    def passed_over(self, policy: Sequence[Rule]) -> list[Rule]:
        """The file's rules that decide something for these callers and this tool now, and nothing any more then."""
        found = []
        for at, rule in enumerate(policy):
            number = OF_THE_FILE.fullmatch(rule.id)
            if number is None or self._before is None or int(number[1]) < self._before:
                continue
            for new in self._rules:
                if not matches(rule.caller, new.caller) or not matches(rule.tool, new.tool):
                    continue
                one = replace(rule, caller=new.caller, tool=new.tool)
                if covers(new, one) and not any(covers(earlier, one) for earlier in policy[:at]):
                    found.append(rule)
                    break
        return found

    def speaks_of(self, body: Raw | None) -> bool:
        """Whether an input is what the rules allow."""
        conditions = self._rules[-1].input if self._rules else ()
        return not conditions or (body is not None and fulfilled(conditions, msgspec.json.decode(body), allows=True))

    def placed_in(self, content: str) -> str:
        """The file's content with the rules in it; ``NoStandingRule`` if they do not fit in."""
        found = list(_HEADER.finditer(content))
        if self._before is None:
            changed = f"{content.rstrip()}\n\n{self.text}" if content.strip() else self.text
        elif self._before <= len(found):
            at_ = found[self._before - 1].start()
            changed = f"{content[:at_]}{self.text}\n{content[at_:]}"
        else:
            raise _cannot_write(self.text)
        if _rules(changed, self.text) != self._expected(content):
            raise _cannot_write(self.text)
        return changed

    def _expected(self, content: str) -> tuple[Any, Any]:
        tables = tomllib.loads(content)
        rules = list(tables.get("policy", {}).get("rule", []))
        at_ = len(rules) if self._before is None else self._before - 1
        rules[at_:at_] = tomllib.loads(self.text)["policy"]["rule"]
        return _without_rules(tables), rules


def _rules(content: str, text: str) -> tuple[Any, Any]:
    try:
        tables = tomllib.loads(content)
    except tomllib.TOMLDecodeError:
        raise _cannot_write(text) from None
    return _without_rules(tables), tables.get("policy", {}).get("rule", [])


def _without_rules(tables: dict[str, Any]) -> dict[str, Any]:
    policy = {key: value for key, value in tables.get("policy", {}).items() if key != "rule"}
    others = {key: value for key, value in tables.items() if key != "policy"}
    return {**others, "policy": policy}


def _cannot_write(text: str) -> NoStandingRule:
    return NoStandingRule(
        "the rules of this file are written in a way that a command cannot add to; add this by hand", text
    )


def rule_for(
    question: Mapping[str, Any],
    rules: Sequence[Mapping[str, Any]],
    check: Callable[[str], Mapping[str, Any]],
    *,
    also_untrusted: bool = False,
) -> StandingRule:
    """The rules that let through what a question asks about, from now on; ``NoStandingRule`` says why there are none.

    ``rules`` are those in force; ``check`` is what they say to such a call by a caller; all shaped as on the wire. With
    ``also_untrusted`` a person wants it allowed when what strangers wrote may be behind it, too (decision 122), and
    ``check`` is about a call of that kind.
    """
    if question["subject"] != "call":
        raise NoStandingRule("only calls can be allowed from now on; answer this one by itself")
    known = {rule["id"]: rule for rule in rules}
    if "when" in known.get(question.get("rule", ""), {}) and not also_untrusted:
        raise NoStandingRule(_asked_each_time(question))
    callers: list[str] = []
    asked_by: list[str] = []
    # The rules of the file that ask; None for one that is not of the file.
    before: set[int | None] = set()
    for caller in dict.fromkeys((*question.get("chain", ()), question["asked_by"])):
        verdict = check(caller)
        if verdict["decision"] != "ask":
            continue
        if "when" in known.get(verdict["rule"], {}) and not also_untrusted:
            text = f"{verdict['rule']} asks under a condition, each time anew; answer this one by itself"
            raise NoStandingRule(text)
        if verdict["rule"] not in known:
            text = f"it is not a rule of the configuration that asks but {verdict['rule']}: answer this one by itself"
            raise NoStandingRule(text)
        callers.append(caller)
        asked_by.append(verdict["rule"])
        own = OF_THE_FILE.fullmatch(verdict["rule"])
        before.add(int(own[1]) if own else None)
    if not callers:
        raise NoStandingRule("the rules of now do not ask about it; answer this one by itself")
    if len(before) > 1:
        # All before the first would be before a rule between them, which may deny.
        text = "several rules ask about it, and what stands between them would be passed over; add a rule by hand"
        raise NoStandingRule(text)
    # What the rule that asks wants of the input is what is allowed from now on: other inputs are left to other rules.
    asking = next(rule for rule in map(known.get, asked_by) if rule is not None)
    conditions = msgspec.convert(asking.get("input", ()), tuple[InputCondition, ...])
    new = [rule for caller in callers for rule in _rules_for(caller, question, conditions, also_untrusted)]
    texts = [_written(rule) for rule in new]
    if also_untrusted:
        texts = [f"# Also when what strangers wrote may have led to the call.\n{text}" for text in texts]
    return StandingRule("\n".join(texts), before.pop(), callers, new)


def _asked_each_time(question: Mapping[str, Any]) -> str:
    """Why there is no rule by itself, and what a person can do who wants one all the same."""
    command = f"`trunkline approve {question['approval_id']} --always --also-untrusted`"
    ways = f"it is asked because of what strangers wrote, and that is asked each time; {command} allows it then, too"
    if str(question.get("tool_id", "")).startswith(MOUNT_PREFIX):
        ways += ". If only you write what its server reads, say untrusted = false in its [[mcp]]"
    return ways


def _rules_for(
    caller: str, question: Mapping[str, Any], conditions: tuple[InputCondition, ...], also_untrusted: bool
) -> list[Rule]:
    tool, approval_id = question["tool_id"], question["approval_id"]
    if also_untrusted:
        reason = f"allowed from now on, whoever led to it, when {approval_id} was answered"
        return [Rule("", caller, tool, Decision.ALLOW, reason, input=conditions)]
    stranger = Circumstance.UNTRUSTED
    ask = Rule("", caller, tool, Decision.ASK, "what strangers wrote is part of this conversation", when=stranger)
    reason = f"allowed from now on, when {approval_id} was answered"
    return [replace(ask, input=conditions), Rule("", caller, tool, Decision.ALLOW, reason, input=conditions)]


def _written(rule: Rule) -> str:
    caller = rule.caller
    name = f"agent:{caller.removeprefix('opensentience:')}" if caller.startswith("opensentience:") else caller
    lines = ["[[policy.rule]]", f"caller = {json.dumps(name)}", f"tool = {json.dumps(rule.tool)}"]
    lines.append(f'decision = "{rule.decision.value}"')
    if rule.input:
        try:
            condition = f"input = {written(rule.input)}"
        except ValueError:
            text = "the rule that asks has conditions that a command cannot repeat; add a rule by hand"
            raise NoStandingRule(text) from None
        circumstance = "" if rule.when is None else f'circumstance = "{rule.when.value}", '
        lines.append(f"when = {{ {circumstance}{condition} }}")
    elif rule.when is not None:
        lines.append(f'when = "{rule.when.value}"')
    lines.append(f"reason = {json.dumps(rule.reason)}")
    return "\n".join(lines) + "\n"


def also_let_go(rule: StandingRule, question: Question, questions: Iterable[Question]) -> list[str]:
    """Which other questions are about calls that these rules allow as well, unless something else asks about them."""
    return [
        one.approval_id
        for one in questions
        if (one.subject, one.tool_id) == (question.subject, question.tool_id)
        and one.call_id != question.call_id
        and not rule.callers.isdisjoint((*one.chain, one.asked_by))
        and rule.speaks_of(one.input)
    ]


def check(file: Path, rule: StandingRule) -> None:
    """``NoStandingRule`` if the rules cannot be put into the file."""
    try:
        rule.placed_in(file.read_text() if file.exists() else "")
    except OSError as error:
        raise NoStandingRule(f"{file}: {error.strerror}", rule.text) from None


def put_in_force(file: Path, rule: StandingRule, reload: Callable[[], object]) -> None:
    """Write the rules into the file and have it read again; if it cannot be used, it is as it was."""
    try:
        before = file.read_text() if file.exists() else ""
        _replace(file, rule.placed_in(before))
        try:
            reload()
        except Exception:
            _replace(file, before)
            raise
    except OSError as error:
        raise NoStandingRule(f"{file}: {error.strerror}", rule.text) from None


def _replace(file: Path, content: str) -> None:
    real = file.resolve()
    part = real.with_name(f".{real.name}.{os.getpid()}")
    mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as writer:
        writer.write(content)
        writer.flush()
        os.fsync(writer.fileno())
    part.replace(real)
