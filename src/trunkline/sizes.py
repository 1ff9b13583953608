"""Numbers of bytes as people read them: ``64.0 MiB``."""

from __future__ import annotations


def shown_size(count: int) -> str:
    """``512 bytes``, ``64.0 MiB``, ``1.5 TiB``."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
