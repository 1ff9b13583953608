"""The console against others on this machine: what they can read, guess, plant, or have a browser do."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest

from tests.attack.secrets import forms
from tests.attack.test_private_keys import files_with
from tests.console import FEED, KEY, Browser
from tests.running import EXAMPLES, Running, running

pytestmark = pytest.mark.timeout(120)
CONFIG = f"""
[[agent]]
id = "com.example.echo"
command = ["python", "{EXAMPLES}/echo.py"]
"""
CODE = re.compile(r"/\?code=([A-Za-z0-9_-]{43})")


def canary(name: str) -> str:
    return f"tlk_{name}-7a1e71c01d77aa93b25f0e71c01d77aa93b2"


def arguments(exchange: Running) -> str:
    assert exchange.process is not None
    whole = psutil.Process(exchange.process.pid)
    return json.dumps([process.cmdline() for process in (whole, *whole.children(recursive=True))])


async def test_codes_cookies_and_keys_are_in_no_file_and_no_process_list(short_path: Path) -> None:
    home = short_path / "home"
    with running(home, CONFIG) as exchange:
        printed = CODE.search(exchange.said())
        assert printed is not None
        exchange.wait_tool("com.example.echo/echo")
        browser = Browser(exchange.ready["http"], exchange.token)
        asked = await browser.new_code()
        assert (await browser.open(asked)).status_code == 303
        async with browser.line(FEED) as line:
            await line.send("client-feed.follow", {"after": 0}, FEED)
            await line.next("feed.batch")
            call = {"tool_id": "com.example.echo/echo", "input": {"text": "x"}}
            assert (await browser.ask("POST", "/v1/calls", call)).status_code == 200
            assert (await browser.ask("GET", "/v1/calls?search=x")).status_code == 200
        secrets = [printed[1], asked, browser.key, browser.cookie.partition("=")[2]]
        shown = arguments(exchange) + (home / "ready.json").read_text()
        assert [secret for secret in secrets if secret in shown] == []
        await browser.http.aclose()
        exchange.stop()
        # What was printed is the terminal of whoever started it, and not in the home.
        kept = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
        assert len(kept) > 5
        assert [path for path, data in kept.items() for secret in secrets if secret.encode() in data] == []


async def test_secrets_that_pass_through_each_field_are_in_no_file(short_path: Path) -> None:
    home = short_path / "home"
    with running(home) as exchange:
        browser = Browser(exchange.ready["http"], exchange.token)
        await browser.open(canary("code"))
        await browser.sign_in()
        for query in ("search", "tool", "caller"):
            await browser.ask("GET", f"/v1/calls?{query}={quote(canary(query))}")
        body = {"socket_id": canary("socket"), "channel_name": canary("channel")}
        await browser.ask("POST", "/console/auth", body)
        await browser.ask("GET", f"/console/page/{canary('path')}", **{KEY: canary("key")})
        await browser.ask("GET", "/v1/status", cookie=f"trunkline={canary('cookie')}")
        async with browser.line(FEED) as line:
            await line.send("client-feed.follow", {"call_id": canary("call"), "kinds": [canary("kind")]}, FEED)
            await line.send(canary("event"), canary("data"), canary("place"))
            await line.send("pusher:subscribe", {"channel": canary("channel"), "auth": canary("auth")})
            await line.send("pusher:ping")
            await line.next("pusher:pong")
        await browser.http.aclose()
        exchange.stop()
        names = ("code", "search", "tool", "caller", "socket", "channel", "path", "key", "cookie", "call", "kind")
        names += ("event", "data", "place", "auth")
        for name in names:
            assert files_with(exchange, forms(canary(name))) == [], name


async def test_who_guesses_codes_is_slowed_down_and_nobody_else(short_path: Path) -> None:
    with running(short_path / "home") as exchange:
        browser, guesser = (Browser(exchange.ready["http"], exchange.token) for _ in range(2))
        code = await browser.new_code()
        refused = [(await guesser.open("guess")).elapsed.total_seconds() for _ in range(5)]
        assert refused[-1] >= 2 * refused[0]
        assert refused[-1] >= 0.5
        answer = await browser.open(code)
        assert (answer.status_code, answer.elapsed.total_seconds() < 0.5) == (303, True)
        assert exchange.wait_entry("notice", code="auth.failed", place="console")
        for one in (browser, guesser):
            await one.http.aclose()


@pytest.mark.parametrize("edge", ["http", "opensentience"])
async def test_no_other_token_opens_the_console(short_path: Path, edge: str) -> None:
    with running(short_path / "home") as exchange:
        token = exchange.new_token("com.example.thief", edge, ("approve", "metrics"))
        assert exchange.request("POST", "/console/code", token=token)[0] == (403 if edge == "http" else 401)
        browser = Browser(exchange.ready["http"], exchange.token)
        await browser.sign_in()
        # A token beside a cookie is judged by itself.
        headers = {"authorization": f"Bearer {token}"}
        answer = await browser.ask("GET", "/v1/tokens", **headers)
        assert answer.status_code == (403 if edge == "http" else 401)
        await browser.http.aclose()


def test_a_form_of_another_page_changes_nothing(short_path: Path) -> None:
    """What a browser sends for a form of another page, with the cookie if that page is of this machine, too."""
    with running(short_path / "home") as exchange:
        code = exchange.request("POST", "/console/code")[1]["path"]
        address = exchange.ready["http"].removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", code)
        answer = connection.getresponse()
        answer.read()
        cookie = answer.headers["set-cookie"].partition(";")[0]
        for origin in ("null", "http://evil.example", "http://127.0.0.1:1", None):
            for method, path in (("POST", "/v1/reload"), ("POST", "/console/code"), ("DELETE", "/console/session")):
                headers = {"cookie": cookie, "content-type": "text/plain", **({"origin": origin} if origin else {})}
                connection.request(method, path, body="x=1", headers=headers)
                answer = connection.getresponse()
                assert answer.status == (403 if origin else 401), (origin, path)
                assert answer.headers.get("access-control-allow-origin") is None
                answer.read()
        connection.close()


async def test_who_signed_in_with_a_token_that_the_operator_replaced_is_not_signed_in_any_more(
    short_path: Path,
) -> None:
    home = short_path / "home"
    with running(home) as exchange:
        first = exchange.ready["http"]
        browser = Browser(first, exchange.token)
        await browser.sign_in()
        await browser.http.aclose()

        async def status() -> int:
            # The name of the cookie has the port, which is another one after each start.
            now = exchange.ready["http"]
            cookie = browser.cookie.replace(first.rpartition(":")[2], now.rpartition(":")[2], 1)
            async with httpx.AsyncClient(base_url=now, trust_env=False) as client:
                answer = await client.get("/v1/status", headers={KEY: browser.key, "cookie": cookie})
            return answer.status_code

        assert await status() == 200
        exchange.stop()
        exchange.start()
        assert await status() == 200
        exchange.stop()
        (home / "operator.token").unlink()
        exchange.start()
        assert await status() == 401
