"""A buyer in Node.js with ``nostr-tools`` pays for jobs over NIP-47; what it is given proves itself, byte by byte."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.peers.test_nostr_node import bundle_of_nostr_tools, told_by
from tests.requirement import requirement
from tests.requirements.test_openagents_money import EMBEDDING, PRICED, SANDBOX, account, balances, printed, trunkline
from tests.running import running
from trunkline.jobs.tool_schemas import schema_id_of
from trunkline.money import bolt11

pytestmark = pytest.mark.timeout(180)
PAYER = Path(__file__).with_name("nostr_payer.mjs")
FUNDED = 100_000_000
# A job that needs a whole book: what the inner call gives is more than an entry holds, so the record has it as a blob.
AGENTS = {
    "library": """
from trunkline import Agent

agent = Agent("com.example.library", version="1.0.0")


@agent.tool(side_effects=False)
async def text(title: str) -> dict:
    \"\"\"A whole book.\"\"\"
    return {"text": "once more " * 10000 + "the end"}


agent.run()
""",
    "reader": """
from trunkline import Agent

agent = Agent("com.example.reader", version="1.0.0")


@agent.tool(side_effects=False)
async def count(title: str) -> dict:
    \"\"\"How many words a book has.\"\"\"
    book = await agent.call("com.example.library/text", {"title": title})
    return {"words": len(book["text"].split())}


agent.run()
""",
}
COUNT = "com.example.reader/count"
CONFIG = (
    PRICED.replace(f'"{EMBEDDING}"', f'"{COUNT}"')
    + "".join(
        f'[[agent]]\nid = "com.example.{name}"\ncommand = ["python", "{name}.py"]\nisolation = "none"\n'
        for name in AGENTS
    )
    + """
[[policy.rule]]
caller = "nostr:*"
tool = "com.example.library/text"
decision = "allow"
reason = "books are for everybody"
"""
)


async def bought(node: str, bundle: Path, connection: str, schema: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """What the foreign buyer got for a job."""
    file = bundle.parent / "job.json"
    file.write_text(json.dumps({"schema": schema, "inputs": inputs}))
    return await told_by(node, PAYER, bundle, connection, file)


@requirement("OA-066", "OA-068", "OA-080", "OA-081", "OA-082")
async def test_a_foreign_buyer_pays_what_succeeds_and_one_changed_byte_of_the_proof_is_named(
    short_path: Path, node: str
) -> None:
    bundle = bundle_of_nostr_tools(node, short_path)
    home = short_path / "home"
    home.mkdir(mode=0o700)
    for name, code in AGENTS.items():
        (home / f"{name}.py").write_text(code)
    with running(home, CONFIG) as exchange:
        for tool_id in ("com.example.library/text", COUNT):
            exchange.wait_tool(tool_id)
        connection = account(exchange, "foreigner", FUNDED)
        found = await bought(node, bundle, connection, schema_id_of(COUNT), {"title": "Emma"})
        assert {"pay_invoice", "get_balance"} <= set(found["info"].split())
        assert found["isInfoSigned"]
        assert found["isSigned"]
        invoice = bolt11.read(found["invoice"])
        assert (invoice.amount_msats, invoice.payment_hash) == (found["msats"], found["payment_hash"])
        assert found["spent"] == found["msats"]
        assert found["outputs"] == {"words": 20_002}
        assert found["receipt"]["payment_proof"]["value"] == found["preimage"]
        after = {"exchange": found["msats"], "foreigner": FUNDED - found["msats"]}
        assert balances(exchange) == after

        failed = await bought(node, bundle, connection, SANDBOX, {"commands": [{"cmd": "exit 3"}]})
        assert (failed["error"]["code"], failed["spent"]) == ("PAYMENT_FAILED", 0)
        assert failed["outputs"]["status"] == "failed"
        assert balances(exchange) == after
        assert printed(home, "receipts")["receipts"] == [found["receipt"]]
    name = found["receipt"]["receipt_id"]
    done = trunkline(home, "receipts", "verify", name)
    assert done.returncode == 0, done
    for link, change in (
        ("receipt", entry_with("money.receipt", found["receipt"]["job_hash"][-9:])),
        ("trajectory", entry_with("call.settled", '{"words":20002')),
        ("trajectory", blob_with("the end")),
        ("policy", entry_with("policy.changed", "may call")),
    ):
        changed = short_path / "changed"
        shutil.copytree(home, changed, ignore=shutil.ignore_patterns("*.sock", "run"))
        change(changed / "ledger.sqlite")
        done = trunkline(changed, "receipts", "verify", name)
        assert done.returncode == 1, (link, done)
        assert done.stderr.startswith(f"{link}: "), (link, done)
        shutil.rmtree(changed)


def entry_with(kind: str, text: str) -> Callable[[Path], None]:
    """Changes one byte of the first entry of a kind with this text in it."""
    return lambda ledger: _change(ledger, "entries", "n", kind.encode(), text.encode())


def blob_with(text: str) -> Callable[[Path], None]:
    """Changes one byte of the blob with this text in it."""
    return lambda ledger: _change(ledger, "blobs", "sha256", b"", text.encode())


def _change(ledger: Path, table: str, key: str, kind: bytes, text: bytes) -> None:
    connection = apsw.Connection(str(ledger))
    try:
        for name, data in connection.execute(f"SELECT {key}, data FROM {table} ORDER BY {key}"):  # noqa: S608  (ours)
            assert isinstance(data, bytes)
            at = data.find(text)
            if kind in data and at >= 0:
                last = at + len(text) - 1
                changed = data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :]
                connection.execute(f"UPDATE {table} SET data = ? WHERE {key} = ?", (changed, name))  # noqa: S608
                return
    finally:
        connection.close()
    raise AssertionError(f"{table} has no {text!r}")
