"""How the keeper masks what agents print: by the ledger's own rules.

A module by itself because the keeper imports it: masking brings the keeper from 13 to 27 MB, anything more is too much.
"""

from __future__ import annotations

import functools

from trunkline.ledger.masking import MASKED_WHOLE, Masker


def mask_log(data: bytes) -> bytes:
    """Whole lines without what looks like a secret. The run's own token is masked before, exactly (``runlog``)."""
    mask = _masker().mask
    masked = mask(data)
    if masked == MASKED_WHOLE:
        # One line that cannot be judged costs that line; what goes over several is looked for in the others.
        masked = mask(b"\n".join(map(mask, data.split(b"\n"))))
    if b"\\" not in masked:
        return masked
    # A line may be JSON whose escapes hide something; several lines together are none.
    return b"\n".join(map(mask, masked.split(b"\n")))


@functools.cache
def _masker() -> Masker:
    return Masker()
