"""A proxy before ``/mcp`` for test programs that can neither send a token nor choose the names of tools.

It adds the token, and calls the tools of one agent by their own names. Everything else passes as it is, Host and Origin
of others included.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

AGENT = "com.example.conformance"
PREFIX = "com_example_conformance__"
PASSED_BACK = ("content-type", "mcp-session-id", "allow", "www-authenticate")


@contextmanager
def token_proxy(url: str, token: str) -> Iterator[str]:
    """The address of such a proxy before an exchange."""
    target = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            own = f"{self.server.server_address[0]}:{self.server.server_address[1]}"
            size = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(size).replace(b'"name":"test_', f'"name":"{PREFIX}test_'.encode())
            body = body.replace(b'"name":"json_schema_2020', f'"name":"{PREFIX}json_schema_2020'.encode())
            # However it ends: a client may leave in the middle of an answer.
            with contextlib.closing(
                http.client.HTTPConnection(target.hostname or "", target.port or 80, timeout=60)
            ) as connection:
                self.pass_on(connection, body, own)

        def pass_on(self, connection: http.client.HTTPConnection, body: bytes, own: str) -> None:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() == "host":
                    is_ours = value.lower().replace("localhost", "127.0.0.1") == own
                    connection.putheader(name, target.netloc if is_ours else value)
                elif name.lower() == "origin" and urlsplit(value).netloc.replace("localhost", "127.0.0.1") == own:
                    connection.putheader(name, f"http://{target.netloc}")
                elif name.lower() == "mcp-name" and value.strip().startswith(("test_", "json_schema_2020")):
                    # White space around it stays: whether it counts is what is tried.
                    connection.putheader(name, value.replace(value.strip(), f"{PREFIX}{value.strip()}"))
                elif name.lower() not in {"content-length", "authorization", "connection"}:
                    connection.putheader(name, value)
            connection.putheader("authorization", f"Bearer {token}")
            connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            self.close_connection = True
            self.send_response(answer.status)
            for name in PASSED_BACK:
                if found := answer.getheader(name):
                    self.send_header(name, found)
            self.send_header("connection", "close")
            self.end_headers()
            while data := answer.read1(65_536):
                self.wfile.write(data.replace(PREFIX.encode(), b""))
                self.wfile.flush()

        do_GET = do_POST = do_DELETE = handle_one  # noqa: N815  (names of http.server)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A test program that leaves in the middle is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
