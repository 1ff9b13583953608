"""An OSSA agent in Node.js that has nothing of ours, with its own cryptography and with the package ``jose``."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OKPKey

from tests.crash.ossa_agents import CONFIG, Speaker, address, speaking
from tests.npm import unpacked
from tests.running import running

pytestmark = pytest.mark.timeout(120)
AGENT = Path(__file__).with_name("ossa_agent.mjs")
JOSE = "jose@6.2.17"
SHA512 = "wOuK9V1yujQFH5S0ZWmLcDZN7+IKh9bUCC2ZPCf2HDlol3WWHy+PPyNjEI75FXRLMp3vDKQcupP59xhVU95hcg=="


def code_of_jose(node: str, folder: Path) -> str:
    return str(unpacked(node, JOSE, SHA512, folder) / "dist" / "webapi" / "index.js")


@pytest.mark.parametrize("library", ["node:crypto", "jose"])
async def test_signed_and_encrypted_messages_go_both_ways(short_path: Path, node: str, library: str) -> None:
    more = [] if library == "node:crypto" else [code_of_jose(node, short_path)]
    with running(short_path / "home", CONFIG) as exchange:
        url = exchange.ready["ossa"]
        host, _, port = url.partition("//")[2].partition(":")
        (short_path / "ca.pem").write_text(await asyncio.to_thread(ssl.get_server_certificate, (host, int(port))))
        py = Speaker(exchange, "py", address(exchange), "echo")
        other = Speaker(exchange, "nodey", address(exchange))
        (short_path / "keys.json").write_text(json.dumps(other.made))
        process = await asyncio.create_subprocess_exec(
            node, str(AGENT), url, str(short_path / "keys.json"), *more,
            env={"PATH": os.environ["PATH"], "NODE_EXTRA_CA_CERTS": str(short_path / "ca.pem")},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None

        async def told() -> Any:
            line = await asyncio.wait_for(process.stdout.readline(), 30)  # type: ignore[union-attr]
            found = json.loads(line)
            assert "error" not in found, found
            return found

        try:
            async with speaking(py):
                exchange.wait_tool("py/echo")
                py.seals = OKPKey.import_key(await keys(url))
                assert await told() == {"registered": ["double"]}
                for secret in (False, True):
                    expected = {"n": 1e21, "text": "é€😀", "secret": secret}
                    assert await told() == {"status": 200, "reply": expected, "sealed": secret}
                for secret in (False, True):
                    message = py.message("request", "nodey", "double", {"n": 21})
                    reply = await py.ask(py.sealed(message) if secret else message, wanted="response")
                    assert py.opened(reply) == {"n": 42, "é€😀": 0.1}
                    assert ("$encrypted" in reply["body"]["payload"]) is secret
                    assert await told() == {"request": {"n": 21}, "sealed": secret}
        finally:
            process.kill()
            await process.wait()


async def keys(url: str) -> dict[str, Any]:
    """The exchange's public key to encrypt to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = url.partition("//")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(b"GET /ossa/v1/keys HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")[2]
    writer.close()
    found: dict[str, Any] = next(key for key in json.loads(body)["keys"] if key["use"] == "enc")
    return found
