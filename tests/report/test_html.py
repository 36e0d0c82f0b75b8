"""The file of a report: hostile texts end no element of it; which points of a curve are in it."""

import base64
import gzip
import hashlib
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from ssl_bench.record.runs import Run
from ssl_bench.report import curves, html
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


def test_a_page_names_no_other_host_and_allows_no_network() -> None:
    text = html.render({"outputs": "o", "runs": [], "curves": []})
    own = re.sub(r'<script type="text/plain"[^>]*>[^<]*</script>', "", text)
    assert re.findall(r"https?://[^\"' ]+", own) == ["http://www.w3.org/2000/svg"]
    assert "default-src 'none'" in own and "form-action 'none'" in own and "src=" not in own
    assert html.render({"outputs": "o", "runs": [], "curves": []}) != text  # another nonce


def test_the_script_of_plotly_is_the_published_one() -> None:
    (digest,) = re.findall(r"\b[0-9a-f]{64}\b", (html.PLOTLY.parent / "README.md").read_text())
    assert hashlib.sha256(html.PLOTLY.read_bytes()).hexdigest() == digest
    assert "plotly.js (cartesian - minified) v4.1.1" in html.PLOTLY.read_text()[:100]
    assert len(html.render({"outputs": "o", "runs": [], "curves": []})) < 8e5


@pytest.mark.parametrize("count", [1, 40, 41, 100, 333])
def test_thinning_keeps_the_ends_and_an_extreme_wherever_it_is(count: int) -> None:
    for sign, place in itertools.product((1.0, -1.0), range(count)):
        kept = curves.thin([sign * (n == place) for n in range(count)], 40)
        assert kept == sorted({*kept}) and len(kept) <= 40 and {0, count - 1, place} <= {*kept}
        assert kept == list(range(count)) or count > 40


def test_read_counts_rows_and_leaves_out_what_is_no_number(tmp_path: Path) -> None:
    rows = [
        {"step": 2 * n, "epoch": n / 5, "loss": 1 / 3 + n, "on": True, "name": "a", "tau": 10**400} for n in range(1, 4)
    ]
    rows[1]["loss"] = math.nan
    for n, (marks, k) in enumerate([(["1"], 0.5), (["1"], 0.25), (["2", "9"], 0.125), (["2", "9"], 0.75)]):
        rows.append({"step": n, "knn/top1": k, "evaluations": marks})  # the last two are of another evaluation
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"loss": 9.0}]) + '{"step": 7, "lo')
    entries = [{"evaluator": name, "id": mark} for name, mark in (("knn", "1"), ("knn", "2"), ("linear", "9"))]
    found, steps_per_epoch = curves.read(Run(tmp_path, {}, {"evaluations": entries}), 40)
    assert steps_per_epoch == pytest.approx(10)
    assert found == {
        "loss": [[2, 6], [1.333, 3.333], 3, 1],
        "tau": [[], [], 3, 3],
        "knn/top1": [[2, 3], [0.125, 0.75], 2, 0],
    }
    assert curves.read(Run(tmp_path / "none", {}), 40) == ({}, None)
