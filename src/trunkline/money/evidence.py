"""What a proof is judged by, as text: a JSON object in a rail's own form, from whoever made the receipt.

Owns reading it: bounded, strict, and refused in words. Does not own what is in it; each rail has a type of its own.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from trunkline import strictjson
from trunkline.money.refusals import ProofRefused, malformed

Form = TypeVar("Form", bound=Struct)


def read_evidence(text: str, form: type[Form], max_bytes: int) -> Form:
    """The evidence that this text is; ``ProofRefused`` if it is none."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > max_bytes:
        raise ProofRefused("too_large")
    try:
        strictjson.check(data)
        return msgspec.json.decode(data, type=form)
    except (strictjson.NotStrictJson, msgspec.MsgspecError):
        raise malformed("evidence that is not in its form") from None
