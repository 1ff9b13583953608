from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.console import KEY, console
from trunkline.edges.console import files
from trunkline.entries import Noticed
from trunkline.testing.memory import OPERATOR_TOKEN

HOSTILE = {"frame-ancestors 'none'", "base-uri 'none'", "script-src 'self'", "default-src 'none'", "form-action 'none'"}


async def test_the_page_and_its_files_are_served_with_their_types_and_a_policy(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = kit.browser()
        for path, media_type in (
            ("/", "text/html; charset=utf-8"),
            ("/console/page/main.js", "text/javascript; charset=utf-8"),
            ("/console/page/style.css", "text/css; charset=utf-8"),
        ):
            answer = await browser.http.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
            policy = {part.strip() for part in answer.headers["content-security-policy"].split(";")}
            assert policy >= HOSTILE
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            known = await browser.http.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (known.status_code, known.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/console/page/nothing.js",
        "/console/page/../edge.py",
        "/console/page/%2e%2e/edge.py",
        "/console/page/",
        "/console",
    ],
)
async def test_nothing_but_files_of_the_page_is_served(tmp_path: Path, path: str) -> None:
    async with console(tmp_path) as kit:
        assert (await kit.browser().http.get(path)).status_code == 404


def test_only_types_of_a_page_are_files_of_it(tmp_path: Path) -> None:
    (tmp_path / "view").mkdir()
    for name in ("index.html", "view/a.js", "notes.txt", ".hidden.py"):
        (tmp_path / name).write_text("x")
    assert set(files.page_files(tmp_path)) == {"index.html", "view/a.js"}


async def test_a_code_signs_in_once(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = kit.browser()
        code = await browser.new_code()
        answer = await browser.open(code)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/#key={browser.key}"
        flags = answer.headers["set-cookie"].lower()
        assert f"trunkline_{kit.port}=" in flags
        assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in flags.split(";")}
        assert "domain" not in flags
        assert (await browser.ask("GET", "/v1/status")).status_code == 200
        for again in (browser, kit.browser()):
            refused = await again.open(code)
            assert refused.status_code == 403
            assert "trunkline console" in refused.text
            assert "set-cookie" not in refused.headers
        assert [notice.code for notice in kit.exchange.recorded(Noticed)][:1] == ["console.signed_in"]


async def test_a_look_at_the_address_does_not_spend_its_code(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = kit.browser()
        code = await browser.new_code()
        assert (await browser.http.head("/", params={"code": code})).status_code == 200
        assert (await browser.open(code)).status_code == 303


async def test_a_page_that_is_signed_in_is_the_operator(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        kit.exchange.attach("com.example.echo", "echo", deliver=lambda agent, effect: agent.finish(effect.input))
        browser = await kit.signed_in()
        answer = await browser.ask("POST", "/v1/calls", {"tool_id": "com.example.echo/echo", "input": {"a": 1}})
        assert (answer.status_code, answer.json()["output"], answer.json()["caller"]) == (200, {"a": 1}, "operator")
        assert (await browser.ask("GET", "/v1/tokens")).status_code == 200
        session = (await browser.ask("GET", "/console/session")).json()
        assert session["last"] == kit.exchange.views.last_entry()


@pytest.mark.parametrize("path", ["/v1/status", "/console/session", "/v1/watch"])
async def test_a_cookie_without_the_pages_key_opens_nothing(tmp_path: Path, path: str) -> None:
    async with console(tmp_path) as kit:
        browser, other = await kit.signed_in(), await kit.signed_in()
        without = httpx.Request("GET", path)
        for headers in ({}, {KEY: ""}, {KEY: "1"}, {KEY: other.key}, {KEY: browser.key + "x"}):
            answer = await browser.http.get(without.url.path, headers=headers)
            assert answer.status_code == 401
        alone = kit.browser()
        alone.key = browser.key
        assert (await alone.ask("GET", path)).status_code == 401


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:9", "null", "https://127.0.0.1:{port}"])
async def test_a_page_of_another_origin_gets_nothing(tmp_path: Path, origin: str) -> None:
    async with console(tmp_path) as kit:
        browser = await kit.signed_in()
        theirs = origin.format(port=kit.port)
        for method, path in (
            ("GET", "/v1/status"),
            ("POST", "/v1/calls"),
            ("DELETE", "/console/session"),
            ("GET", "/"),
        ):
            answer = await browser.ask(method, path, origin=theirs)
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
        assert (await browser.ask("GET", "/v1/status", origin=kit.url)).status_code == 200


async def test_a_sign_in_that_was_ended_opens_nothing_any_more(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser, other = await kit.signed_in(), await kit.signed_in()
        kept = browser.cookie
        answer = await browser.ask("DELETE", "/console/session")
        assert answer.status_code == 204
        assert "max-age=0" in answer.headers["set-cookie"].lower()
        assert (await browser.ask("GET", "/v1/status", cookie=kept)).status_code == 401
        assert (await other.ask("GET", "/v1/status")).status_code == 200


async def test_only_the_operators_token_gets_a_code(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = await kit.signed_in()
        theirs = kit.exchange.token("http", "somebody")
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer tlk_wrong"}, 401),
            ({"authorization": f"Bearer {theirs}"}, 403),
        ):
            answer = await kit.browser().http.post("/console/code", headers=headers)
            assert answer.status_code == status, answer.text
        # Not even a page that is signed in: its address would outlive it.
        assert (await browser.ask("POST", "/console/code")).status_code == 403
        assert (await browser.http.get("/console/code")).status_code == 401
        good = await kit.browser().http.post("/console/code", headers={"authorization": f"Bearer {OPERATOR_TOKEN}"})
        assert good.status_code == 201


async def test_whoever_signs_in_gets_a_cookie_that_nobody_knew_before(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = kit.browser()
        browser.http.cookies.set(f"trunkline_{kit.port}", "chosen-by-another", domain="127.0.0.1", path="/")
        answer = await browser.open(await browser.new_code())
        assert "chosen-by-another" not in answer.headers["set-cookie"]
        planted = f"trunkline_{kit.port}=chosen-by-another; {browser.cookie}"
        assert (await browser.ask("GET", "/v1/status", cookie=planted)).status_code == 200
        chosen = f"trunkline_{kit.port}=chosen-by-another"
        assert (await browser.ask("GET", "/v1/status", cookie=chosen)).status_code == 401


async def test_sign_ins_survive_a_restart_and_codes_do_not(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = await kit.signed_in()
        spare = await browser.new_code()
        cookie, key = browser.cookie, browser.key
        kept = (tmp_path / "keys" / "console.json").read_text()
        assert cookie.partition("=")[2] not in kept
        assert key not in kept
    async with console(tmp_path) as kit:
        again = kit.browser()
        again.key = key
        # The port is another one here, and with it the cookie's name.
        moved = f"trunkline_{kit.port}={cookie.partition('=')[2]}"
        assert (await again.ask("GET", "/v1/status", cookie=moved)).status_code == 200
        assert (await again.open(spare)).status_code == 403


async def test_signatures_are_for_channels_of_the_console(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = await kit.signed_in()
        body = {"socket_id": "1.2", "channel_name": "private-feed"}
        assert (await browser.ask("POST", "/console/auth", body)).json()["auth"].startswith("console:")
        assert (await browser.ask("POST", "/console/auth", {**body, "channel_name": "feed"})).status_code == 404
        assert (await browser.ask("POST", "/console/auth", {**body, "more": 1})).status_code == 400
        assert (await kit.browser().ask("POST", "/console/auth", body)).status_code == 401
