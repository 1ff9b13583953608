"""Compute every hash of a trajectory (REPLAY.jsonl v1) with nothing but Python: `python check_trajectory.py FILE`."""

import hashlib
import json
import sys
from pathlib import Path


def number(text):
    """An integer, exact; minus zero is a float to serde_json."""
    if not -(2**63) <= int(text) < 2**64:
        raise ValueError("an integer outside 64 bits")
    return -0.0 if text == "-0" else int(text)


def real(value):
    """A float as serde_json writes it."""
    text = repr(value)
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    if 1e-5 <= abs(value) < 1e-4:
        return digits.replace(".", "").replace("-", "-0.0000") if value < 0 else "0.0000" + digits.replace(".", "")
    return f"{digits}e{int(exponent)}"


def canonical(value):
    """The text that is hashed: keys by code points, no white space."""
    if isinstance(value, dict):
        return "{" + ",".join(canonical(key) + ":" + canonical(value[key]) for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return real(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def digest(value):
    """The hash of a value."""
    return "sha256:" + hashlib.sha256(canonical(value).encode()).hexdigest()


with Path(sys.argv[1]).open(encoding="utf-8", newline="\n") as file:
    events = [json.loads(line, parse_int=number) for line in file]
pairs = [("plan", "plan_hash"), ("params", "params_hash"), ("output", "output_hash")]
found = [(event[name], event[of]) for event in events for name, of in pairs if name in event and of in event]
wrong = [named for value, named in found if digest(value) != named]
session = next(event["session_id"] for event in events if event["event"] == "SessionStart")
print(f"{len(found)} hashes computed, {len(wrong)} wrong")
print("trajectory", digest({"session_id": session, "events": events}))
sys.exit(1 if wrong else 0)
