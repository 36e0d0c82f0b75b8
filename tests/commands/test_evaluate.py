"""A trained run is evaluated again: the same metrics, TF32 as in the run, and refusals."""

import json
import shutil
from collections.abc import Callable

import pytest
import torch

from ssl_bench.commands.evaluate import main
from tests.conftest import only_run

Train = Callable[..., tuple[int, str]]


def test_a_trained_run_is_evaluated_again_with_the_same_metrics(
    train: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    def refusal(*arguments: str) -> str:
        capfd.readouterr()
        assert main(arguments) == 2
        return capfd.readouterr().err

    assert train("max_steps=3", "evaluate=knn", "evaluate.baselines=[init,raw]")[0] == 0
    run = only_run()
    trained = json.loads((run / "results.json").read_text())["metrics"]
    assert main([str(run), "evaluate=[knn,linear]", "evaluate.linear.epochs=5"]) == 0
    (path,) = (run / "evaluations").iterdir()
    again = json.loads(path.read_text())["metrics"]
    assert {name: again[name] for name in trained} == trained and "linear/top1" in again
    assert main([str(run), "evaluate=knn", "evaluate.knn.k=1"]) == 0
    assert len(list((run / "evaluations").iterdir())) == 2
    for override in ("seed=1", "export=timm"):
        assert f"{override}: only evaluate and paths.data can be changed" in refusal(str(run), override)
    assert "outputs is no run directory" in refusal("outputs")
    shutil.rmtree(run / "checkpoints")
    assert main([str(run)]) == 1 and "has no checkpoint yet" in capfd.readouterr().err


def test_tf32_is_set_as_in_the_run_and_a_bad_value_is_refused(
    train: Train, tf32: Callable[[bool], None], capfd: pytest.CaptureFixture[str]
) -> None:
    assert train("max_steps=1", "tf32=false")[0] == 0
    folder = str(only_run())
    tf32(True)
    assert main([folder, "evaluate=knn", "evaluate.baselines=[]"]) == 0
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.benchmark
    capfd.readouterr()
    assert main([folder, "evaluate=knn", "evaluate.knn.k=2000"]) == 2
    refusal = "ssl-bench: evaluate.knn.k=2000: set evaluate.knn.k to a number from 1 to 1347"
    assert capfd.readouterr().err.startswith(refusal)
