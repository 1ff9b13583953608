"""What the operator chose for this protocol, as a conversation needs it."""

from __future__ import annotations

from msgspec import Struct


class Settings(Struct, frozen=True):
    """What the operator chose, and who this exchange is."""

    core_version: str
    instance_id: str
    heartbeat_interval_ms: int = 10_000
    max_frame_bytes: int = 4_194_304
    max_inflight: int = 256
    # Of a call whose caller and tool say nothing (decision 4).
    timeout_s: float = 30.0
    max_tool_input_bytes: int = 1_048_576
    max_tool_output_bytes: int = 67_108_864
    strict_types: bool = False
    debug_errors: bool = False
