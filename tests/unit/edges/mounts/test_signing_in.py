"""``edges.mounts.signing_in``: OAuth at a mounted server, on real sockets, with servers that refuse each wrong step."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.requirement import requirement
from tests.running import ROOT
from tests.unit.edges.mounts.oauth_kit import Asked, Said, World
from trunkline.edges.mounts import oauth, remote, sign_in_requests, signing_in
from trunkline.entries import Noticed
from trunkline.model import Status

# Three servers and a page on real sockets for each.
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(remote, "LOOK_S", 0.02)
    monkeypatch.setattr(signing_in, "RENEWALS_APART_S", 0.0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as found:
        await found.signed_out()
        yield found


@requirement("MCP-042", "MCP-044")
async def test_a_person_signs_in_and_the_tools_are_there(world: World) -> None:
    assert "trunkline mcp login x" in world.view.note
    assert world.exchange.edges.status()["edges"]["mounts"]["signed_out"] == 1  # type: ignore[index]
    assert world.issuer.got == [], "nobody was asked anything before a person began"
    url = await world.begun()
    assert (await world.operator("GET"))[1] == {"state": "waiting"}
    page = await world.back(**world.issuer.opened(url))
    assert (page.status, b"Signed in" in page.body) == (200, True)
    await world.ready()
    assert (await world.operator("GET"))[1] == {"state": "done"}
    assert (await world.called()).status is Status.SUCCEEDED
    assert "scope=read%20offline_access" in url, "what the server asked for, and what renewing needs"
    assert world.issuer.refusals == world.server.refusals == []
    assert [one.code for one in world.exchange.recorded(Noticed)] == ["mounts.signed_in"]


async def test_only_the_operator_can_begin_look_and_end(world: World) -> None:
    for method in ("POST", "GET", "DELETE"):
        assert (await world.operator(method, world.exchange.token("http", "somebody")))[0] == 403
    assert world.issuer.got == []


@requirement("MCP-043")
async def test_a_state_counts_once_and_a_wrong_one_never(world: World) -> None:
    given = world.issuer.opened(await world.begun())
    assert (await world.back(code=given["code"], state="x" * 43)).status == 400
    assert (await world.back(code=given["code"])).status == 400
    assert (await world.back(**given)).status == 200
    replayed = await world.back(**given)
    assert (replayed.status, b"nobody began this" in replayed.body) == (400, True)
    assert [one.path for one in world.issuer.got].count("/token") == 1, "the code was not shown twice"
    await world.ready()


async def test_another_attempt_ends_the_one_before(world: World) -> None:
    first = world.issuer.opened(await world.begun())
    second = world.issuer.opened(await world.begun())
    assert (await world.back(**first)).status == 400
    assert (await world.back(**second)).status == 200
    assert len(world.issuer.clients) == 2, "a registration is kept with the tokens that it led to"


async def test_an_attempt_that_takes_too_long_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_in, "PENDING_S", -1.0)
    given = world.issuer.opened(await world.begun())
    page = await world.back(**given)
    assert (page.status, b"took too long" in page.body) == (400, True)
    assert "/token" not in [one.path for one in world.issuer.got]


async def test_a_code_that_was_begun_with_another_verifier_gives_nothing(world: World) -> None:
    stolen = world.issuer.opened(await world.begun())
    own = world.issuer.opened(await world.begun())
    page = await world.back(code=stolen["code"], state=own["state"])
    assert (page.status, b"invalid_grant" in page.body, b"secret words" in page.body) == (400, True, False)
    assert world.issuer.refusals == ["invalid_grant"]
    assert world.view.state == "signed-out"


async def test_a_code_that_was_used_elsewhere_gives_nothing(world: World) -> None:
    given = world.issuer.opened(await world.begun())
    world.issuer.codes[given["code"]] = None
    assert (await world.back(**given)).status == 400
    assert (await world.operator("GET"))[1]["state"].endswith("(HTTP 400, invalid_grant)")


async def test_who_says_no_is_told_so_and_nothing_of_a_stranger_is_shown(world: World) -> None:
    for error, shown in (("access_denied", b"access_denied"), ("<b>Pay here</b>", b"said no<")):
        state = world.issuer.opened(await world.begun())["state"]
        page = await world.back(error=error, state=state, error_description="visit evil.example")
        assert (page.status, shown in page.body, b"evil" in page.body, b"Pay" in page.body) == (400, True, False, False)


@requirement("MCP-043")
@pytest.mark.parametrize("is_promised", [False, True])
async def test_an_answer_of_another_issuer_is_not_taken(world: World, is_promised: bool) -> None:
    world.issuer.metadata["authorization_response_iss_parameter_supported"] = is_promised
    given = world.issuer.opened(await world.begun())
    assert (await world.back(**given, iss="https://evil.example")).status == 400
    assert "/token" not in [one.path for one in world.issuer.got], "the code was not shown to anybody"
    given = world.issuer.opened(await world.begun())
    assert (await world.back(**given)).status == (400 if is_promised else 200)
    given = world.issuer.opened(await world.begun())
    assert (await world.back(**given, iss=world.issuer.origin)).status == 200


async def test_a_token_that_the_server_takes_no_more_is_renewed_and_the_call_made_once(world: World) -> None:
    await world.sign_in()
    world.issuer.access.clear()
    assert (await world.called()).status is Status.SUCCEEDED
    assert world.view.restarts == 0
    assert world.issuer.refusals == []


async def test_a_token_is_renewed_before_it_is_over(world: World) -> None:
    world.issuer.lifetime = signing_in.EARLY_S - 1
    given = world.issuer.opened(await world.begun())
    assert (await world.back(**given)).status == 200
    await world.ready()
    first, current = world.issuer.issued[0], max(world.issuer.access)
    assert first != current
    assert first not in world.server.tokens, "one that is nearly over is not used"
    assert world.server.tokens.count("") == 1, "no request went without a token but the very first"
    world.issuer.lifetime = 3600
    assert (await world.called()).status is Status.SUCCEEDED
    assert (await world.called()).status is Status.SUCCEEDED
    assert len(set(world.server.tokens[-2:])) == 1, "one that lasts stays"
    assert world.issuer.refusals == []


async def test_who_is_not_renewed_signs_in_again(world: World) -> None:
    await world.sign_in()
    world.issuer.access.clear()
    world.issuer.renewing.clear()
    settled = await world.called()
    assert settled.fault is not None
    assert (settled.status, settled.fault.code) == (Status.FAILED, "tool.unavailable"), "it is known not to have run"
    await world.signed_out()
    count = len(world.server.got)
    await world.sign_in()
    assert world.server.tokens[count:].count("") == 0
    assert (await world.called()).status is Status.SUCCEEDED


async def test_an_authorization_server_that_is_away_costs_nobody_the_sign_in(world: World) -> None:
    await world.sign_in()
    world.issuer.access.clear()
    token, world.issuer.on["POST", "/token"] = world.issuer.on["POST", "/token"], lambda _: (503, None, {})
    assert (await world.called()).status is Status.FAILED
    await world.until(lambda: world.view.state == "backoff")
    world.issuer.on["POST", "/token"] = token
    await world.ready()
    assert (await world.called()).status is Status.SUCCEEDED


async def test_who_looks_while_the_code_is_exchanged_still_waits(world: World) -> None:
    seen: list[object] = []
    token = world.issuer.on["POST", "/token"]

    def looked(asked: Asked) -> Said:
        seen.append(world.exchange.operator.sign_in_state("mcp.x"))
        return token(asked)

    world.issuer.on["POST", "/token"] = looked
    await world.sign_in()
    assert seen == ["waiting"]


async def test_a_sign_in_is_kept_over_a_restart_and_encrypted(world: World) -> None:
    await world.sign_in()
    await world.end()
    [file] = (world.home / "keys" / "mcp-sign-ins").iterdir()
    data = file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    assert not any(word in data for word in (b"access", b"token", b"correct-horse", b"battery", b"client"))
    await world.begin()
    await world.ready()
    count = len(world.issuer.clients)
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    await world.end()
    await world.begin()
    await world.signed_out()
    assert len(world.issuer.clients) == count


async def test_signing_out_forgets_the_tokens(world: World) -> None:
    await world.sign_in()
    assert (await world.operator("DELETE"))[0] == 200
    await world.signed_out()
    assert not list((world.home / "keys" / "mcp-sign-ins").iterdir())
    count = len(world.server.tokens)
    await world.sign_in()
    assert not set(world.server.tokens[:count]) & set(world.server.tokens[count:])


async def test_no_token_code_or_verifier_is_in_record_log_or_view(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    given = world.issuer.opened(await world.begun())
    await world.back(**given)
    await world.ready()
    world.issuer.access.clear()
    await world.called()
    # A server that shows the token it was given, in a result.
    shown = world.issuer.issued[-2]
    assert shown in world.issuer.access
    echo = {"content": [{"type": "text", "text": f"you sent {shown}"}]}
    mcp = world.server.on["POST", "/mcp"]

    def leaking(asked: Asked) -> Said:
        status, shape, headers = mcp(asked)
        assert isinstance(shape, dict)
        return status, {**shape, "result": echo} if b"tools/call" in asked.body else shape, headers

    world.server.on["POST", "/mcp"] = leaking
    assert (await world.called()).status is Status.SUCCEEDED
    verifiers = [one.form["code_verifier"] for one in world.issuer.got if "code_verifier" in one.form]
    secrets = [*world.issuer.issued, given["code"], given["state"], *verifiers]
    assert len(secrets) >= 7
    views = world.exchange.views
    record = b"".join(views.recorded(1, views.last_entry()))
    assert b"you sent" in record
    shown_elsewhere = f"{caplog.text}{views.agents()}{world.exchange.operator.status()}".encode()
    for secret in secrets:
        assert secret.encode() not in record
        assert secret.encode() not in shown_elsewhere


async def test_a_call_that_needs_another_scope_fails_and_the_next_sign_in_asks_for_it(world: World) -> None:
    await world.sign_in()
    world.server.wants_scope = "write"
    assert (await world.called()).status is Status.FAILED
    await world.until(lambda: "another permission" in world.view.note)
    assert "scope=read%20write" in await world.begun()
    assert world.view.state == "ready"


# --- who may be asked -------------------------------------------------------------------------------------------------


async def refused(world: World) -> str:
    status, answer = await world.operator("POST")
    assert status == 409, answer
    assert world.view.state == "signed-out"
    return str(answer["error"]["message"])


@requirement("MCP-040")
@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"resource": "https://other.example/mcp"}, "another server than itself"),
        ({"resource": "ORIGIN/mcp/deeper"}, "another server than itself"),
        ({"resource": "ORIGIN/m"}, "another server than itself"),
        ({"authorization_servers": []}, "names no authorization server"),
        ({"authorization_servers": ["http://as.example"]}, "expected https"),
        ({"authorization_servers": ["file:///etc/passwd"]}, "expected https"),
        ({"authorization_servers": ["ISSUER/?next=x"]}, "a query in its address"),
        ({"resource": 7}, "cannot be read"),
    ],
)
async def test_a_description_that_does_not_fit_leads_nowhere(
    world: World, described: dict[str, object], expected: str
) -> None:
    text = json.dumps(described).replace("ORIGIN", world.server.origin).replace("ISSUER", world.issuer.origin)
    world.server.described = json.loads(text)
    assert expected in await refused(world)
    assert world.issuer.got == []


@requirement("MCP-040", "MCP-041")
@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"issuer": "https://other.example"}, "it is another one"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"code_challenge_methods_supported": None}, "PKCE"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "expected https"),
        ({"token_endpoint": "http://as.example/token"}, "expected https"),
        ({"registration_endpoint": None}, "registers nobody"),
        ({"token_endpoint": 5}, "cannot be read"),
    ],
)
async def test_an_authorization_server_that_does_not_fit_is_not_used(
    world: World, metadata: dict[str, object], expected: str
) -> None:
    world.issuer.metadata = metadata
    assert expected in await refused(world)
    assert world.issuer.clients == {}


async def test_redirects_are_not_followed(world: World) -> None:
    elsewhere = {"Location": f"{world.issuer.origin}/elsewhere"}
    world.server.on["GET", "/.well-known/oauth-protected-resource/mcp"] = lambda _: (302, None, elsewhere)
    assert "does not say where to sign in" in await refused(world)
    assert world.issuer.got == []


async def test_who_would_send_the_person_elsewhere_is_not_used(world: World) -> None:
    shape = {"client_id": "c", "redirect_uris": ["https://evil.example/"]}
    world.issuer.on["POST", "/register"] = lambda _: (201, shape, {})
    assert "elsewhere than back here" in await refused(world)


async def test_tokens_that_cannot_be_used_or_masked_are_not_taken(world: World) -> None:
    wrong: list[dict[str, object]] = [
        {"access_token": "a" * 20, "token_type": "mac"},
        {"access_token": "short", "token_type": "Bearer"},
        {"access_token": "two words and more", "token_type": "Bearer"},
        {"access_token": "line\r\nX-Injected: 1", "token_type": "Bearer"},
        {"access_token": "a" * 20_000, "token_type": "Bearer"},
        {},
    ]
    for shape in wrong:
        world.issuer.on["POST", "/token"] = lambda _, shape=shape: (200, shape, {})
        given = world.issuer.opened(await world.begun())
        assert (await world.back(**given)).status == 400
    assert world.view.state == "signed-out"


@pytest.mark.parametrize("issuer", ["", "own"])
async def test_a_public_server_has_a_private_address_asked_only_if_the_operator_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, issuer: str
) -> None:
    async def yes(_: str) -> bool:
        return True

    monkeypatch.setattr(signing_in, "is_public_place", yes)
    async with World(tmp_path, issuer=issuer) as world:
        await world.signed_out()
        if issuer:
            await world.sign_in()
        else:
            assert "127.0.0.1 is not on the public network" in await refused(world)
            assert world.issuer.got == []


async def test_a_browser_is_sent_to_no_private_address_by_a_public_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(host: str, _port: int) -> list[str]:
        return ["192.168.1.1"] if host == "inside.example" else ["8.8.8.8"]

    monkeypatch.setattr(sign_in_requests, "addresses_of", found)
    with pytest.raises(sign_in_requests.SignInRefused, match=r"inside\.example is not on the public network"):
        await sign_in_requests.check_place("https://inside.example/apply?reboot=1", may_be_private=False)
    await sign_in_requests.check_place("https://inside.example/apply", may_be_private=True)
    await sign_in_requests.check_place("https://outside.example/apply", may_be_private=False)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        *((one, False) for one in ("127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0")),
        *((one, False) for one in ("::1", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1")),
        *((one, False) for one in ("2002:a00:1::", "224.0.0.1", "::")),
    ],
)
def test_which_addresses_are_of_the_public_network(address: str, expected: bool) -> None:
    assert sign_in_requests.is_public(address) is expected


async def test_a_name_that_leads_to_a_private_address_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def looked_up(host: str, port: int) -> list[str]:
        return ["8.8.8.8", "169.254.169.254"]

    monkeypatch.setattr(sign_in_requests, "addresses_of", looked_up)
    with pytest.raises(signing_in.SignInRefused, match=r"as\.example is not on the public network"):
        await sign_in_requests.ask("GET", "https://as.example/x", {}, may_be_private=False)


# --- a client that the operator registered ----------------------------------------------------------------------------


async def test_a_configured_client_shows_its_secret_to_the_configured_issuer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "hunter2-hunter2")
    given = {"client_id": "mine", "client_secret": "env:CLIENT_SECRET", "scope": "read", "issuer": "own"}
    async with World(tmp_path, **given) as world:
        await world.signed_out()
        world.issuer.secrets["mine"] = "hunter2-hunter2"
        world.issuer.clients["mine"] = [f"{world.base}/oauth/callback"]
        await world.sign_in()
        assert "/register" not in [one.path for one in world.issuer.got]
        world.issuer.access.clear()
        assert (await world.called()).status is Status.SUCCEEDED
        assert world.issuer.refusals == []
        world.issuer.access.clear()
        world.issuer.renewing.clear()
        await world.called()
        await world.signed_out()
        world.server.described = {"authorization_servers": ["https://evil.example"]}
        assert "another authorization server than the `issuer`" in await refused(world)


# --- a document that says who we are ----------------------------------------------------------------------------------

DOCUMENT = "https://you.example/trunkline.json"


def documented(base: str) -> dict[str, Any]:
    """The document of docs/mcp-mounts.md, for an exchange at this address."""
    text = (ROOT / "docs/mcp-mounts.md").read_text().partition("```json\n")[2].partition("```")[0]
    found: dict[str, Any] = json.loads(text.replace("http://127.0.0.1:7411", base))
    return found


def test_the_document_says_what_a_registration_says() -> None:
    redirect_uri = "http://127.0.0.1:7411/oauth/callback"
    registration = json.loads(oauth.registration(redirect_uri, ""))
    assert documented("http://127.0.0.1:7411") == {"client_id": DOCUMENT, **registration}


@requirement("MCP-046")
async def test_a_server_that_reads_documents_knows_us_by_ours(tmp_path: Path) -> None:
    async with World(tmp_path, client_document=DOCUMENT) as world:
        await world.signed_out()
        world.issuer.metadata["client_id_metadata_document_supported"] = True
        world.issuer.documents[DOCUMENT] = documented(world.base)
        await world.sign_in()
        assert (await world.called()).status is Status.SUCCEEDED
        world.issuer.access.clear()
        assert (await world.called()).status is Status.SUCCEEDED, "renewed under the same name"
        assert "/register" not in [one.path for one in world.issuer.got]
        assert world.issuer.refusals == []


@requirement("MCP-046")
@pytest.mark.parametrize("supported", [None, False])
async def test_where_documents_are_not_read_we_register(tmp_path: Path, supported: bool | None) -> None:
    async with World(tmp_path, client_document=DOCUMENT) as world:
        await world.signed_out()
        world.issuer.metadata["client_id_metadata_document_supported"] = supported
        await world.sign_in()
        assert list(world.issuer.clients) == ["client-1"]


async def test_a_document_is_preferred_to_a_registration_of_before(tmp_path: Path) -> None:
    async with World(tmp_path, client_document=DOCUMENT) as world:
        await world.signed_out()
        await world.sign_in()
        world.issuer.metadata["client_id_metadata_document_supported"] = True
        world.issuer.documents[DOCUMENT] = documented(world.base)
        assert parse_qs(urlsplit(await world.begun()).query)["client_id"] == [DOCUMENT]


async def test_who_reads_documents_and_registers_nobody_is_told_of_the_key(world: World) -> None:
    world.issuer.metadata = {"registration_endpoint": None, "client_id_metadata_document_supported": True}
    assert "set `oauth.client_document`" in await refused(world)
