"""``scripts/sync_wandb.sh``: which of W&B's directories it sends, and that it reports what was not sent."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each call of wandb takes seconds
SCRIPT = Path(__file__).parents[2] / "scripts" / "sync_wandb.sh"


def sync(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the script; return its exit code and what it printed to both outputs."""
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | environment,
    )
    return done.returncode, done.stdout, done.stderr


def make_directory(run: str, name: str, size: int = 100) -> Path:
    """One of W&B's directories in a run's directory, without real content: the script uses names and sizes only."""
    folder = Path(run) / "wandb" / f"offline-run-{name}"
    folder.mkdir(parents=True)
    (Path(run) / "config.yaml").touch()
    file = folder / f"run-{name.partition('-')[2]}.wandb"
    file.write_bytes(b"x" * size)
    return file


def test_the_newest_directory_of_a_run_is_sent_once(tmp_path: Path) -> None:
    make_directory("outputs/a/aa", "20260101_000000-aa")
    make_directory("outputs/a/aa", "20260102_000000-aa")
    make_directory("outputs/a/aa", "20260103_000000-aa", size=7)  # killed after the header was written
    make_directory("outputs/a/aa", "20260101_120000-agent-s")  # of a W&B sweep
    done = make_directory("outputs/b c/bb", "20260101_000000-bb")
    make_directory("outputs/b c/cc", "20260101_000000-cc")
    for run in ("a/aa", "b c/bb"):
        Path("outputs", run, "results.json").touch()
    names = "20260102_000000-aa", "20260101_120000-agent-s"
    newest = [f"wandb sync outputs/a/aa/wandb/offline-run-{name}" for name in names]
    others = [f"wandb sync outputs/b\\ c/{r}/wandb/offline-run-20260101_000000-{r}" for r in ("bb", "cc")]

    code, out, err = sync("--dry-run")
    assert code == 0 and sorted(out.splitlines()) == sorted([*newest, others[0]]) and "1 unfinished" in err
    code, out, err = sync("--dry-run", "--unfinished", "outputs")
    assert code == 0 and sorted(out.splitlines()) == sorted([*newest, *others]) and not err
    mark = done.with_name(f"{done.name}.synced")
    mark.touch()
    assert sync("--dry-run")[1].splitlines() == sorted(newest, reverse=True)
    os.utime(mark, (1, 1))  # sent before the run has ended
    assert f"wandb sync --include-synced {others[0].removeprefix('wandb sync ')}" in sync("--dry-run")[1].splitlines()
    assert sync("--dry-run", "nowhere")[0] == 2 and sync("--wet-run")[0] == 2 and sync("outputs", "b")[0] == 2
    assert sync("--help")[:2] == (0, sync("-h")[1]) and "--unfinished" in sync("-h")[1]


def test_a_run_that_was_not_sent_is_reported_with_exit_code_1(tmp_path: Path) -> None:
    """There is no key and no server; wandb itself may exit with 0 if it could not read a file."""
    make_directory("outputs/a/aa", "20260101_000000-aa")
    Path("outputs/a/aa/results.json").touch()
    code, out, err = sync(HOME=str(tmp_path), WANDB_API_KEY="", WANDB_BASE_URL="http://127.0.0.1:9")
    assert code == 1 and out.endswith("0 sent, 1 failed\n") and "outputs/a/aa/wandb" in err
    shutil.rmtree("outputs")
    Path("outputs").mkdir()
    assert sync() == (0, "0 sent, 0 failed\n", "")
