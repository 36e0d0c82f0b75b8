"""The file of a report: hostile texts end no element of it."""

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ssl_bench.report import html
from ssl_bench.report.collect import collect
from tests.report import runs
from tests.results.folders import OUTPUTS


def content(text: str, name: str) -> Any:
    """The data of an element of a page."""
    (packed,) = re.findall(rf'<script type="text/plain" id="{name}">([A-Za-z0-9+/=]*)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_hostile_texts_are_data_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = runs.hostile()
    data = collect([], OUTPUTS, tmp_path)
    text = html.render(data | {"outputs": runs.HOSTILE})
    assert "hacked" not in text.replace("&lt;/script&gt;&lt;script&gt;window.hacked=1", "")
    assert text.count("<script") == text.count("</script>") == 4
    assert content(text, "data")["runs"] == data["runs"] and content(text, "all-curves") == data["curves"]
    (run,) = data["runs"]
    assert run["id"] == f'"><img src=x onerror=window.hacked=2>/{folder.name}' and "\\x1b[31m" in run["log"]
    assert run["pictures"][0]["name"] == "'<img src=x>.png"


def test_no_button_of_a_plot_uploads_it() -> None:
    """Plotly has one unless every plot refuses it."""
    charts = (html.SOURCE / "charts.js").read_text()
    calls = re.findall(r"Plotly\.(?:newPlot|react)\(.*", "".join(p.read_text() for p in html.SOURCE.glob("*.js")))
    assert len(calls) == 1 and "...local," in calls[0]
    assert 'local = { showSendToCloud: false, plotlyServerURL: "" };' in charts


def test_a_page_names_no_other_host_and_allows_no_network() -> None:
    text = html.render({"outputs": "o", "runs": [], "curves": []})
    own = re.sub(r'<script type="text/plain"[^>]*>[^<]*</script>', "", text)
    assert re.findall(r"https?://[^\"' ]+", own) == ["http://www.w3.org/2000/svg"]
    assert "default-src 'none'" in own and "src=" not in own
    assert html.render({"outputs": "o", "runs": [], "curves": []}) != text  # another nonce


def test_the_script_of_plotly_is_the_published_one() -> None:
    (digest,) = re.findall(r"\b[0-9a-f]{64}\b", (html.PLOTLY.parent / "README.md").read_text())
    assert hashlib.sha256(html.PLOTLY.read_bytes()).hexdigest() == digest
    assert "plotly.js (cartesian - minified) v4.1.1" in html.PLOTLY.read_text()[:100]
    assert len(html.render({"outputs": "o", "runs": [], "curves": []})) < 8e5
