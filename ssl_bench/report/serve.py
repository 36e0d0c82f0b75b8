"""A report on a port of this machine, which reads the files of the runs again while it is looked at.

Other users of the machine reach the port too, so the address holds a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote_to_bytes

from ssl_bench import files
from ssl_bench.report import html, pictures
from ssl_bench.report.collect import Collector

LOCAL = "127.0.0.1"
PAUSE = 2.0  # seconds for which the files are not read again


class ReportServer(ThreadingHTTPServer):
    """Serves the page at ``/SECRET/``, its data at ``data`` and the pictures of the runs below ``picture/`` from there.

    It answers GET and HEAD. Every other path is unknown, so that no other file can be read.

    Args:
        collector: of the data.
        address: to listen on.
        port: 0 is any free one.
    """

    daemon_threads = True

    def __init__(self, collector: Collector, address: str = LOCAL, port: int = 0) -> None:
        super().__init__((address, port), _Handler)
        self._collector, self._lock = collector, threading.Lock()
        self._read, self._data = 0.0, b""
        self._root = os.path.realpath(collector.outputs)
        self.local = address in (LOCAL, "localhost")
        self.secret, self._once = secrets.token_urlsafe(), secrets.token_urlsafe()

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{self.server_address[0]!s}:{self.server_port}/{self.secret}/"

    @property
    def url_to_open(self) -> str:
        """An address that leads to the page once: other users can read the command line of a browser."""
        return self.url.replace(self.secret, self._once)

    def opens(self, word: str) -> bool:
        """Whether a request has the word of :attr:`url_to_open`, as the first one."""
        with self._lock:
            first = bool(self._once) and hmac.compare_digest(word.encode(), self._once.encode())
            self._once = "" if first else self._once
        return first

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a reader that has left."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def data(self) -> tuple[bytes, str]:
        """The data as compressed JSON, not older than PAUSE, and its version."""
        with self._lock:
            if time.monotonic() - self._read > PAUSE or not self._data:
                self._data = html.packed(self._collector.collect() | {"made": 0})
                self._read = time.monotonic()
            return self._data, hashlib.sha256(self._data).hexdigest()[:16]

    def html(self) -> bytes:
        """The page with the present data."""
        with self._lock:
            return html.render(self._collector.collect(), live=True).encode()

    def picture(self, path: bytes) -> bytes | None:
        """A picture of a run.

        Args:
            path: the run's directory below the results folder, and the file's name.

        Returns:
            None unless the file is a picture in the ``figures`` of a directory that really lies in the results folder:
            neither ``..`` nor a link leads out of it.
        """
        run, _, name = os.fsdecode(path).rpartition("/")
        if not name.endswith(".png") or "\0" in run + name:
            return None
        wanted = os.path.join(self._root, run, pictures.FOLDER, name)
        if os.path.realpath(wanted) != wanted or not wanted.startswith(self._root.rstrip("/") + "/"):
            return None
        try:
            return files.read_bytes(wanted)
        except OSError:
            return None


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        if self.server.local and self.headers.get("Host", "").rpartition(":")[0] not in (LOCAL, "localhost"):
            self._answer(HTTPStatus.FORBIDDEN)  # another site's name that leads here: it must not read the report
            return
        secret, _, path = self.path.partition("?")[0].removeprefix("/").partition("/")
        if self.server.opens(secret):
            self._answer(HTTPStatus.FOUND, Location=self.server.url)
        elif not hmac.compare_digest(secret.encode(), self.server.secret.encode()):
            self._answer(HTTPStatus.NOT_FOUND)
        elif path == "":
            self._answer(HTTPStatus.OK, self.server.html(), "text/html; charset=utf-8")
        elif path == "data":
            data, version = self.server.data()
            same = self.headers.get("If-None-Match") == f'"{version}"'
            self._answer(HTTPStatus.NOT_MODIFIED if same else HTTPStatus.OK, b"" if same else data, ETag=f'"{version}"')
        elif path.startswith("picture/"):
            content = self.server.picture(unquote_to_bytes(path.removeprefix("picture/")))
            self._answer(HTTPStatus.OK if content else HTTPStatus.NOT_FOUND, content or b"", "image/png")
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, content: bytes = b"", kind: str = "application/gzip", **headers: str) -> None:
        self.send_response(status)
        known = {"Content-Type": kind, "Content-Length": str(len(content)), "X-Content-Type-Options": "nosniff"}
        for name, value in (known | {"Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""
