"""No command changes a file that it has not made: pictures of a user's files before and after each command."""

import hashlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import ssl_bench
from ssl_bench import files
from ssl_bench.record import feature_plots
from tests.conftest import SMALL, no_pictures, only_run

Picture = dict[str, tuple[str, int, str]]  # by path: kind and target of a link, time of change, hash

# What people keep in the folders in which they work: hidden files, numbers, names that the package uses itself.
NAMES = [".env.2024", ".precious.1", ".notes.txt.4711", "notes.tmp", "results.json.bak", "last.pt", "best.ckpt", "1"]
NAMES += [".venv-3.11/bin/python", "data/.thesis-2.0/main.tex", "claims/insurance.pdf", "claims/contract.2024"]
NAMES += ["checkpoints/mine.pt", "checkpoints/evaluation-of-me.pt", "figures/me.png", "embed/notes/day.1"]
NAMES += ["images/images.csv", "compositions.json", "papers/thesis.yaml", "grid.json"]
RUN = "outputs/exp/RUN"
FOLDERS = [".", "outputs", "outputs/exp", RUN, "to_embed", "to_export", "to_draw"]


def lay(folder: Path, outside: Path) -> None:
    """Put a user's files into a folder, and links to a file and a folder outside of it."""
    for name in NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name} of the user")
    for name, target in {"link": outside, "claims/link": outside, "link.txt": outside / ".env.2024"}.items():
        if not os.path.lexists(folder / name):
            (folder / name).symlink_to(target)


def picture(folders: Sequence[Path]) -> Picture:
    """The state of all files and links of a user in some folders, and of what the links lead to."""
    return {str(path): state(path) for folder in folders for path in of_user(folder)}


def of_user(folder: Path) -> Iterator[Path]:
    for name in [*NAMES, "link", "claims/link", "link.txt"]:
        yield folder / name


def state(path: Path) -> tuple[str, int, str]:
    if not os.path.lexists(path):
        return "gone", 0, ""
    if path.is_symlink():
        return f"link to {os.readlink(path)}", path.lstat().st_mtime_ns, ""
    return "file", path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()


