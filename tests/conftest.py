"""Settings and fixtures of all tests: one thread per process unless OMP_NUM_THREADS is set, and a folder per test."""

import os

os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "WANDB_MODE": "offline"}
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # many processes import torch: the next one finds its compiled files

import contextlib
import gc
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ssl_bench import files

THREADS = int(os.environ["OMP_NUM_THREADS"])
torch.set_num_threads(THREADS)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background jobs of a shell and their children
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A very small network on scattered digits at batch size 64: a run of a few steps takes a second.
SMALL = ["backbone.width=4", "head.out=16", "optimizer=sgd", "optimizer.lr=0.3"]
SMALL += ["tracking=off", "log_every=1", "evaluate=[]", "evaluate.baselines=[]"]
# Words of the runs of ``trained`` and ``grid``, for tests that only need some finished run.
TRAINED = ["max_steps=3", "evaluate=knn", "evaluate.baselines=[init,raw]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first, which have a time limit of their own or are slow: both workers end together."""
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("timeout", "slow")])


def pytest_collection() -> None:
    """Collect no garbage while tests are imported: imports make many objects and nearly no garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.set_threshold(50_000)  # torch and omegaconf make many objects, and hardly any cycles
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def freeze_objects_of_earlier_modules() -> None:
    """Keep the objects of earlier modules out of the garbage collection that each run does at its end."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give each process a temporary folder of its own, and all processes together a cache that is not the user's."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(tmp_path_factory.mktemp("temporary"))
    folder = tmp_path_factory.getbasetemp()
    os.environ["XDG_CACHE_HOME"] = str((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "cache")


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # a command that a test ran in this process has set it
    monkeypatch.delenv("COLUMNS", raising=False)
    files.SAID.clear()


@pytest.fixture
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Function that runs ``ssl-bench`` in a new process, in the working directory."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ssl_bench", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment)

    return run


@contextlib.contextmanager
def no_pictures() -> Iterator[None]:
    """Leave the plots of runs undrawn, which would take half of the time of a short run."""
    drawing = "ssl_bench.record.drawing"
    with patch(f"{drawing}.of_artifact"), patch(f"{drawing}.as_png", lambda drawn: b"no picture"):
        yield


@contextlib.contextmanager
def stopped_at(step: int) -> Iterator[None]:
    """Stop the runs of this process after a step, as ``kill`` does: their exit code is 143, and they can be resumed."""
    from ssl_bench.training.step import Stepper

    finish = Stepper.finish

    def finish_and_stop(stepper: Stepper, *given: Any) -> None:
        finish(stepper, *given)
        if stepper.state.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with patch.object(Stepper, "finish", finish_and_stop):
        yield


@pytest.fixture
def train(capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Function that runs ``ssl-bench train`` in this process, with ``SMALL``; returns the exit code and the output.

    Its keyword ``pictures`` also draws the plots.
    """
    from ssl_bench.train import main

    def run(*arguments: str, small: bool = True, pictures: bool = False) -> tuple[int, str]:
        capfd.readouterr()
        with contextlib.nullcontext() if pictures else no_pictures():
            code = main([*(SMALL if small else []), *arguments])
        out, err = capfd.readouterr()
        return code, out + err

    return run


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results folder ``one`` of the run of TRAINED, and ``grid`` of two losses and two seeds."""
    from ssl_bench.train import main

    folder, before = tmp_path_factory.mktemp("trained"), Path.cwd()
    os.chdir(folder)
    try:
        with no_pictures():
            assert main([*SMALL, *TRAINED]) == 0
            shutil.copytree("outputs", "one")
            assert main([*SMALL, *TRAINED, "-m", "loss=infonce,dcl", "seed=0,1"]) == 0
        Path("outputs").rename("grid")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def trained(trained_once: Path, working_directory: None) -> Path:
    """Directory of the run of ``train(*TRAINED)``, below ``outputs`` in the working directory."""
    shutil.copytree(trained_once / "one", "outputs")
    return only_run()


@pytest.fixture
def grid(trained_once: Path, working_directory: None) -> list[Path]:
    """Directories of the runs of InfoNCE and DCL, with the seeds 0 and 1, below ``outputs``."""
    shutil.copytree(trained_once / "grid", "outputs")
    return sorted(path.parent for path in Path("outputs").glob("default/*/config.yaml"))


@pytest.fixture
def tf32() -> Iterator[Callable[[bool], None]]:
    """Function that sets TF32 as a run does; the previous setting is restored after the test."""
    cublas, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cublas.allow_tf32, cudnn.allow_tf32, cudnn.benchmark

    def allow(yes: bool) -> None:
        cublas.allow_tf32 = cudnn.allow_tf32 = yes

    yield allow
    cublas.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def only_run(outputs: Path = Path("outputs")) -> Path:
    """Directory of the only run in a results folder."""
    (config,) = outputs.glob("*/*/config.yaml")
    return config.parent
