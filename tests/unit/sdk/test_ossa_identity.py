"""Who an OSSA agent is and where its exchange is: what is read, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trunkline.edges.edge import KeyTerms
from trunkline.edges.ossa.keys import new_pair
from trunkline.errors import ConfigError, ExchangeUnreachable
from trunkline.sdk.ossa_identity import Place, read_identity, read_keys


@pytest.fixture
def shown() -> dict[str, Any]:
    return {"agent": "alice", "type": "governor", **new_pair(KeyTerms("alice")).shown}


def test_an_identity_is_read_from_its_object_its_file_or_the_environment(
    shown: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "alice.json"
    path.write_text(json.dumps(shown))
    path.chmod(0o600)
    monkeypatch.setenv("OSSA_IDENTITY", str(path))
    for given in (shown, path, str(path), None):
        found = read_identity(given)
        assert (found.identity.agent_id, found.identity.agent_type) == ("alice", "governor")
        assert found.signs.kid == shown["jwk"]["kid"]
    assert read_identity(shown, "monitor").identity.agent_type == "monitor"
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="read by others"):
        read_identity(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"jwk": None}, "agent, jwk and enc_jwk"),
        ({"enc_jwk": {"kty": "OKP"}}, "agent, jwk and enc_jwk"),
        ({"agent": "a b"}, "no agent id"),
        ({"type": "Big"}, "no agent type"),
    ],
)
def test_what_is_wrong_with_an_identity_is_named(shown: dict[str, Any], change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_identity({**shown, **change})


def test_without_an_identity_or_with_a_file_that_holds_none_it_is_said_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OSSA_IDENTITY", raising=False)
    with pytest.raises(ConfigError, match="an identity is needed"):
        read_identity(None)
    with pytest.raises(ConfigError, match="no such file"):
        read_identity(tmp_path / "none.json")
    for text in ("[]", "{"):
        path = tmp_path / "odd.json"
        path.touch(0o600)
        path.write_text(text)
        with pytest.raises(ConfigError, match="token new ossa"):
            read_identity(path)


def test_an_exchange_that_does_not_run_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(ExchangeUnreachable, match="no exchange runs"):
        Place(home=tmp_path).find()
    (tmp_path / "ready.json").write_text('{"ossa": null}')
    with pytest.raises(ExchangeUnreachable, match="does not speak OSSA"):
        Place(home=tmp_path).find()
    (tmp_path / "ready.json").write_text('{"ossa": "https://127.0.0.1:7413"}')
    with pytest.raises(ExchangeUnreachable, match="no certificate"):
        Place(home=tmp_path).find()
    assert Place(home=tmp_path, pin="A" * 43 + "=").find()[0] == "https://127.0.0.1:7413"
    with pytest.raises(ConfigError, match="https"):
        Place("http://127.0.0.1:7413").find()
    with pytest.raises(ConfigError, match="authorities"):
        Place("https://127.0.0.1:7413", ca=tmp_path / "ready.json").find()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"keys":[]}', b'{"keys":[{"use":"enc"}]}', b'{"keys":[1]}'])
def test_an_answer_that_is_no_set_of_keys_is_no_exchange(body: bytes) -> None:
    with pytest.raises(ExchangeUnreachable):
        read_keys(body)
