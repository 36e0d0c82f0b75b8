"""No command changes a file that it has not made: pictures of a user's files before and after each command."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import ssl_bench
from ssl_bench.record import neighbours
from tests.conftest import SMALL, no_pictures, only_run

GIVEN = yaml.safe_load(Path(__file__).with_name("users_files.yaml").read_text())
NAMES = GIVEN["names"]
RUN, MINE = "outputs/exp/RUN", "mine"
FOLDERS = [".", "outputs", "outputs/exp", RUN, "to_embed", "to_export", "to_draw"]


def lay(folder: Path, outside: Path) -> None:
    """Put a user's files into a folder, and links to a file and a folder outside of it."""
    for name in NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name} {MINE}")
    for name, target in {"link": outside, "claims/link": outside, "link.txt": outside / ".env.2024"}.items():
        if not os.path.lexists(folder / name):
            (folder / name).symlink_to(target)


def picture(folders: Sequence[Path]) -> dict[Path, tuple[int, Any] | None]:
    """The state of all files and links of a user in some folders, and of what the links lead to."""
    found = dict[Path, tuple[int, Any] | None]()
    for path in [folder / name for folder in folders for name in [*NAMES, "link", "claims/link", "link.txt"]]:
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[path] = (path.lstat().st_mtime_ns, content) if os.path.lexists(path) else None
    return found


def call(line: str, run: Path) -> int:
    """Carry out a command in this process; return its exit code."""
    name, *words = [word.replace("RUN", str(run)) for word in shlex.split(line)]
    try:
        code: int = import_module("ssl_bench.train" if name == "train" else f"ssl_bench.commands.{name}").main(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code


EVALUATE = "evaluate RUN evaluate=[knn] evaluate.baselines=[]"
TRAIN = f"train {shlex.join(SMALL)} max_steps=1 evaluate.watch=0 name=exp"
COMMANDS = [line.replace("TRAIN", TRAIN) for line in GIVEN["commands"]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run of one step; pictures of features have one row."""
    monkeypatch.setattr(neighbours, "QUERIES", 1)
    with no_pictures():
        assert call(TRAIN, Path()) == 0
    return only_run()


def test_commands_leave_the_files_of_a_user_as_they_are(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    places = [Path(folder.replace(RUN, str(run))) for folder in FOLDERS]
    changed, codes = dict[str, list[str]](), dict[str, int]()
    lay(outside, Path(__file__).parent)
    for line in COMMANDS:
        for place in places:
            lay(place, outside)
        before = picture([*places, outside])
        with no_pictures():
            codes[line] = call(line, run)
        after = picture([*places, outside])
        changed[line] = [str(path) for path in before if after[path] != before[path]]
    assert {line: paths for line, paths in changed.items() if paths} == {}
    assert {line: code for line, code in codes.items() if code} == {}
    assert (Path("to_embed/features.npy").exists(), Path("to_draw/page.html").exists()) == (True, True)


@pytest.mark.parametrize("name", ["features.npy", "images.csv", "neighbours.png", "embed.json"])
def test_embed_refuses_a_file_that_its_record_does_not_name(name: str) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4))
    Path("out").mkdir()
    Path("out", name).write_text(MINE)
    with pytest.raises(ssl_bench.errors.ConfigError, match=r"^out=out: "):
        ssl_bench.embed(network, np.zeros((2, 3, 2, 2), np.uint8), out="out")
    assert [(path.name, path.read_text()) for path in Path("out").iterdir()] == [(name, MINE)]


def test_a_default_picture_replaces_no_file_of_a_user(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with no_pictures():
        assert call(EVALUATE, run) == 0
        assert call(f"{TRAIN} seed=1 evaluate=[knn]", run) == 0
    for line, name in (("report exp", "report.html"), ("figure exp --x seed --lines loss", "exp.png")):
        Path(name).write_text(MINE)
        assert call(line, run) == 2 and Path(name).read_text() == MINE
        assert f"--out={name}: " in capfd.readouterr().err
        Path(name).unlink()
        assert call(line, run) == 0 and call(line, run) == 0  # its own is replaced


OPENED: list[str] | None = None  # the files that are opened while this is a list


def note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and OPENED is not None:
        OPENED.append(os.path.abspath(os.fsdecode(arguments[0])) if isinstance(arguments[0], str | bytes) else "")


sys.addaudithook(note)


OTHERS = ("command.txt", "train.log", "config.yaml", "figures", "hits")


@pytest.mark.parametrize("names", [("metrics.jsonl", "results.json"), pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_no_reader_of_runs_opens_a_link_that_leaves_a_run(run: Path, names: tuple[str, ...]) -> None:
    global OPENED
    lines = ["status", "table exp", "compare exp --by loss --to infonce", "report --out page.html"]
    lines += ["export RUN --format card", "figure exp --x epoch --out figure.png", "embed RUN --out new"]
    lines += ["evaluate RUN evaluate=[knn] evaluate.knn.k=3"]
    with no_pictures():
        assert call(EVALUATE, run) == 0
        assert call(f"{TRAIN} seed=1 evaluate=[knn]", run) == 0
    (run / "figures").mkdir(exist_ok=True)  # of evaluators that draw something
    shutil.copytree(run, "private")
    for name in names:
        Path("own").mkdir()
        (run / name).rename(Path("own", name))
        (run / name).symlink_to(Path("private", name).absolute())
        OPENED = []
        with no_pictures():
            for line in lines:
                call(line, run)
        opened, OPENED = OPENED, None
        assert [path for path in opened if path.startswith(str((run / name).absolute()))] == [], name
        assert any(path == str(run.absolute() / "checkpoints" / "last.pt") for path in opened), name
        (run / name).unlink()
        Path("own", name).rename(run / name)
        Path("own").rmdir()
        shutil.rmtree("new", ignore_errors=True)
