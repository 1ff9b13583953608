"""``hub.credentials`` and the door of ``hub.agents`` (decisions 16, 17, 19; P-E1 to P-E3, P-E5, P-E6, P-E8)."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.unit.hub.kit import BOSS, DESK, Kit, tool
from trunkline import effects, entries, events
from trunkline.hub import views
from trunkline.hub.credentials import FIRST_USE_S, MAX_DELAY_S, MAX_ORIGINS
from trunkline.model import Health, Manifest, Peer, Principal, fault


def is_in(answer: effects.Admit | effects.Refuse) -> bool:
    return isinstance(answer, effects.Admit)


# --- launch tokens ----------------------------------------------------------------------------------------------------


def test_a_launched_agent_is_let_in_and_its_entry_is_on_disk_first(kit: Kit) -> None:
    run_id = kit.launch("com.a")
    answer = kit.arrive("com.a", run_id=run_id)
    admitted = kit.log_of(entries.AgentAdmitted)[-1]
    assert is_in(answer)
    assert answer.after == admitted.n
    assert (admitted.agent_id, admitted.credential) == ("com.a", f"run:{run_id}")


@pytest.mark.parametrize(("after_s", "expected"), [(FIRST_USE_S - 0.001, True), (FIRST_USE_S, True), (120.001, False)])
def test_a_launch_token_is_first_used_within_two_minutes(kit: Kit, after_s: float, expected: bool) -> None:
    run_id = kit.launch("com.a")
    kit.advance(after_s)
    assert is_in(kit.arrive("com.a", run_id=run_id)) is expected


def test_after_its_first_use_it_does_not_age(kit: Kit) -> None:
    run_id = kit.launch("com.a")
    kit.arrive("com.a", run_id=run_id)
    kit.leave("com.a")
    kit.advance(100_000)
    assert is_in(kit.arrive("com.a", run_id=run_id))


@pytest.mark.parametrize("run_id", [None, "another run"])
def test_a_launch_token_is_worth_nothing_outside_its_run(kit: Kit, run_id: str | None) -> None:
    own = kit.launch("com.a")
    assert not is_in(kit.arrive("com.a", run_id=run_id))
    assert is_in(kit.arrive("com.a", run_id=own))


@pytest.mark.parametrize(("pid", "start_time"), [(200, 1), (100, 2)], ids=["another process", "a reused pid"])
def test_a_launch_token_belongs_to_the_process_that_used_it_first(kit: Kit, pid: int, start_time: int) -> None:
    run_id = kit.launch("com.a")
    kit.arrive("com.a", run_id=run_id)
    kit.leave("com.a")
    assert not is_in(kit.arrive("com.a", run_id=run_id, pid=pid, start_time=start_time))
    assert is_in(kit.arrive("com.a", run_id=run_id))


def test_a_peer_without_a_process_cannot_use_it(kit: Kit) -> None:
    run_id = kit.launch("com.a")
    said = kit.feed(
        events.AgentArrived(
            9, "h", "opensentience", "com.a", "1.0.0", "launch-com.a", Peer("tcp:10.0.0.1", None, run_id)
        )
    )
    assert isinstance(said[0], effects.Refuse)


def test_while_its_session_is_open_a_launch_token_opens_no_second_one(kit: Kit) -> None:
    run_id = kit.launch("com.a")
    kit.arrive("com.a", run_id=run_id)
    first = kit.sessions["com.a"]
    assert not is_in(kit.arrive("com.a", run_id=run_id))
    assert kit.hub.registry.agents["com.a"].session == first
    kit.leave("com.a")
    assert is_in(kit.arrive("com.a", run_id=run_id))


def test_of_a_hundred_races_for_one_token_exactly_one_wins(kit: Kit) -> None:
    for race in range(100):
        run_id = kit.launch("com.a", token=f"t{race}")
        wins = [is_in(kit.arrive("com.a", run_id=run_id, token=f"t{race}", pid=pid)) for pid in (100, 200)]
        assert wins == [True, False]


def test_a_token_ends_with_its_run_and_with_the_next_run_of_its_agent(kit: Kit) -> None:
    first = kit.launch("com.a", token="one")
    kit.feed(events.AgentExited("com.a", first, 1, 0.5))
    assert not is_in(kit.arrive("com.a", run_id=first, token="one"))
    second = kit.launch("com.a", token="two")
    third = kit.launch("com.a", token="three")
    assert not is_in(kit.arrive("com.a", run_id=second, token="two"))
    assert is_in(kit.arrive("com.a", run_id=third, token="three"))


def test_after_a_restart_of_the_exchange_launch_tokens_are_worth_nothing(kit: Kit) -> None:
    run_id = kit.launch("com.a")
    kit.crash()
    assert not is_in(kit.arrive("com.a", run_id=run_id))


def test_a_launch_token_speaks_for_its_own_agent_on_its_own_edge_only(kit: Kit) -> None:
    run_id = kit.launch("com.a")
    assert not is_in(kit.arrive("com.b", run_id=run_id, token="launch-com.a"))
    assert not is_in(kit.arrive("com.a", run_id=run_id, edge="chiffon"))
    assert is_in(kit.arrive("com.a", run_id=run_id))


def test_launch_and_exit_are_recorded_without_the_token(kit: Kit) -> None:
    run_id = kit.launch("com.a", token="sha-of-secret", manifest=Manifest("m" * 64))
    kit.feed(events.AgentExited("com.a", run_id, 3, None, "it crashed"))
    launched, exited = kit.log_of(entries.AgentLaunched)[-1], kit.log_of(entries.AgentExited)[-1]
    assert (launched.run_id, launched.pid, launched.manifest_sha256) == (run_id, 100, "m" * 64)
    assert (exited.run_id, exited.exit_code, exited.restart_in_s, exited.note) == (run_id, 3, None, "it crashed")
    assert all(b"sha-of-secret" not in entries.encode(entry) for entry in kit.log)


# --- standing tokens --------------------------------------------------------------------------------------------------


def test_a_standing_token_lets_its_agent_in_on_its_edge_and_nobody_else_anywhere(kit: Kit) -> None:
    kit.token("opensentience", "com.a", "secret")
    assert not is_in(kit.arrive("com.b", token="secret"))
    assert not is_in(kit.arrive("com.a", token="secret", edge="chiffon"))
    assert not is_in(kit.arrive("com.a", token="other"))
    assert is_in(kit.arrive("com.a", token="secret"))


def test_each_edges_tokens_open_that_edge_only(kit: Kit) -> None:
    edges = ("opensentience", "http", "ossa", "chiffon", "nostr")
    for edge in edges:
        kit.token(edge, "x", f"secret-{edge}", permissions=(edge,))
    for edge in edges:
        for token_edge in edges:
            found = kit.hub.credentials.identify(edge, f"secret-{token_edge}")
            expected = Principal(f"{edge}:x", (edge,)) if edge == token_edge else None
            assert found == expected


def test_a_standing_token_survives_a_crash_and_so_does_its_end(kit: Kit) -> None:
    kept, revoked = kit.token("opensentience", "com.a", "one"), kit.token("opensentience", "com.b", "two")
    assert (kept, revoked) == tuple(f"t{e.n}" for e in kit.log_of(entries.TokenIssued))
    kit.revoke(revoked)
    kit.snapshot()
    kit.crash()
    assert is_in(kit.arrive("com.a", token="one"))
    assert not is_in(kit.arrive("com.b", token="two"))


def test_a_fresh_session_with_a_standing_token_replaces_the_old_one(kit: Kit) -> None:
    kit.token("opensentience", "com.a", "secret")
    kit.arrive("com.a", token="secret")
    first = kit.sessions["com.a"]
    assert is_in(kit.arrive("com.a", token="secret", pid=7))
    assert [c.session for c in kit.closes] == [first]
    assert kit.log_of(entries.AgentLeft)[-1].reason == "replaced"


def test_revoking_closes_the_session_that_came_in_with_it_once_that_is_on_disk(kit: Kit) -> None:
    token_id = kit.token("opensentience", "com.a", "secret")
    kit.arrive("com.a", token="secret")
    kit.attach("com.b")
    reply = kit.revoke(token_id)
    number = kit.log_of(entries.TokenRevoked)[-1].n
    assert (reply.status, reply.id, reply.after) == ("revoked", token_id, number)
    assert kit.closes == [effects.Close(kit.sessions["com.a"], number, "protocol.unauthorized")]
    assert kit.hub.credentials.identify("opensentience", "secret") is None


def test_what_is_not_there_cannot_be_revoked_nor_twice(kit: Kit) -> None:
    token_id = kit.token("http", "x", "secret")
    assert kit.revoke("t9999").fault is not None
    assert kit.revoke(token_id).fault is None
    again = kit.revoke(token_id)
    assert again.fault is not None
    assert again.fault.code == "not_found"


def test_only_the_operator_gives_and_takes_tokens(kit: Kit) -> None:
    clerk = Principal("http:clerk", ("approve",))
    token_id = kit.token("http", "x", "secret")
    assert kit.token("http", "y", "stolen", by=clerk) == ""
    assert kit.hub.credentials.identify("http", "stolen") is None
    refused = kit.revoke(token_id, by=clerk)
    assert refused.fault is not None
    assert refused.fault.code == "not_allowed"
    assert kit.hub.credentials.identify("http", "secret") is not None


def test_the_operators_token_opens_the_http_edge_and_no_other(kit: Kit) -> None:
    assert kit.hub.credentials.identify("http", "operator-token") == BOSS
    assert kit.hub.credentials.identify("opensentience", "operator-token") is None
    assert not is_in(kit.arrive("com.a", token="operator-token"))


# --- failures ---------------------------------------------------------------------------------------------------------


def test_all_refusals_are_alike_and_the_reason_is_for_the_record_only(kit: Kit) -> None:
    expired = kit.launch("com.late", token="late")
    kit.advance(FIRST_USE_S + 1)
    revoked = kit.token("opensentience", "com.b", "revoked")
    kit.revoke(revoked)
    kit.launch("com.a")
    answers = [
        kit.arrive("com.a", token="unknown", origin="o1"),
        kit.arrive("com.b", token="revoked", origin="o2"),
        kit.arrive("com.late", token="late", run_id=expired, origin="o3"),
        kit.arrive("com.a", run_id="another", origin="o4"),
        kit.arrive("com.a", token="", origin="o5"),
    ]
    assert {(type(a), a.after, a.ref[:5], getattr(a, "delay_s", 0)) for a in answers} == {
        (effects.Refuse, 0, "hello", 0.0)
    }
    refused = kit.log_of(entries.AgentRefused)
    assert [r.origin for r in refused] == ["o1", "o2", "o3", "o4", "o5"]
    assert len({r.reason for r in refused}) >= 3


def test_failures_slow_the_next_refusal_of_that_origin_only(kit: Kit) -> None:
    delays = [getattr(kit.arrive("com.a", token="bad", origin="guesser"), "delay_s", None) for _ in range(10)]
    assert delays == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    other = kit.arrive("com.a", token="bad", origin="bystander")
    assert isinstance(other, effects.Refuse)
    assert other.delay_s == 0.0


def test_a_valid_token_is_never_refused_for_anybodys_failures(kit: Kit) -> None:
    run_id = kit.launch("com.a")
    for _ in range(50):
        kit.arrive("com.a", token="bad", origin="pid:100")
    assert is_in(kit.arrive("com.a", run_id=run_id))


def test_somebody_who_guesses_for_ever_harms_only_himself(kit: Kit) -> None:
    for _ in range(1100):
        delay = kit.hub.credentials.delay_after_failure("guesser")
    assert delay == MAX_DELAY_S


def test_the_memory_of_failures_is_bounded_and_forgets_the_oldest(kit: Kit) -> None:
    credentials = kit.hub.credentials
    credentials.delay_after_failure("first")
    for number in range(MAX_ORIGINS):
        credentials.delay_after_failure(f"o{number}")
    assert credentials.delay_after_failure("first") == 0.0
    assert credentials.delay_after_failure(f"o{MAX_ORIGINS - 1}") == 0.1


# --- ids (decision 19) ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look_alike", ["COM.A", "Com.a", "com.A"])
def test_an_id_that_equals_another_but_for_case_is_refused(kit: Kit, look_alike: str) -> None:
    kit.attach("com.a", "x")
    kit.token("opensentience", look_alike, "secret")
    assert not is_in(kit.arrive(look_alike, token="secret"))
    kit.leave("com.a")
    assert not is_in(kit.arrive(look_alike, token="secret"))


@pytest.mark.parametrize(
    "agent_id", ["space.x", "chiffon.infra", "mcp.files", "nostr.n", "a2a.a", "trunkline.hub", "MCP.x"]
)
@pytest.mark.parametrize("edge", ["opensentience", "chiffon", "http", "space"])
def test_no_token_is_made_for_an_agent_of_the_exchanges_own(kit: Kit, agent_id: str, edge: str) -> None:
    kit.feed(events.TokenIssued(DESK, "new", BOSS, edge, agent_id, "secret"))
    prefix = agent_id.casefold().partition(".")[0]
    assert kit.replies[DESK, "new"][0].fault == fault(
        "message.malformed", f"agent: ids of {prefix}. are the exchange's own"
    )
    assert kit.state.tokens == {}


@pytest.mark.parametrize("agent_id", ["space.x", "chiffon.infra", "MCP.x"])
@pytest.mark.parametrize("edge", ["opensentience", "chiffon"])
def test_a_token_of_an_earlier_release_lets_nobody_in_as_an_agent_of_the_exchanges_own(
    kit: Kit, agent_id: str, edge: str
) -> None:
    kit.token(edge, "com.a", "secret")
    issued = kit.log[-1]
    assert isinstance(issued, entries.TokenIssued)
    kit.log[-1] = replace(issued, agent=agent_id)
    kit.crash(len(kit.log))
    assert not is_in(kit.arrive(agent_id, token="secret", edge=edge))


def test_what_is_part_of_the_exchange_has_the_prefix_of_its_own_edge(kit: Kit) -> None:
    run_id = kit.launch("chiffon.infra")
    assert not is_in(kit.arrive("chiffon.infra", run_id=run_id, edge="space", is_resident=True))
    assert not is_in(kit.arrive("chiffon.infra", run_id=run_id, edge="chiffon"))
    assert is_in(kit.arrive("chiffon.infra", run_id=run_id, edge="chiffon", is_resident=True))


def test_one_agent_id_belongs_to_one_edge(kit: Kit) -> None:
    kit.attach("com.a", "x")
    kit.token("chiffon", "com.a", "secret")
    assert not is_in(kit.arrive("com.a", token="secret", edge="chiffon"))
    assert kit.hub.registry.agents["com.a"].edge == "opensentience"


def test_an_agent_that_left_is_recorded_with_its_reason(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x"))
    kit.leave("com.a", "heartbeats stopped" + "!" * 500)
    left = kit.log_of(entries.AgentLeft)[-1]
    assert left.reason.startswith("heartbeats stopped")
    assert len(left.reason) == 256


def test_health_is_recorded_when_it_changes(kit: Kit) -> None:
    kit.attach("com.a")
    for health in (Health.OK, Health.DEGRADED, Health.DEGRADED, Health.OK):
        kit.health("com.a", health)
    assert [e.health for e in kit.log_of(entries.AgentHealthChanged)] == [Health.DEGRADED, Health.OK]
    assert kit.feed(events.HealthReported(999, Health.OK)) == []


def test_a_typed_token_says_its_type_and_rules_may_name_it(kit: Kit) -> None:
    kit.feed(events.TokenIssued(DESK, "t", BOSS, "chiffon", "infra-1", "digest", (), "infra"))
    found = kit.hub.credentials.identify("chiffon", "digest")
    assert found == Principal("chiffon:infra-1", (), "infra")
    assert kit.hub.credentials.names_of("chiffon:infra-1") == ("chiffon:infra-1", "chiffon:type=infra")
    assert kit.hub.credentials.names_of("http:infra-1") == ("http:infra-1",)
    kit.crash()
    assert kit.hub.credentials.identify("chiffon", "digest") == found


def test_an_agent_of_the_exchange_itself_comes_in_by_the_edge_that_its_name_says(kit: Kit) -> None:
    for agent_id, edge, is_let_in in (
        ("chiffon.infra", "chiffon", True),
        ("chiffon.code", "opensentience", False),
        ("com.a", "chiffon", False),
    ):
        run_id = kit.launch(agent_id)
        answer = kit.arrive(agent_id, run_id=run_id, edge=edge, is_resident=True)
        assert isinstance(answer, effects.Admit) is is_let_in


# --- pairs of keys ----------------------------------------------------------------------------------------------------


def key(kit: Kit, kid: str, agent: str = "worker-7", edge: str = "chiffon") -> effects.Reply:
    """A credential with a public part."""
    public = Raw(f'{{"kid":"{kid}"}}'.encode())
    kit.feed(events.TokenIssued(DESK, kid, BOSS, edge, agent, f"hash-{kid}", (), "worker", public))
    return kit.replies[DESK, kid][0]


def test_the_public_part_of_a_key_is_on_record_and_shown_as_it_was_made(kit: Kit) -> None:
    key(kit, "k1")
    assert kit.hub.credentials.identify("chiffon", "hash-k1") == Principal("chiffon:worker-7", (), "worker")
    found = views.credential(kit.hub, "chiffon", "hash-k1")
    assert found is not None
    assert (found.agent, found.public, found.type) == ("worker-7", Raw(b'{"kid":"k1"}'), "worker")
    assert views.credential(kit.hub, "http", "hash-k1") is None
    assert views.credential(kit.hub, "chiffon", "hash-k2") is None
    kit.crash()
    assert views.credential(kit.hub, "chiffon", "hash-k1") == found
    assert views.tokens(kit.hub) == [found]


def test_an_agent_has_two_keys_at_most_and_is_told_which_to_revoke(kit: Kit) -> None:
    first, second = (key(kit, kid).id for kid in ("k1", "k2"))
    assert [found.token_id for found in views.credentials(kit.hub, "chiffon", "worker-7")] == [second, first]
    refused = key(kit, "k3").fault
    assert refused == fault(
        "state.conflict", f"worker-7 has {first} and {second} already; `trunkline token revoke {first}` ends the oldest"
    )
    assert views.credential(kit.hub, "chiffon", "hash-k3") is None
    kit.feed(events.TokenRevoked(DESK, "revoke", BOSS, str(first)))
    assert views.credential(kit.hub, "chiffon", "hash-k1") is None
    third = key(kit, "k4").id
    assert [found.token_id for found in views.credentials(kit.hub, "chiffon", "worker-7")] == [third, second]


def test_keys_are_counted_for_each_agent_and_edge_and_tokens_not_at_all(kit: Kit) -> None:
    for edge, agent in (("chiffon", "a"), ("chiffon", "b"), ("http", "a")):
        for kid in ("k1", "k2"):
            assert key(kit, f"{kid}-{agent}-{edge}", agent, edge).fault is None
    for number in range(3):
        kit.token("chiffon", "a", f"secret-{number}")
    assert len(views.credentials(kit.hub, "chiffon", "a")) == 5
    assert views.credentials(kit.hub, "chiffon", "nobody") == []


def test_a_mounted_agent_has_the_prefix_of_the_edge_that_speaks_for_it(kit: Kit) -> None:
    run_id = kit.launch("mcp.files")
    assert not is_in(kit.arrive("mcp.files", run_id=run_id, edge="chiffon", is_mounted=True))
    assert is_in(kit.arrive("mcp.files", run_id=run_id, edge="mcp", is_mounted=True))
