"""GPUs that the installed torch cannot use are refused in a sentence: no command computes on the CPU in their place."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.torch_version import TorchVersion

from tests.conftest import SMALL
from tests.gpu.conftest import REAL
from tests.gpu.runs import Log, training

pytestmark = pytest.mark.skipif(REAL, reason="the driver of a real GPU cannot be chosen")

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TRAIN = ["train", *SMALL, "max_steps=1", "graph=false", "compile_views=false"]


@pytest.fixture
def run(gpus: Callable[..., dict[str, str]], tmp_path: Path) -> Run:
    """Function that runs ``ssl-bench`` on a machine whose GPU the kernel lists; variables are those of the process."""
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    code = f"from pathlib import Path; from ssl_bench import cli, hardware; hardware.GPUS = Path('{tmp_path}/gpus')"

    def run(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = gpus(1, TMPDIR=str(tmp_path), **variables)
        command = [sys.executable, "-c", f"{code}; cli.main()", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return run


def sentence(printed: str) -> str:
    (found,) = (line for line in printed.splitlines() if line.startswith("ssl-bench: "))
    return found


@pytest.mark.slow
def test_a_driver_older_than_the_cuda_of_torch_is_refused_with_a_line_for_pip(run: Run) -> None:
    assert torch.version.cuda is not None
    if int(torch.version.cuda.partition(".")[0]) < 13:
        pytest.skip("this torch is for drivers of CUDA 12")
    reason = f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, can use none of the GPUs"
    for words in (TRAIN, [*TRAIN, "-m", "seed=0,1"], [*TRAIN, "-m", "launcher=local", "seed=0,1"]):
        done = run(*words, FAKE_CUDA_DRIVER="12040")
        assert done.returncode == 2 and reason in sentence(done.stderr), done.stderr
        assert shlex.split(sentence(done.stderr).split("`")[1]) == ["pip", "install", "torch<2.11", "torchvision"]
    assert not list(Path().glob("outputs/*/*/config.yaml"))
    on_the_cpu = run(*TRAIN, "device=cpu", FAKE_CUDA_DRIVER="12040")
    assert on_the_cpu.returncode == 0 and "fp32 on cpu" in on_the_cpu.stdout, on_the_cpu.stderr
    (folder,) = (path.parent for path in Path().glob("outputs/*/*/results.json"))
    hidden = run(*TRAIN, FAKE_CUDA_DRIVER="12040", CUDA_VISIBLE_DEVICES="")
    assert hidden.returncode == 0 and folder.name in hidden.stdout  # it is the same run, and done

    again = "evaluate", str(folder), "evaluate=knn"
    assert "device=cpu" in sentence(run(*again, "device=auto", FAKE_CUDA_DRIVER="12040").stderr)
    assert run(*again, FAKE_CUDA_DRIVER="12040").returncode == 0  # as it was trained


@pytest.mark.slow
def test_check_finds_a_driver_that_is_too_old_wrong(run: Run) -> None:
    done = run("check", "machine", FAKE_CUDA_DRIVER="11080")
    assert done.returncode == 1 and "wrong" in done.stdout and "nvidia-smi" in done.stdout, done.stdout
    done = run("check", "machine", "device=cpu", FAKE_CUDA_DRIVER="11080")
    assert done.returncode == 0 and "no GPU" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_run_that_is_to_use_the_cpu_leaves_the_gpu_alone(run: Run) -> None:
    for launcher in ([], ["-m", "launcher=local", "seed=0,1"]):
        done = run(*TRAIN, *launcher, "device=cpu", "log_every=1")
        assert done.returncode == 0 and "cuda" not in done.stdout, done.stdout
    folders = [path.parent for path in Path().glob("outputs/*/*/results.json")]
    for folder in folders:
        recorded = (folder / "results.json").read_text()
        assert '"peak_device_mb"' not in recorded and '"cuda": null' in recorded
        assert "cuda" not in torch.load(folder / "checkpoints" / "last.pt")["ranks"][0]["rng"]
    assert len(folders) == 2
    done = run(*TRAIN, "graph=true", "device=cpu", "seed=3")
    assert done.returncode == 2 and "graph=true: set graph to auto or false" in sentence(done.stderr)


def test_a_v100_is_refused_with_a_line_for_pip_where_torch_was_not_built_for_it(run: Run) -> None:
    if TorchVersion(torch.__version__) < "2.11":
        pytest.skip("this torch may be built for V100s")
    done = run(*TRAIN, FAKE_CUDA_SM="70")
    assert done.returncode == 2 and "has compute capability 7.0" in sentence(done.stderr), done.stderr
    assert shlex.split(sentence(done.stderr).split("`")[1]) == ["pip", "install", "torch<2.11", "torchvision"]


def said(*overrides: str) -> list[str]:
    """Lines about number formats that a run prints before its first step."""
    log = Log()
    run = training(*overrides, one_layer=True)
    run.announce()
    return [line for line in log.lines if "precision=" in line]


@pytest.mark.slow
def test_bf16_on_a_gpu_without_it_warns_once(gpu: Callable[..., list[str]]) -> None:
    warning = "this GPU emulates precision=bf16: set precision=fp16, which its tensor cores have"
    assert gpu(said, "precision=bf16", values=False, FAKE_CUDA_SM="70") == [warning]
    assert gpu(said, "precision=auto", values=False, FAKE_CUDA_SM="70") == []
    assert gpu(said, "precision=bf16", values=False) == []
