"""One span of OpenTelemetry for each call, told to a collector by OTLP (``[otel] endpoint``).

Owns what a span says, and telling it. Spans are made of the lines that everybody who watches sees, masked as those
are: names, times and outcomes, never an input or an output. Does not own which trace a call belongs to (``traces``).

Invariant: nobody waits for a collector. What it does not take in time is dropped and counted, and a stop waits for it
two seconds at most. Without an endpoint none of this exists.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

import trunkline
from trunkline import traces
from trunkline.edges import client

log = logging.getLogger("trunkline")

# Calls whose end is awaited; the limits of callers keep them far below.
MAX_OPEN: Final = 100_000
# Spans that wait to be told, and that are told at once.
MAX_WAITING: Final = 4096
BATCH: Final = 512
# How long a span may wait for others to be told with.
GATHER_S: Final = 1.0
TELL_S: Final = 10.0
LAST_WORDS_S: Final = 2.0

_SERVER: Final = 2
_ERROR: Final = 2
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_KINDS: Final = (b'"kind":"call.',)

Span = dict[str, Any]


class Spans:
    """The calls of one exchange as spans. ``tell`` gets each when its call has ended, or was refused."""

    def __init__(self, tell: Callable[[Span], None]) -> None:
        self._tell = tell
        # By the number of its entry, what is known of a call that has no outcome yet.
        self._open: dict[int, Span] = {}

    def watch(self, line: bytes) -> None:
        """Something happened."""
        if not any(kind in line for kind in _KINDS):
            return
        entry = _decode(line)
        match entry.get("kind"):
            case "call.accepted":
                self._accepted(entry)
            case "call.sent":
                self._sent(entry)
            case "call.settled":
                self._settled(entry)
            case "call.refused":
                self._refused(entry)

    def _accepted(self, entry: dict[str, Any]) -> None:
        span = _begun(entry)
        above = self._open.get(entry.get("cause") or 0)
        if above is not None:
            span["traceId"], span["parentSpanId"] = above["traceId"], above["spanId"]
        span["attributes"] += _attributes(
            {
                "trunkline.decision": entry["decision"],
                "trunkline.rule": entry["rule"],
                "trunkline.depth": entry.get("depth", 1),
            }
        )
        if len(self._open) >= MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        self._open[entry["n"]] = span

    def _sent(self, entry: dict[str, Any]) -> None:
        span = self._open.get(entry["call"])
        if span is not None:
            named = {"trunkline.attempt": entry["attempt"], "trunkline.provider": entry.get("provider")}
            span["events"].append({"name": "sent", "timeUnixNano": _ns(entry), "attributes": _attributes(named)})

    def _settled(self, entry: dict[str, Any]) -> None:
        span = self._open.pop(entry["call"], None)
        if span is None:
            return  # taken on before this start
        fault = entry.get("fault") or {}
        named = {
            "trunkline.status": entry["status"],
            "trunkline.fault": fault.get("code"),
            "trunkline.provider": entry.get("provider"),
        }
        self._ended(span, entry, named, is_error=entry["status"] != "succeeded")

    def _refused(self, entry: dict[str, Any]) -> None:
        named = {"trunkline.status": "refused", "trunkline.fault": entry["code"], "trunkline.rule": entry.get("rule")}
        self._ended(_begun(entry), entry, named, is_error=True)

    def _ended(self, span: Span, entry: dict[str, Any], named: dict[str, object], *, is_error: bool) -> None:
        span["attributes"] += _attributes(named)
        span["endTimeUnixNano"] = _ns(entry)
        if is_error:
            span["status"] = {"code": _ERROR, "message": str(named["trunkline.fault"] or named["trunkline.status"])}
        self._tell(span)


def _begun(entry: dict[str, Any]) -> Span:
    trace = traces.trace_of(entry.get("correlation_id") or entry["call_id"])
    span: Span = {
        "traceId": trace.trace_id,
        "spanId": traces.span_of(entry["call_id"]),
        "name": entry["tool_id"],
        "kind": _SERVER,
        "startTimeUnixNano": _ns(entry),
        "attributes": _attributes(
            {
                "trunkline.call_id": entry["call_id"],
                "trunkline.caller": entry["caller"],
                "trunkline.correlation_id": entry.get("correlation_id"),
            }
        ),
        "events": [],
    }
    return {**span, "parentSpanId": trace.parent} if trace.parent else span


def _ns(entry: dict[str, Any]) -> str:
    return str(int(entry["at"]) * 1_000_000)


def _attributes(named: dict[str, object]) -> list[dict[str, Any]]:
    """Those that have a value, in OTLP's form."""
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}}
        for key, value in named.items()
        if value not in {None, ""}
    ]


def export_request(spans: list[Span], service: str) -> bytes:
    """What a collector is told: ``ExportTraceServiceRequest`` of OTLP 1, as JSON."""
    scope = {"name": "trunkline", "version": trunkline.__version__}
    resource = {"attributes": _attributes({"service.name": service})}
    told = [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]
    return msgspec.json.encode({"resourceSpans": told})


class Exporter:
    """Tells a collector of spans, from a thread of its own."""

    def __init__(self, endpoint: str, service: str) -> None:
        self._url = endpoint
        self._service = service
        self._waiting: queue.Queue[Span | None] = queue.Queue(MAX_WAITING)
        place = client.endpoint_of(endpoint)
        self._where = f"the collector at {place.host}:{place.port}"
        self._problem = ""
        self.dropped = 0
        # A daemon: a collector that does not answer holds no stop.
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        """A span to tell, soon."""
        try:
            self._waiting.put_nowait(span)
        except queue.Full:
            self._drop(1, f"{self._where} takes them more slowly than they come")

    def warnings(self) -> list[str]:
        """Why spans are dropped, as long as they are."""
        return [f"[otel] spans are dropped, {self.dropped:,} so far: {self._problem}"] if self._problem else []

    def stop(self) -> None:
        """Tell what waits, if that can be done in a moment."""
        try:
            self._waiting.put(None, timeout=LAST_WORDS_S)
        except queue.Full:
            return
        self._thread.join(LAST_WORDS_S)

    def _work(self) -> None:
        is_over = False
        while not is_over:
            batch = [self._waiting.get()]
            try:
                while len(batch) < BATCH and batch[-1] is not None:
                    batch.append(self._waiting.get(timeout=GATHER_S))
            except queue.Empty:
                pass
            is_over = batch[-1] is None
            spans = [span for span in batch if span is not None]
            if spans:
                self._export(spans)

    def _export(self, spans: list[Span]) -> None:
        body = export_request(spans, self._service)
        try:
            tls = ssl.create_default_context()
            answer = asyncio.run(client.request(self._url, "POST", body=body, timeout_s=TELL_S, tls=tls))
        except OSError as error:
            self._drop(len(spans), str(error))
        else:
            if answer.status >= 300:
                self._drop(len(spans), f"{self._where} answered {answer.status}")
            else:
                self._problem = ""

    def _drop(self, count: int, problem: str) -> None:
        if problem != self._problem:
            log.warning("[otel] spans are dropped: %s", problem)
        self._problem = problem
        self.dropped += count
