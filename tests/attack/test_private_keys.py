"""The private half of a key that the exchange made for an agent is found nowhere but in the answer that shows it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from tests.attack.secrets import forms
from tests.running import Running, contents, running

# An edge whose credentials are pairs of keys, for as long as none of those that are known has the name.
_WITH_KEYS = """
import sys

if "up" in sys.orig_argv:
    from trunkline.edges import known
    from trunkline.edges.edge import Edge, RunningEdge
    from trunkline.edges.ossa.keys import OSSA_KEYS

    if not any(edge.name == "ossa" for edge in known.EDGES):
        known.EDGES = (*known.EDGES, Edge(name="ossa", make=lambda _: RunningEdge(), tokens=OSSA_KEYS))
"""


def private_parts(made: dict[str, Any]) -> list[bytes]:
    """Each private part as it was shown, in other spellings, and as the bytes it stands for."""
    found = []
    for name in ("jwk", "enc_jwk"):
        text: str = made[name]["d"]
        raw = base64.urlsafe_b64decode(text + "=")
        assert len(raw) == 32
        found += [raw, raw.hex().encode(), base64.b64encode(raw).rstrip(b"="), *forms(text)]
    return found


def files_with(exchange: Running, wanted: list[bytes]) -> list[str]:
    """Files of an exchange in which one of these stands."""
    held = contents(exchange.home, exchange.output)
    assert len(held) >= 4
    return [path.name for path, data in held.items() if any(form in data for form in wanted)]


def test_private_keys_are_in_no_file_and_the_public_ones_are_good_after_a_kill(short_path: Path) -> None:
    (short_path / "site").mkdir()
    (short_path / "site" / "sitecustomize.py").write_text(_WITH_KEYS)
    path = os.pathsep.join([str(short_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    with running(short_path / "home", env={"PYTHONPATH": path}) as exchange:
        # One URL looks like a secret: it is masked on record, and what is kept for us survives.
        url = "https://w.example/hook?access_token=ghp_" + "a1B2" * 9
        body = {"edge": "ossa", "agent": "worker-7", "type": "worker"}
        made = [exchange.request("POST", "/v1/tokens", {**body, **more})[1] for more in ({}, {"url": url})]
        wanted = [form for one in made for form in private_parts(one)]
        status, refused = exchange.request("POST", "/v1/tokens", body)
        assert (status, refused["error"]["code"]) == (409, "state.conflict")
        # Somebody sends his private key around, as a JWK and by itself after its name.
        exchange.call("no.such/tool", {"jwk": made[0]["jwk"]})
        before = exchange.request("GET", "/v1/tokens")[1]
        assert files_with(exchange, wanted) == []
        exchange.kill()
        assert files_with(exchange, wanted) == []
        exchange.start()
        assert exchange.request("GET", "/v1/tokens")[1] == before
        assert [one["public"]["kid"] for one in before["tokens"]] == [one["jwk"]["kid"] for one in made]
        assert before["tokens"][1]["public"]["url"] == url
        assert not any(form.decode("latin-1") in json.dumps(before) for form in wanted)
        assert exchange.stop() == 0
        assert files_with(exchange, wanted) == []
        assert files_with(exchange, [made[0]["jwk"]["kid"].encode()]) != [], "what was looked for could be found"
        assert files_with(exchange, [b"ghp_a1B2a1B2"]) == []