def call(line: str, run: Path) -> int:
    """Carry out a command in this process; return its exit code."""
    name, *words = [word.replace("RUN", str(run)) for word in shlex.split(line)]
    try:
        code: int = import_module("ssl_bench.train" if name == "train" else f"ssl_bench.commands.{name}").main(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code


TRAIN = f"train {shlex.join(SMALL)} max_steps=1 evaluate.watch=0 name=exp"
COMMANDS = [
    f"{TRAIN}",
    f"{TRAIN} seed=1",
    f"{TRAIN} -m seed=0,2 loss=infonce,dcl evaluate=[knn] evaluate.baselines=[raw]",
    "evaluate RUN evaluate=[knn] evaluate.knn.k=3",
    "embed RUN --split test",
    "embed RUN --split test --out to_embed",
    "export RUN",
    "export RUN --out to_export",
    "export RUN --format card --out to_export",
    "reproduce dcl/table1 'row=CIFAR-10 DCL' col=256 seed=0 --dry-run",
    "table exp",
    "table dcl/table1",
    "figure exp --x seed --lines loss --out to_draw/figure.png",
    "compare exp --by loss --to infonce",
    "report exp --out to_draw/page.html",
    "status",
    "status exp --json",
    "prepare dataset=scattered_digits --show to_draw/sheet.png",
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run of one step; pictures of features are left out."""
    monkeypatch.setattr(feature_plots, "LEAST", 10**9)
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
        changed[line] = [path for path in before if after[path] != before[path]]
    assert {line: paths for line, paths in changed.items() if paths} == {}
    assert {line: code for line, code in codes.items() if code} == {}
    assert (Path("to_embed/features.npy").exists(), Path("to_draw/page.html").exists()) == (True, True)


@pytest.mark.parametrize("name", ["features.npy", "images.csv", "neighbours.png", "map.png", "embed.json"])
def test_embed_refuses_a_file_that_its_record_does_not_name(name: str) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4))
    Path("out").mkdir()
    Path("out", name).write_text("of the user")
    with pytest.raises(ssl_bench.errors.ConfigError, match=r"^out=out: set out to "):
        ssl_bench.embed(network, np.zeros((2, 3, 2, 2), np.uint8), out="out")
    assert [(path.name, path.read_text()) for path in Path("out").iterdir()] == [(name, "of the user")]


def test_a_default_picture_replaces_no_file_of_a_user(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with no_pictures():
        assert call("evaluate RUN evaluate=[knn] evaluate.baselines=[]", run) == 0
        assert call(f"{TRAIN} seed=1 evaluate=[knn]", run) == 0
    for line, name in (("report exp", "report.html"), ("figure exp --x seed --lines loss", "exp.png")):
        Path(name).write_text("of the user")
        assert call(line, run) == 2 and Path(name).read_text() == "of the user"
        assert f"--out={name}: " in capfd.readouterr().err
        Path(name).unlink()
        assert call(line, run) == 0 and call(line, run) == 0  # its own is replaced


def test_a_copied_results_folder_is_read_and_written_where_it_lies(run: Path) -> None:
    def baselines(outputs: str) -> list[Path]:
        return sorted(Path(outputs, ".baselines").iterdir())

    with no_pictures():
        assert call(f"{TRAIN} optimizer.lr=0.1", run) == 0
        assert call("evaluate RUN evaluate=[knn] evaluate.baselines=[raw]", run) == 0
        shutil.copytree("outputs", "copy")
        for outputs, value in {"outputs": 0.125, "copy": 0.25}.items():
            files.write_json(baselines(outputs)[0], {"knn_raw/top1": value})
        (other,) = (path for path in Path("copy/exp").iterdir() if path.is_dir() and path.name != run.name)
        assert call("evaluate RUN evaluate=[knn] evaluate.baselines=[raw]", other) == 0
        assert call("evaluate RUN evaluate=[knn] evaluate.knn.k=3 evaluate.baselines=[raw]", other) == 0
    metrics = json.loads((other / "results.json").read_text())["metrics"]
    assert metrics["knn_raw/top1"] == 0.25 and len(baselines("copy")) == 2 and len(baselines("outputs")) == 1


OPENED: list[str] | None = None  # the files that are opened while this is a list


def note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and OPENED is not None:
        OPENED.append(os.path.abspath(os.fsdecode(arguments[0])) if isinstance(arguments[0], str | bytes) else "")


sys.addaudithook(note)


def test_no_reader_of_runs_opens_a_link_that_leaves_a_run(run: Path) -> None:
    global OPENED
    lines = [
        "status",
        "table exp",
        "compare exp --by loss --to infonce",
        "report --out page.html",
        "export RUN --format card",
    ]
    lines += [
        "figure exp --x epoch --out figure.png",
        "evaluate RUN evaluate=[knn] evaluate.knn.k=3",
        "embed RUN --out new",
    ]
    with no_pictures():
        assert call("evaluate RUN evaluate=[knn] evaluate.baselines=[]", run) == 0
        assert call(f"{TRAIN} seed=1 evaluate=[knn]", run) == 0
    shutil.copytree(run, "private")
    for name in ("command.txt", "train.log", "metrics.jsonl", "config.yaml", "results.json", "figures", "hits"):
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


def test_links_within_a_run_are_followed(run: Path) -> None:
    (run / "command.txt").rename(run / "first.txt")
    (run / "command.txt").symlink_to("first.txt")
    assert files.read_bytes(files.of_run(run / "command.txt")) == (run / "first.txt").read_bytes()
    for target in ("../../../private.txt", "loop"):
        (run / "loop").symlink_to(target)
        with pytest.raises(OSError, match="link"):
            files.open_regular(files.of_run(run / "loop"))
        (run / "loop").unlink()
