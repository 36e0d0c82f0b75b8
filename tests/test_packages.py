"""What the wheel and the sdist hold."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
SETTINGS = CHECKOUT / "pyproject.toml"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SETTINGS.exists(), reason="builds from a checkout")]


def built(kind: str, tree: Path, out: Path) -> Path:
    """Build the sdist, the wheel or the editable of a tree into a new folder."""
    out.mkdir()
    code = f"from hatchling import build; print(build.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=True)
    return out / done.stdout.split()[-1]


def test_the_wheel_has_the_configuration_and_an_editable_install_has_no_copy_of_it(tmp_path: Path) -> None:
    names = zipfile.ZipFile(built("wheel", CHECKOUT, tmp_path / "wheel")).namelist()
    conf = {f"ssl_bench/{p.relative_to(CHECKOUT)}" for p in (CHECKOUT / "conf").rglob("*.yaml")}
    conf = {c for c in conf if "/local/" not in c}
    assert {n for n in names if n.startswith("ssl_bench/conf/") and n.endswith(".yaml")} == conf
    assert not [name for name in names if name.startswith(("tests", "outputs", "scripts"))]
    assert "ssl_bench/py.typed" in names and "ssl_bench/report/page/page.html" in names
    assert {f"ssl_bench/report/plotly/{name}" for name in ("plotly-cartesian.min.js", "LICENSE")} <= {*names}
    assert "ssl_bench/data/imagenet100.txt" in names and "ssl_bench/papers/dcl.yaml" in names
    editable = zipfile.ZipFile(built("editable", CHECKOUT, tmp_path / "editable")).namelist()
    assert not [name for name in editable if "conf/" in name]


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
