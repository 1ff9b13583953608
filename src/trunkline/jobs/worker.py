"""A process that does heavy work for jobs: embeddings, reranking, analysis of code.

``python -m trunkline.jobs.worker PARENT``. It is a process of its own so that parsers and models, which read what
strangers wrote, are outside the exchange, cost it no time, and can be ended at any moment. Owns its frames (four bytes
of length, then JSON, in both directions) and its own bounds. Does not own how many there are.

Invariant: one answer for each question, in order; it ends when its standard input does, or with the exchange.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping
from typing import IO, Any, Final

import msgspec

from trunkline.errors import JobFailed, JobRefused
from trunkline.jobs.consistency import seal
from trunkline.jobs.schemas import ANALYSIS, EMBEDDING, RERANK

LENGTH: Final = struct.Struct(">I")
# A model, a parser and the largest input that is taken have 0.5 GiB.
MEMORY_BYTES: Final = 2_147_483_648
PR_SET_PDEATHSIG: Final = 1


def work(schema_id: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a job whose inputs are valid and have their defaults."""
    match schema_id:
        case "oa.embedding.v1":
            from trunkline.jobs.embedding import embed

            return embed(
                inputs["texts"],
                inputs["model"],
                dimensions=inputs.get("dimensions"),
                normalize=inputs["normalize"],
            )
        case "oa.retrieval_rerank.v1":
            from trunkline.jobs.rerank import rerank

            return rerank(inputs)
        case "oa.code_chunk_analysis.v1":
            from trunkline.jobs.chunks import analyse

            return analyse(inputs)
        case _:
            raise JobRefused(f"schema_id: expected {EMBEDDING}, {RERANK} or {ANALYSIS}")


def answer(question: bytes) -> bytes:
    """What is said to a question: ``{"sealed": …}``, or ``{"refused": …}`` or ``{"failed": …}`` with the reason."""
    asked = msgspec.json.decode(question, type=dict[str, Any])
    schema_id, inputs = asked["schema_id"], asked["inputs"]
    try:
        said: dict[str, Any] = {"sealed": seal(schema_id, inputs, work(schema_id, inputs))}
    except JobRefused as error:
        said = {"refused": str(error)}
    except JobFailed as error:
        said = {"failed": str(error)}
    except MemoryError:
        said = {"failed": "it needs more memory than a job may use"}
    return msgspec.json.encode(said)


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until there is no question any more."""
    while len(head := questions.read(LENGTH.size)) == LENGTH.size:
        (size,) = LENGTH.unpack(head)
        question = questions.read(size)
        if len(question) < size:
            return
        said = answer(question)
        answers.write(LENGTH.pack(len(said)) + said)
        answers.flush()


def main() -> None:
    """Give rights away, and serve."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        return  # the exchange went away before we could ask to go with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    os.nice(10)
    # Libraries set up logging of their own; what they say is about what strangers wrote.
    logging.disable(logging.CRITICAL)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
