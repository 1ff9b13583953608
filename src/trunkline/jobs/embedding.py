"""Texts as vectors: ``oa.embedding.v1``.

Two models. ``trunkline-hashing-v1`` is always there: words and groups of three letters, each hashed to a place in the
vector. It finds texts that share words and spellings, knows nothing of meaning, and gives the same numbers on every
machine. ``wordllama-l2-supercat-256`` comes with the extra ``jobs``: trained word vectors, averaged. Owns both, and
which of them are here. A model behind an endpoint is ``endpoint``'s.

Blocks while it works; call it in a process of its own. Libraries are imported when a model is used for the first time.

Invariant: one vector for each text, in their order; of length 1 if that is asked for.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from trunkline.errors import JobRefused

HASHING: Final = "trunkline-hashing-v1"
WORDLLAMA: Final = "wordllama-l2-supercat-256"
# Models whose vectors are the same to the last digit wherever they are made.
DETERMINISTIC: Final = frozenset({HASHING})

HASHING_DIMENSIONS: Final = 256
WORDLLAMA_DIMENSIONS: Final = 256
# What a 32-bit float holds, and no more: equal vectors should look equal.
DIGITS: Final = 9
_WORD: Final = re.compile(r"\w+")


def local_models() -> tuple[str, ...]:
    """The models that are here, the best first. Looks for the library; does not load it."""
    return (WORDLLAMA, HASHING) if importlib.util.find_spec("wordllama") is not None else (HASHING,)


def embed(texts: Sequence[str], model: str, *, dimensions: int | None = None, normalize: bool = True) -> dict[str, Any]:
    """The outputs of an embedding job; ``JobRefused`` names a field that cannot be used."""
    if model not in local_models():
        raise JobRefused(f"inputs.model: is not here; there are {', '.join(local_models())}")
    if model == HASHING:
        size = dimensions or HASHING_DIMENSIONS
        vectors = [_hashed(text, size) for text in texts]
    else:
        size = dimensions or WORDLLAMA_DIMENSIONS
        if size > WORDLLAMA_DIMENSIONS:
            raise JobRefused(f"inputs.dimensions: {WORDLLAMA} has {WORDLLAMA_DIMENSIONS} at most")
        vectors = [_averaged(text, size) for text in texts]
    made = [_normalized(vector, text) if normalize else vector for vector, text in zip(vectors, texts, strict=True)]
    return {"embeddings": made, "model": model, "dimensions": size}


def _hashed(text: str, size: int) -> list[float]:
    """Each feature adds to one place, with a sign; how often it is there counts by its square root."""
    words = _WORD.findall(text.casefold())
    features = Counter(f"w{word}" for word in words)
    for word in words:
        bounded = f" {word} "
        features.update(f"t{bounded[at : at + 3]}" for at in range(len(bounded) - 2))
    # Sums of square roots depend on their order; fsum does not.
    parts: dict[int, list[float]] = {}
    for feature, count in features.items():
        place, sign = _place(feature, size)
        # A group of letters says less than a word.
        weight = math.sqrt(count) * (1.0 if feature[0] == "w" else 0.25)
        parts.setdefault(place, []).append(sign * weight)
    return [round(math.fsum(parts[place]), DIGITS) if place in parts else 0.0 for place in range(size)]


def _place(feature: str, size: int) -> tuple[int, int]:
    digest = hashlib.blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    return (number >> 1) % size, 1 if number & 1 else -1


def _normalized(vector: list[float], text: str) -> list[float]:
    length = math.sqrt(math.fsum(number * number for number in vector))
    if not length:
        # A text without words has a place all the same: one of its own.
        place, sign = _place(f"e{text}", len(vector))
        return [float(sign) if at == place else 0.0 for at in range(len(vector))]
    return [round(number / length, DIGITS) for number in vector]


@functools.cache
def _wordllama() -> Any:
    import wordllama

    # The weights are part of the package; nothing is fetched.
    folder = importlib.util.find_spec("wordllama").submodule_search_locations[0]  # type: ignore[union-attr,index]
    return wordllama.WordLlama.load(disable_download=True, cache_dir=folder)


def _averaged(text: str, size: int) -> list[float]:
    # One text at a time: in a batch the others would change the last digits.
    vector = _wordllama().embed([text], norm=False)[0]
    numbers = [float(number) for number in vector[:size]]
    return [round(number, DIGITS) if math.isfinite(number) else 0.0 for number in numbers]
