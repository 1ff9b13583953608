"""The candidates that serve a task best, in order: ``oa.retrieval_rerank.v1``, offline.

Two judgements, half each: BM25 over words (how rare the words are that task and candidate share) and the cosine of
embeddings (how near they are as a whole). Identifiers are split as people read them: ``parseHTTPDate`` has three words.
A model behind an endpoint is ``endpoint``'s.

Blocks while it works; call it in a process of its own. Needs the extra ``jobs``.

Invariant: ids are those of candidates, none twice, the scores do not rise from one rank to the next, and the same
inputs give the same outputs: candidates that are equally good keep their order.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trunkline.jobs import embedding
from trunkline.jobs.verification import cosine

# Of a reason: the shared words that are shown.
SHOWN_WORDS: Final = 5
_DIGITS: Final = 6
_PART: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_a-zA-Z]+")
# Words that every task has.
_COMMON: Final = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "have", "how", "i", "in", "is", "it", "its",
     "my", "not", "of", "on", "or", "that", "the", "this", "to", "was", "what", "when", "where", "which", "who", "why",
     "will", "with", "you"}
)  # fmt: skip


def model() -> str:
    """What ranks here, for provenance and announcements."""
    return f"bm25+{embedding.local_models()[0]}"


def is_here() -> bool:
    """Whether the library is installed. It is not loaded."""
    return importlib.util.find_spec("bm25s") is not None


def words_of(text: str) -> list[str]:
    """The words of a text, identifiers taken apart, in lower case."""
    return [word for word in (part.lower() for part in _PART.findall(text)) if word not in _COMMON]


def rerank(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a rerank job; the inputs are valid and have their defaults."""
    candidates: Sequence[Mapping[str, Any]] = inputs["candidates"]
    query = " ".join(filter(None, (inputs["user_task"], inputs.get("ranking_rubric"))))
    texts = [f"{candidate.get('path') or ''}\n{candidate['content']}" for candidate in candidates]
    by_words = _word_scores(query, texts)
    by_meaning = _meaning_scores(query, texts)
    scores = [round((one + other) / 2, _DIGITS) for one, other in zip(by_words, by_meaning, strict=True)]
    order = sorted(range(len(candidates)), key=lambda index: (-scores[index], index))
    wanted = set(words_of(query))
    return {
        "topk": [
            {
                "rank": rank,
                "id": candidates[index]["id"],
                "score": scores[index],
                "why": _reason(wanted, texts[index]),
            }
            for rank, index in enumerate(order[: inputs["k"]], start=1)
        ]
    }


def _word_scores(query: str, texts: Sequence[str]) -> list[float]:
    """BM25, the best candidate having 1."""
    import bm25s

    wanted = words_of(query)
    documents = [words_of(text) for text in texts]
    if not wanted or not any(documents):
        return [0.0] * len(texts)
    index = bm25s.BM25()
    index.index(documents, show_progress=False)
    known = {word for document in documents for word in document}
    shared = [word for word in wanted if word in known]
    if not shared:
        return [0.0] * len(texts)
    scores = [max(0.0, float(score)) for score in index.get_scores(shared)]
    best = max(scores)
    return [score / best for score in scores] if best else [0.0] * len(texts)


def _meaning_scores(query: str, texts: Sequence[str]) -> list[float]:
    """Cosines of embeddings, from 0 to 1."""
    first, *others = embedding.embed([query, *texts], embedding.local_models()[0])["embeddings"]
    return [min(1.0, max(0.0, cosine(first, other))) for other in others]


def _reason(wanted: set[str], text: str) -> str:
    found = sorted(wanted.intersection(words_of(text)))
    if not found:
        return "shares no word with the task"
    more = f" and {len(found) - SHOWN_WORDS} more" if len(found) > SHOWN_WORDS else ""
    return f"shares {', '.join(found[:SHOWN_WORDS])}{more}"
