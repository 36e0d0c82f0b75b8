"""Rules of the source: which room imports which, and what is imported when."""

import ast
import graphlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import ssl_bench

ROOT = Path(ssl_bench.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# From the bottom to the top: a room imports only from itself and from rooms above it in CONTRIBUTING's list. Modules
# that stand in no folder are two rooms.
LISTED = re.findall(r"^\| `(?:ssl_bench/)?(\w+)/`", (ROOT.parent / "CONTRIBUTING.md").read_text(), re.M)
PLACE = {name: place for place, name in enumerate(name for name in LISTED if (ROOT / name).is_dir())}
PLACE |= dict.fromkeys(["errors", "files", "seeding", "surroundings", "distributed", "hardware", "signals"], -1)
PLACE |= dict.fromkeys(["cli", "train", "__main__"], len(PLACE))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Dotted names of every module that a file imports, inside functions and type checks too."""
    names: list[str] = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(names)


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def graph() -> dict[str, set[str]]:
    """The rooms that each room imports from."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        room = room_of(path)
        names = (name.split(".")[1] for name in imports(path) if name.startswith("ssl_bench."))
        found.setdefault(room, set()).update({name for name in names if name in PLACE} - {room})
    return found


def users_of(package: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in FILES if package in {name.split(".")[0] for name in imports(path)}}


def test_a_room_imports_only_from_rooms_before_it() -> None:
    wrong = [f"{room} -> {other}" for room, others in graph().items() for other in others if PLACE[other] > PLACE[room]]
    assert wrong == []


def test_files_do_not_import_each_other_in_a_circle() -> None:
    names = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in FILES}
    graphlib.TopologicalSorter({name: {*imports(path)} & names.keys() for name, path in names.items()}).prepare()


def test_every_module_is_in_a_room() -> None:
    assert {room_of(path) for path in FILES} - {"__init__"} == set(PLACE)


def test_hydra_is_known_to_config_and_experiments_and_wandb_to_one_file() -> None:
    allowed = ("config/", "commands/experiments.py")
    assert all(user.startswith(allowed) for user in users_of("hydra") | users_of("omegaconf"))
    assert not [path for path in FILES if any(name.startswith("hydra._") for name in imports(path))]
    assert users_of("wandb") == {"record/dashboard.py"}


def test_the_objective_imports_torch_and_the_kernel_only() -> None:
    for path in (ROOT / "objective").rglob("*.py"):
        own = [n for n in imports(path) if n.startswith("ssl_bench.")]
        allowed = {"objective", "distributed", "seeding", "errors", "precision"}
        assert {n.split(".")[1] for n in own} <= allowed, path
        if path.parent.name == "losses" and path.name != "__init__.py":
            assert not [n for n in own if n.startswith("ssl_bench.objective.losses")], path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("ssl_bench; ssl_bench.runs", {"torch", "numpy", "hydra", "wandb", "sklearn", "matplotlib", "pandas"}),
        ("ssl_bench; ssl_bench.PairLoss", {"torch._dynamo", "hydra", "wandb", "sklearn", "matplotlib", "pandas"}),
        ("ssl_bench.cli", {"torch", "hydra", "rich"}),
        ("ssl_bench.commands.status", {"torch", "hydra"}),
        ("ssl_bench.commands.table", {"torch", "hydra", "matplotlib", "wandb"}),
        ("ssl_bench.commands.report", {"torch", "hydra", "matplotlib", "wandb", "jinja2"}),
        ("ssl_bench.train", {"torch", "wandb", "timm", "sklearn"}),
        ("ssl_bench.launch.run", {"wandb", "timm", "torchvision", "sklearn", "hydra", "ssl_bench.results"}),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_used(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print([m for m in {sorted(absent)!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


TRAINED = """
import os, sys
from ssl_bench.training.step import Stepper
def stop(*_):
    print("modules:", *(name for name in sys.modules if name.split(".")[0] == "ssl_bench"), flush=True)
    os._exit(0)
Stepper.finish = stop
sys.argv[1:] = ["train", "loss=dcl", "tracking=off", "device=cpu"]
from ssl_bench import cli
cli.main()
"""


@pytest.mark.slow
def test_a_training_imports_what_it_runs() -> None:
    done = subprocess.run([sys.executable, "-c", TRAINED], capture_output=True, text=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("modules:")]
    names = line.split()[1:]
    assert len(names) <= 106, names
    absent = ("results", "papers", "report", "api", "check", "networks.weights", "objective.losses.")
    own = [name.removeprefix("ssl_bench.") for name in names]
    assert [name for name in own if name.startswith(absent)] == ["objective.losses.dcl"]
