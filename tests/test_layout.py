"""Rules of the source that no single test would notice: who imports whom, and when."""

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import ssl_bench
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import refuse_architecture

ROOT = Path(ssl_bench.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, inside functions too, as a dotted name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def using(package: str) -> set[str]:
    return {
        str(path.relative_to(ROOT)) for path in FILES if any(name.split(".")[0] == package for name in imports(path))
    }


def test_hydra_is_known_to_three_files_and_wandb_to_one() -> None:
    assert using("hydra") | using("omegaconf") == {"config.py", "sweep/grid.py", "train.py"}
    assert using("wandb") == {"tracking.py"}


def test_the_objective_imports_torch_the_collectives_and_the_random_streams_only() -> None:
    for path in (ROOT / "objective").rglob("*.py"):
        own = [n for n in imports(path) if n.startswith("ssl_bench")]
        allowed = ("ssl_bench.objective", "ssl_bench.distributed", "ssl_bench.seeding")
        assert all(n.startswith(allowed) for n in own), path
        if path.parent.name == "losses" and path.name != "__init__.py":
            assert not [n for n in own if n.startswith("ssl_bench.objective.losses")], path
    parts = {"losses", "negatives", "temperature"}
    for part in ("negatives", "temperature"):
        names = {
            n.split(".")[2] for n in imports(ROOT / "objective" / f"{part}.py") if n.startswith("ssl_bench.objective.")
        }
        assert not names & (parts - {part})


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("ssl_bench.cli", {"torch", "hydra", "rich"}),
        ("ssl_bench.status.view", {"torch", "hydra"}),
        ("ssl_bench.papers.formats", {"torch", "hydra", "rich", "matplotlib", "wandb"}),
        ("ssl_bench.papers.figure", {"torch", "hydra", "rich", "matplotlib", "wandb"}),
        ("ssl_bench.papers.plan", {"torch", "hydra", "rich", "wandb"}),
        ("ssl_bench.train", {"torch", "wandb", "timm", "sklearn"}),
        ("ssl_bench.launch.ranks", {"wandb", "timm", "torchvision", "sklearn", "hydra"}),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_used(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print([m for m in {sorted(absent)!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_gpu_that_torch_was_not_built_for_is_refused() -> None:
    modern = ["sm_75", "sm_80", "sm_90", "compute_90"]
    refuse_architecture("H200", (9, 0), modern)
    refuse_architecture("A6000", (8, 6), modern)  # a binary for 8.0 runs on 8.6
    refuse_architecture("B200", (10, 0), modern)  # compiled at run time from compute_90
    with pytest.raises(ConfigError, match=r"V100 has compute capability 7\.0.*torch<2\.15.*cu126"):
        refuse_architecture("V100", (7, 0), modern)
    refuse_architecture("V100", (7, 0), ["sm_70", "sm_80"])


def test_the_wheel_has_the_configuration(tmp_path: Path) -> None:
    if not (ROOT.parent / "pyproject.toml").exists():
        pytest.skip("builds the wheel from a checkout, which this is not")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*build, str(ROOT.parent)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    conf = {f"ssl_bench/{p.relative_to(ROOT.parent)}" for p in (ROOT.parent / "conf").rglob("*.yaml")}
    assert {name for name in names if name.startswith("ssl_bench/conf/")} == {c for c in conf if "/local/" not in c}
    assert not [name for name in names if name.startswith(("tests", "outputs", "scripts"))]
