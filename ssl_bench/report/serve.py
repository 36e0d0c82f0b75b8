"""A report on a port of this machine, which reads the files of the runs again while it is looked at."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote_to_bytes, urlsplit

from ssl_bench import files
from ssl_bench.report import page, pictures
from ssl_bench.report.collect import Collector

LOCAL = "127.0.0.1"
PAUSE = 2.0  # seconds for which the files are not read again


class ReportServer(ThreadingHTTPServer):
    """Serves the page at ``/``, its data at ``/data`` and the pictures of the runs below ``/picture/``.

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

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{self.server_address[0]!s}:{self.server_port}/"

    def data(self) -> tuple[bytes, str]:
        """The data as compressed JSON, not older than PAUSE, and its version."""
        with self._lock:
            if time.monotonic() - self._read > PAUSE or not self._data:
                self._data = page.packed(self._collector.collect() | {"made": 0})
                self._read = time.monotonic()
            return self._data, hashlib.sha256(self._data).hexdigest()[:16]

    def html(self) -> bytes:
        """The page with the present data."""
        with self._lock:
            return page.render(self._collector.collect(), live=True).encode()

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
        path = urlsplit(self.path).path
        if path == "/":
            self._answer(HTTPStatus.OK, self.server.html(), "text/html; charset=utf-8")
        elif path == "/data":
            data, version = self.server.data()
            same = self.headers.get("If-None-Match") == f'"{version}"'
            self._answer(HTTPStatus.NOT_MODIFIED if same else HTTPStatus.OK, b"" if same else data, version=version)
        elif path.startswith("/picture/"):
            content = self.server.picture(unquote_to_bytes(path.removeprefix("/picture/")))
            self._answer(HTTPStatus.OK if content else HTTPStatus.NOT_FOUND, content or b"", "image/png")
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET

    def _answer(
        self, status: HTTPStatus, content: bytes = b"", kind: str = "application/gzip", version: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-cache")
        if version:
            self.send_header("ETag", f'"{version}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""
