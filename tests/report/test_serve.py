"""The report on a port: it answers this machine only, and gives no file away."""

import gzip
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from ssl_bench.report.collect import Collector
from ssl_bench.report.serve import ReportServer
from tests.report import runs
from tests.results.folders import OUTPUTS


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReportServer]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "papers").mkdir()
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path / "papers"))
    runs.grid()
    with ReportServer(Collector(OUTPUTS)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


Answer = tuple[int, bytes, http.client.HTTPMessage]


def get(server: ReportServer, path: str, method: str = "GET", **headers: str) -> Answer:
    """Ask for a path after the secret of the address."""
    return get_any(server, f"/{server.secret}{path}", method, **headers)


def get_any(server: ReportServer, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, answer.headers


def test_the_page_and_its_data_and_only_news(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/{server.secret}/"
    status, html, _ = get(server, "/")
    assert status == 200 and b'data-live="yes"' in html
    status, content, headers = get(server, "/data")
    assert status == 200 and len(json.loads(gzip.decompress(content))["runs"]) == 24
    assert get(server, "/data", **{"If-None-Match": headers["ETag"]})[:2] == (304, b"")
    (picture,) = json.loads(gzip.decompress(content))["runs"][0]["pictures"]
    assert picture == {"name": "npc.png", "src": "picture/grid/0000000000/npc.png"}
    status, content, headers = get(server, f"/{picture['src']}")
    assert (status, content, headers["Content-Type"]) == (200, runs.PNG, "image/png")
    assert get(server, "/", "HEAD")[:2] == (200, b"")
    assert get(server, "/", "POST")[0] == 501


OUTSIDE = [
    "/outputs/grid/0000000000/config.yaml",
    "/picture/grid/0000000000/../config.yaml",
    "/picture/../secret/npc.png",
    "/picture/..%2fsecret/npc.png",
    "/picture/grid/../../secret/npc.png",
    "/picture/grid/0000000000/../../../secret/figures/npc.png",
    "/picture/grid/linked/npc.png",
    "/picture/grid/0000000001/file.png",
    "/picture/grid/0000000002/npc.png",
    "/picture/grid/0000000000/npc.png%00.png",
    "/picture/",
    "//etc/passwd",
    "/%",
]


def test_no_other_file_can_be_read(server: ReportServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret" / "figures"
    secret.mkdir(parents=True)
    (secret / "npc.png").write_bytes(b"secret")
    grid = tmp_path / "outputs" / "grid"
    (grid / "linked").symlink_to(tmp_path / "secret")
    (grid / "0000000001" / "figures").mkdir()
    (grid / "0000000001" / "figures" / "file.png").symlink_to(secret / "npc.png")
    (grid / "0000000002" / "figures").symlink_to(secret)
    assert {path: get(server, path)[:2] for path in OUTSIDE} == dict.fromkeys(OUTSIDE, (404, b""))


def test_a_name_of_another_site_that_leads_here_is_refused(server: ReportServer) -> None:
    assert get(server, "/data", Host=f"evil.example:{server.server_port}")[:2] == (403, b"")
    assert get(server, "/data", Host=f"localhost:{server.server_port}")[0] == 200


def test_other_users_of_the_machine_cannot_read_it(server: ReportServer) -> None:
    picture = "picture/grid/0000000000/npc.png"
    wrong = ["", "x", server.secret[:-1], f"{server.secret}x", server.secret.lower(), "%00", "\xfc"]
    paths = [f"/{word}/{path}" for word in wrong for path in ("", "data", picture)]
    paths += ["/", "/data", f"/{picture}", "*", "?", "%"]
    assert {path: get_any(server, quote(path, "/%[]:*?"))[:2] for path in paths} == dict.fromkeys(paths, (404, b""))
    assert len(server.secret) >= 43 and get(server, f"/{picture}")[0] == get(server, "/data?x=/")[0] == 200


def test_the_address_that_a_browser_is_given_leads_to_the_page_once(server: ReportServer) -> None:
    address, path = server.url_to_open, server.url_to_open.partition(str(server.server_port))[2]
    assert server.secret not in address
    status, content, headers = get_any(server, path)
    assert (status, content, headers["Location"]) == (302, b"", server.url)
    assert get_any(server, path)[:2] == get_any(server, "//")[:2] == (404, b"")


def test_a_reader_that_leaves_and_a_damaged_request_print_nothing(
    server: ReportServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for path, answer in ((f"/{server.secret}/", b"HTTP/1.1 200"), ("http://[/data", b"HTTP/1.1 404")):
        with socket.create_connection(("127.0.0.1", server.server_port)) as reader:
            reader.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost:1\r\n\r\n".encode())
            assert reader.recv(12) == answer  # the page has megabytes, which the reader does not wait for
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    deadline = time.monotonic() + 20
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert capfd.readouterr() == ("", "")
