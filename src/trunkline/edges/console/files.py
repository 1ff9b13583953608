"""The files of the page, and the headers that every answer of the console has.

Owns which files there are (all of ``page/``, looked up by name, so that no path leads out of it), their types, and the
policy by which a browser keeps whatever an agent said from becoming markup or a request. Does not own what is in them.

Invariant: nothing is served that is not a file of ``page/`` at the start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

FOLDER: Final = Path(__file__).parent / "page"
INDEX: Final = "index.html"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}


class PageFile(Struct, frozen=True):
    """One of them."""

    data: bytes
    media_type: str
    etag: str


def page_files(folder: Path = FOLDER) -> Mapping[str, PageFile]:
    """All files of the page, by their path in it."""
    found: dict[str, PageFile] = {}
    for path in sorted(folder.rglob("*")):
        media_type = TYPES.get(path.suffix)
        if media_type is not None and path.is_file():
            data = path.read_bytes()
            etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            found[path.relative_to(folder).as_posix()] = PageFile(data, media_type, etag)
    return found


def headers(host: str) -> dict[str, str]:
    """What a browser is told with every answer; ``host`` is the Host header, which was judged to name us."""
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
        # Some browsers do not count the WebSocket of an origin as part of it.
        f"connect-src 'self' ws://{host}; manifest-src 'self'; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return {
        "content-security-policy": policy,
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    }
