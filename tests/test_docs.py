"""The reference pages: no warnings, no broken links, the losses' formulas, and numbers that the papers' data have."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import yaml

import ssl_bench

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
from build_docs import broken_links, build, every_loss

PACKAGE = Path(ssl_bench.__file__).parent
GUIDE = PACKAGE / "objective" / "README.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pdoc")
    folder = tmp_path_factory.mktemp("docs") / "site"
    script = PACKAGE.parent / "scripts" / "build_docs.py"
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"wrote {folder / 'index.html'}\n"
    return folder


@pytest.mark.slow
def test_the_pages_of_losses_have_their_formulas_and_the_identities(site: Path) -> None:
    page = unescape((site / "ssl_bench/objective/losses.html").read_text())
    assert all(f"<td>{each.equation}</td>" in page and each.equation for each in every_loss())
    pages = {path.stem for path in (site / "ssl_bench/objective/losses").glob("*.html")}
    assert pages == {loss.__module__.rpartition(".")[2] for loss in every_loss()}


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a id="x" href="b.html#y">b</a> <a href="#z">z</a> <a href="c.html">c</a>')
    (tmp_path / "b.html").write_text('<p id="y"><a href="https://example.org/nowhere">elsewhere</a></p>')
    assert [tuple(line.split()[:2]) for line in broken_links(tmp_path)] == [("a.html:", "#z"), ("a.html:", "c.html")]


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match=str(tmp_path)):
        build(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "x"


def test_every_number_of_the_guide_is_in_the_table_that_it_names() -> None:
    checked, data = 0, {}
    sections = (PACKAGE / "papers" / "measured" / "README.md").read_text().split("\n## ")
    measured = {section.partition(":")[0]: section for section in sections}
    for statement in re.split(r"\n(?=[|*#])|\n\n", GUIDE.read_text()):
        tables = re.findall(r"`(dcl|eqco|macl|less|intriguing)/(\w+)`", statement)
        if not tables:
            continue
        known = set[float]()
        for paper, table in tables:
            if paper not in data:
                data[paper] = yaml.safe_load((PACKAGE / "papers" / f"{paper}.yaml").read_text())["tables"]
            # What is no table is a claim, whose numbers are measured.
            known |= numbers(data[paper].get(table) or measured[f"{paper}/{table}"])
        # Accuracies have a decimal place and are at least 1; temperatures are smaller.
        stated = {float(number) for number in re.findall(r"(?<![\w.])\d+\.\d+", statement) if float(number) >= 1}
        assert stated <= known, statement
        checked += len(stated)
    assert checked > 50


def numbers(node: object) -> set[float]:
    """All numbers in a part of a paper's file, with those that have a provenance (``60.6 derived``)."""
    if isinstance(node, dict):
        return set[float]().union(*map(numbers, node.values()))
    if isinstance(node, list):
        return set[float]().union(*map(numbers, node))
    return {float(match) for match in re.findall(r"\d+(?:\.\d+)?", str(node))}


def text(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))
