"""What must hold of Chiffon's work after a simulation: what orchestrators were told against the record.

As in ``promises`` nothing is taken from the exchange's memory. What a worker was given, and that a worker's effect took
place once, is judged where all calls are (``witness``, ``promises``).
"""

from __future__ import annotations

from collections.abc import Iterator

from trunkline.edges.chiffon.messages import WorkResult
from trunkline.entries import CallAccepted
from trunkline.model import Status
from trunkline.testing.promises import Breach, Record
from trunkline.testing.witness import Witness, Work


def breaches(witness: Witness, record: Record) -> Iterator[Breach]:
    """Everything that was not kept."""
    by_key: dict[tuple[str, str], list[CallAccepted]] = {}
    for accepted in record.accepted.values():
        if accepted.key is not None:
            by_key.setdefault((accepted.caller, accepted.key), []).append(accepted)
    for work in witness.works:
        calls = by_key.get((work.caller, work.request_id), [])
        ids = tuple(call.call_id for call in calls)
        yield from (Breach(text, ids) for text in _problems(work, calls, record))


def _problems(work: Work, calls: list[CallAccepted], record: Record) -> Iterator[str]:
    if work.is_waiting:
        yield f"{work.caller} still waits for {work.request_id}"
    if len(calls) > 1:
        yield f"{work.request_id} of {work.caller} became {len(calls)} calls"
    if len({_told(result) for result in work.results}) > 1:
        yield f"{work.caller} was told different results of {work.request_id}"
    if len(work.results) > work.asked:
        yield f"{work.caller} asked {work.asked} times for {work.request_id} and was told {len(work.results)} results"
    for code in work.refused_after:
        yield f"{work.caller} was told a result of {work.request_id}, and then {code}"
    if not work.results:
        return
    if not calls:
        yield f"{work.caller} was told a result of {work.request_id}, and the call is not on record"
        return
    settled = record.outcome(calls[0])
    if settled is None or (settled.status is Status.SUCCEEDED) is not (work.results[0].status == "success"):
        said = "nothing" if settled is None else settled.status.value
        yield f"{work.caller} was told {work.results[0].status} of {work.request_id}, and the record says {said}"


def _told(result: WorkResult) -> tuple[str, int, str]:
    return result.status, result.exit_code, result.output
