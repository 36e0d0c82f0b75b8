"""The reference pages: no warnings, no broken links, the losses' formulas, and numbers that the papers' data have."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from html import unescape
from pathlib import Path

import pytest
import yaml

import ssl_bench
from ssl_bench.papers import measurements, tables, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.claims import PaperClaim

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
    for statement in re.split(r"\n(?=[|*#])|\n\n", GUIDE.read_text()):
        tables = re.findall(r"`(dcl|eqco|macl|less|intriguing)/(\w+)`", statement)
        if not tables:
            continue
        known = set[float]()
        for paper, table in tables:
            if paper not in data:
                data[paper] = yaml.safe_load((PACKAGE / "papers" / f"{paper}.yaml").read_text())["tables"]
            # What is no table is a claim, whose numbers are measured.
            known |= numbers(data[paper].get(table) or measured(f"{paper}/{table}"))
        # Accuracies have a decimal place and are at least 1; temperatures are smaller.
        stated = {float(number) for number in re.findall(r"(?<![\w.])\d+\.\d+", statement) if float(number) >= 1}
        assert stated <= known, statement
        checked += len(stated)
    assert checked > 50


def measured(name: str) -> list[str]:
    """The lines of ``ssl-bench table`` about a claim from the committed numbers."""
    (claim,) = tables.find(name)
    assert isinstance(claim, PaperClaim)
    return [*verdicts.judge(claim, Results(Path("/nonexistent"), [])).lines(), measurements.errata(claim)]


def numbers(node: object) -> set[float]:
    """All numbers in a part of a paper's file, with those that have a provenance (``60.6 derived``)."""
    if isinstance(node, dict):
        return set[float]().union(*map(numbers, node.values()))
    if isinstance(node, list):
        return set[float]().union(*map(numbers, node))
    return {float(match) for match in re.findall(r"\d+(?:\.\d+)?", str(node))}


# ---- what the wheel and the sdist hold


CHECKOUT = Path(__file__).parents[1]
SETTINGS = CHECKOUT / "pyproject.toml"
a_checkout = pytest.mark.skipif(not SETTINGS.exists(), reason="builds from a checkout")


def built(kind: str, tree: Path, out: Path) -> Path:
    """Build the sdist, the wheel or the editable of a tree into a new folder."""
    out.mkdir()
    code = f"from hatchling import build; print(build.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=True)
    return out / done.stdout.split()[-1]


@pytest.mark.slow
@a_checkout
def test_the_wheel_has_the_configuration_and_an_editable_install_has_no_copy_of_it(tmp_path: Path) -> None:
    names = zipfile.ZipFile(built("wheel", CHECKOUT, tmp_path / "wheel")).namelist()
    conf = {f"ssl_bench/{p.relative_to(CHECKOUT)}" for p in (CHECKOUT / "conf").rglob("*.yaml")}
    conf = {c for c in conf if "/local/" not in c}
    assert {n for n in names if n.startswith("ssl_bench/conf/") and n.endswith(".yaml")} == conf
    assert not [name for name in names if name.startswith(("tests", "outputs", "scripts")) or name.endswith(".png")]
    assert "ssl_bench/py.typed" in names and "ssl_bench/report/page/page.html" in names
    assert {f"ssl_bench/report/plotly/{name}" for name in ("plotly-cartesian.min.js", "LICENSE")} <= {*names}
    assert "ssl_bench/data/imagenet100.txt" in names and "ssl_bench/papers/dcl.yaml" in names
    editable = zipfile.ZipFile(built("editable", CHECKOUT, tmp_path / "editable")).namelist()
    assert not [name for name in editable if "conf/" in name]


@pytest.mark.slow
@a_checkout
def test_the_sdist_has_the_project_alone_and_gives_the_wheel_of_the_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    top = ["pyproject.toml", ".gitignore"]
    top += tomllib.loads(SETTINGS.read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    tree.mkdir()
    without = shutil.ignore_patterns("__pycache__")
    for name in top:
        source, place = CHECKOUT / name, tree / name
        shutil.copytree(source, place, ignore=without) if source.is_dir() else shutil.copyfile(source, place)
    for stray in ("venv/module.py", "outputs/results.json", "conf/local/mine.yaml", "notes.txt"):
        (tree / stray).parent.mkdir(exist_ok=True)
        (tree / stray).write_text("")
    with tarfile.open(built("sdist", tree, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert {path.name for path in unpacked.iterdir()} == {*top, "PKG-INFO"}
    assert (unpacked / "tests/golden.json").exists() and not (unpacked / "conf/local").exists()
    first, second = (built("wheel", folder, tmp_path / f"of_{folder.name}") for folder in (tree, unpacked))
    assert first.read_bytes() == second.read_bytes()
