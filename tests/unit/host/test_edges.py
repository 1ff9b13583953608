"""``host.edges``: edges are made, started and stopped in order; one that cannot run is off, and says why."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from trunkline.config import Config, Http, Pylon
from trunkline.config_file import load
from trunkline.edges.address import Address
from trunkline.edges.doors import Door
from trunkline.edges.edge import Edge, EdgeOff, RunningEdge, Surroundings, TokenKind
from trunkline.edges.known import EDGES, UNBUILT
from trunkline.edges.listener import WebListener
from trunkline.errors import ConfigError
from trunkline.home import Home
from trunkline.host import edges
from trunkline.host.edges import Edges
from trunkline.host.operating import Operating
from trunkline.testing.memory import MemoryExchange, on_any_port


async def nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    """An application that is never asked."""


class Noted(RunningEdge):
    """An edge that notes what is done with it."""

    def __init__(self, name: str, given: Surroundings, log: list[str], **raises: Exception) -> None:
        self._name = name
        self._log = log
        self._raises = raises
        self.given = given
        self._note("made")

    def _note(self, what: str) -> None:
        self._log.append(f"{self._name} {what}")
        if what in self._raises:
            raise self._raises[what]

    def prepare(self) -> None:
        self._note("prepared")

    def doors(self) -> Sequence[Door]:
        return (Door((f"/{self._name}",), nothing),)

    async def start(self) -> None:
        self._note("started")

    async def stop(self) -> None:
        self._note("stopped")

    def ready(self) -> Mapping[str, str | None]:
        self._note("asked where")
        return {self._name: f"here:{self._name}"}

    def status(self) -> Mapping[str, object]:
        self._note("asked how")
        return {"connections": 3}

    def warnings(self) -> Sequence[str]:
        self._note("asked for warnings")
        return (f"[{self._name}] odd has no effect: there is none",)


class Listens(RunningEdge):
    """An edge with a web listener of its own, on the address of ``[pylon]``."""

    def __init__(self, given: Surroundings, port: int) -> None:
        is_given = given.config.is_given("pylon", "listen")
        self._listener = WebListener(nothing, Address("127.0.0.1", port, "pylon", is_given=is_given))

    async def start(self) -> None:
        await self._listener.start()

    async def stop(self) -> None:
        await self._listener.stop()

    def ready(self) -> Mapping[str, str | None]:
        return {"pylon": self._listener.url}


class Kit:
    """Edges that note what happens to them, over an exchange in memory."""

    def __init__(self, *edges: Edge, config: Config | None = None) -> None:
        self.exchange = MemoryExchange(config=config)
        self.edges = Edges(edges, {"pylon": "pylon", "cluster": None})
        self.edges.make(self.exchange.surroundings())


def noted(name: str, log: list[str], raises: dict[str, Exception] | None = None, **terms: Any) -> Edge:
    return Edge(name=name, make=lambda given: Noted(name, given, log, **(raises or {})), ready_keys=(name,), **terms)


# --- a defect of one edge ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["made", "prepared", "started"])
async def test_an_edge_with_a_defect_is_off_with_its_place_and_the_others_run(moment: str) -> None:
    log: list[str] = []
    kit = Kit(noted("a", log, {moment: RuntimeError("a secret")}), noted("b", log))
    kit.edges.prepare()
    await kit.edges.start()
    found = kit.edges.status()["edges"]
    assert isinstance(found, dict)
    assert found["b"]["state"] == "on"
    assert found["a"]["state"] == "off"
    assert re.fullmatch(r"it has a defect: RuntimeError at test_edges\.py:\d+", found["a"]["note"])
    await kit.edges.stop()


@pytest.mark.parametrize("moment", ["made", "prepared", "started"])
async def test_without_the_operators_edge_nothing_runs_and_one_line_says_why(moment: str) -> None:
    async def run() -> None:
        kit = Kit(noted("http", [], {moment: RuntimeError("a secret")}, is_operators=True))
        kit.edges.prepare()
        await kit.edges.start()

    with pytest.raises(ConfigError, match="http cannot run: it has a defect: RuntimeError at test_edges") as raised:
        await run()
    assert "a secret" not in str(raised.value)


async def test_an_edge_that_cannot_say_how_it_is_leaves_what_the_others_say() -> None:
    wrong = dict.fromkeys(("asked where", "asked how", "asked for warnings"), RuntimeError("a secret"))
    kit = Kit(noted("a", [], wrong), noted("b", []))
    await kit.edges.start()
    assert kit.edges.ready()["b"] == "here:b"
    said = kit.edges.status()
    assert said["edges"] == {
        "a": {"state": "on", "note": "a defect keeps it from telling how it is"},
        "b": {"state": "on", "connections": 3},
    }
    assert kit.edges.warnings() == ["[b] odd has no effect: there is none"]
    assert kit.exchange.feed.figures()["defects"] == 3
    await kit.edges.stop()


# --- order ------------------------------------------------------------------------------------------------------------


async def test_edges_start_and_stop_in_the_order_of_the_list_and_the_last_one_stays_until_the_end() -> None:
    log: list[str] = []
    kit = Kit(noted("a", log), noted("b", log), noted("c", log, stops_last=True))
    kit.edges.prepare()
    await kit.edges.start()
    await kit.edges.stop()
    assert log == [f"{name} {done}" for done in ("made", "prepared", "started") for name in "abc"] + [
        "a stopped",
        "b stopped",
    ]
    await kit.edges.stop_last()
    assert log[-1] == "c stopped"
    await kit.edges.stop_last()
    assert log.count("c stopped") == 1


def test_the_doors_of_all_edges_are_there_for_the_one_that_listens() -> None:
    kit = Kit(noted("a", []), noted("b", []))
    assert [door.prefixes for door in kit.edges.doors()] == [("/a",), ("/b",)]


def test_two_edges_with_a_door_for_the_same_path_do_not_run_together() -> None:
    """One of them would never be asked, and nobody would know."""

    class Same(Noted):
        def doors(self) -> Sequence[Door]:
            return (Door(("/own", "/a"), nothing),)

    kit = Kit(noted("a", []), Edge(name="b", make=lambda given: Same("b", given, [])))
    with pytest.raises(ConfigError, match=re.escape("/a is a path of a and of b")):
        kit.edges.doors()


async def test_who_was_never_started_is_not_stopped() -> None:
    log: list[str] = []
    bad = {"started": ConfigError("no", "trunkline.toml:3")}
    kit = Kit(noted("a", log), noted("b", log, bad), noted("c", log))
    with pytest.raises(ConfigError, match="no"):
        await kit.edges.start()
    await kit.edges.stop()
    await kit.edges.stop_last()
    assert [word for word in log if word.endswith(("started", "stopped"))] == [
        "a started",
        "b started",
        "a stopped",
        "b stopped",
    ]


async def test_one_that_cannot_even_stop_does_not_keep_the_others_from_it() -> None:
    log: list[str] = []
    kit = Kit(noted("a", log, {"stopped": RuntimeError()}), noted("b", log), noted("c", log))
    await kit.edges.start()
    await kit.edges.stop()
    await kit.edges.stop_last()
    assert log[-3:] == ["a stopped", "b stopped", "c stopped"]
    assert kit.exchange.notices() == ["defect"]


class Endless(RunningEdge):
    """An edge that never comes to the end of its goodbyes."""

    async def stop(self) -> None:
        await asyncio.Event().wait()


async def test_one_whose_stop_does_not_end_is_left_after_its_time_and_the_others_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edges, "STOP_WITHIN_S", 0.05)
    log: list[str] = []
    kit = Kit(Edge(name="a", make=lambda _: Endless()), noted("b", log))
    await kit.edges.start()
    async with asyncio.timeout(5):
        await kit.edges.stop()
    assert log[-1] == "b stopped"
    assert kit.exchange.notices() == ["defect"]


def test_one_edge_says_how_agents_are_launched(tmp_path: Path) -> None:
    launcher = Edges(EDGES, UNBUILT).launcher(Config(), tmp_path)
    assert launcher.edge == "opensentience"


def test_tokens_can_be_made_for_edges_that_have_some_whether_they_run_or_not() -> None:
    kind = TokenKind(("one", "two"))
    kit = Kit(noted("a", [], tokens=kind, needs=("no_such_module", "x")), noted("b", []))
    assert kit.edges.token_kinds() == {"a": kind}


# --- off --------------------------------------------------------------------------------------------------------------


async def test_an_edge_whose_extra_is_missing_is_off_with_a_line_and_nothing_of_it_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []
    with caplog.at_level(logging.WARNING, "trunkline"):
        kit = Kit(noted("a", log, needs=("no_such_module", "extra")), noted("b", log))
        kit.edges.prepare()
        await kit.edges.start()
    why = "no_such_module is missing: pip install 'trunkline[extra]'"
    assert caplog.messages == [f"a is off: {why}"]
    assert not [line for line in log if line.startswith("a ")]
    assert kit.edges.ready() == {"a": None, "b": "here:b", "pylon": None}
    assert kit.edges.status()["edges"] == {
        "a": {"state": "off", "note": why},
        "b": {"state": "on", "connections": 3},
    }
    await kit.edges.stop_last()


def test_an_extra_that_is_there_is_no_reason_to_be_off() -> None:
    kit = Kit(noted("a", [], needs=("json", "extra")))
    assert kit.edges.status()["edges"] == {"a": {"state": "on", "connections": 3}}


async def test_an_edge_that_its_own_section_turns_off_is_off_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    off = noted("ossa", [], {"started": EdgeOff('[ossa] listen is ""', is_chosen=True)}, section="ossa")
    kit = Kit(off, config=from_file(tmp_path, '[ossa]\nlisten = ""\n'))
    await kit.edges.start()
    assert kit.edges.status()["edges"] == {"ossa": {"state": "off", "note": '[ossa] listen is ""'}}
    assert kit.edges.warnings() == []
    assert caplog.messages == []


async def test_an_edge_that_turns_itself_off_is_stopped_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    kit = Kit(noted("a", log, {"started": EdgeOff("no broker here")}), noted("b", log))
    with caplog.at_level(logging.WARNING, "trunkline"):
        await kit.edges.start()
    assert log[2:] == ["a started", "a stopped", "b started"]
    assert caplog.messages == ["a is off: no broker here"]
    assert kit.edges.ready() == {"a": None, "b": "here:b", "pylon": None}
    await kit.edges.stop()
    await kit.edges.stop_last()
    assert log.count("a stopped") == 1


async def test_a_taken_default_port_turns_its_edge_off_and_a_chosen_one_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listens = Edge("pylon", lambda given: Listens(given, port), section="pylon", ready_keys=("pylon",))
        kit = Kit(listens)
        await kit.edges.start()
        assert kit.edges.ready() == {"pylon": None}
        note = kit.edges.status()["edges"]["pylon"]["note"]  # type: ignore[index]
        assert note.startswith(f"127.0.0.1:{port}: cannot listen here: ")
        assert note.endswith("choose another address in [pylon] listen")
        chosen = Kit(listens, config=Config(given=frozenset({("pylon", "listen")})))
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: cannot listen here"):
            await chosen.edges.start()
        await chosen.edges.stop_last()
    free = Kit(Edge("pylon", lambda given: Listens(given, 0), ready_keys=("pylon",)))
    await free.edges.start()
    assert str(free.edges.ready()["pylon"]).startswith("http://127.0.0.1:")
    await free.edges.stop_last()


# --- what is told of them ---------------------------------------------------------------------------------------------


def from_file(folder: Path, text: str) -> Config:
    home = Home(folder)
    (folder / "trunkline.toml").write_text(text)
    return load(home, None, {})


def test_a_section_of_an_edge_that_this_release_does_not_have_is_a_warning_also_after_a_reload(tmp_path: Path) -> None:
    kit = Kit(config=from_file(tmp_path, '[pylon]\napp_key = "x"\n'))
    pylon, cluster = (f"[{name}] has no effect: this release does not have it" for name in ("pylon", "cluster"))
    assert kit.edges.warnings() == [pylon]
    kit.edges.reload(from_file(tmp_path, '[cluster]\nnats = "nats://x"\n[pylon]\napp_key = "y"\n'), "trunkline.toml")
    assert kit.edges.warnings() == [pylon, cluster]
    kit.edges.reload(from_file(tmp_path, ""), "trunkline.toml")
    assert kit.edges.warnings() == []
    for said in ([], ["a: no sandbox"]):
        operating = Operating(
            kit.exchange.feed,
            kit.edges,
            reload=dict,
            steer=lambda *_: False,
            warnings=said.copy,
            anchoring=None,
        )
        assert (operating.status()["warnings"], operating.status()["not_built"]) == (said, ["pylon"])


async def test_what_of_its_section_has_no_effect_an_edge_says_itself_while_it_runs(tmp_path: Path) -> None:
    config = from_file(tmp_path, '[chiffon]\nnats = "nats://127.0.0.1:1"\n[ossa]\nlisten = "127.0.0.1:1"\n')
    kit = Kit(
        noted("chiffon", [], section="chiffon"),
        noted("ossa", [], {"started": EdgeOff("no key")}, section="ossa"),
        noted("nostr", [], {"started": EdgeOff("no key")}, section="nostr"),
        config=config,
    )
    await kit.edges.start()
    assert kit.edges.warnings() == [
        "[ossa] has no effect: no key",
        "[chiffon] odd has no effect: there is none",
    ]
    await kit.edges.stop_last()


def test_every_edge_and_every_section_is_in_ready_json_or_has_nothing_to_say_there() -> None:
    ready = Edges(EDGES, UNBUILT).ready()
    assert set(ready) == {"http", "socket", "tcp", "ossa", "relay", "pylon"}
    assert set(ready.values()) == {None}


def test_a_reload_that_changes_the_section_of_an_edge_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    kit = Kit(noted("http", [], section="http"), config=from_file(tmp_path, "[pylon]\n"))
    changed = Config(http=Http(listen="127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"trunkline\.toml: a change of \[http\] needs a restart"):
        kit.edges.reload(changed, "trunkline.toml")
    assert kit.edges._config is kit.exchange.config
    both = Config(http=Http(listen="127.0.0.1:1"), pylon=Pylon(listen="127.0.0.1:1"))
    kit = Kit(noted("http", [], section="http"), noted("pylon", [], section="pylon"))
    with pytest.raises(ConfigError, match=r"a change of \[http\] and \[pylon\] needs a restart"):
        kit.edges.reload(both, "trunkline.toml")
    kit.edges.reload(on_any_port(from_file(tmp_path, "[limits]\nopen_calls = 5\n")), "trunkline.toml")


@pytest.mark.parametrize("edge", [edge for edge in EDGES if edge.section], ids=lambda edge: edge.name)
def test_each_edges_section_is_one_of_the_configuration(edge: Edge) -> None:
    assert hasattr(Config(), edge.section)
    assert edge.section not in UNBUILT
