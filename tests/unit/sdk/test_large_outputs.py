from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest

from trunkline import ToolFailed
from trunkline.sdk.large_outputs import READ_OUTPUT, Reference, reference_in, whole_output

BODY = json.dumps({"text": "abc"}).encode()
REF = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"$ref": REF, "bytes": 3},
        {"$ref": REF, "bytes": 3, "head": "", "more": 1},
        {"$ref": "sha256:xyz", "bytes": 3, "head": ""},
        {"$ref": REF, "bytes": "3", "head": ""},
        {"$ref": REF, "bytes": -3, "head": ""},
    ],
)
def test_an_output_that_is_not_exactly_a_reference_is_an_output(output: dict[str, Any]) -> None:
    assert reference_in(output) is None


async def read(pieces: dict[int, tuple[str, object]], reference: Reference) -> dict[str, Any]:
    async def call(tool_id: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        assert (tool_id, asked["ref"]) == (READ_OUTPUT, reference.ref)
        text, following = pieces[asked["offset"]]
        return {"text": text, "next": following}

    return await whole_output("com.a/x", reference, call)


async def test_pieces_are_put_together_in_their_order() -> None:
    found = reference_in({"$ref": REF, "bytes": len(BODY), "head": "{"})
    assert found is not None
    text = BODY.decode()
    assert await read({0: (text[:4], 4), 4: (text[4:], None)}, found) == {"text": "abc"}


@pytest.mark.parametrize(
    "pieces",
    [
        {0: ("{}", None)},
        {0: (BODY.decode()[:4], 0)},
        {0: (BODY.decode()[:4], "4")},
        {0: (BODY.decode()[:4], 10**9)},
        {0: (BODY.decode().replace("b", "B"), None)},
    ],
)
async def test_what_is_not_whole_is_a_failure_and_no_endless_reading(pieces: dict[int, tuple[str, object]]) -> None:
    with pytest.raises(ToolFailed, match=r"tool\.invalid_output"):
        await read(pieces, Reference(REF, len(BODY)))
