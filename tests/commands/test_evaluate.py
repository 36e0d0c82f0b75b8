"""A trained run is evaluated again: the same metrics, TF32 as in the run, and refusals."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.commands.evaluate import main
from ssl_bench.record import runs
from tests.conftest import only_run
from tests.door.door import refuses
from tests.results.folders import claim_elsewhere

Train = Callable[..., tuple[int, str]]


def test_a_trained_run_is_evaluated_again_with_the_same_metrics(
    trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = trained
    before = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(before | {"metrics": {}, "evaluations": []}))
    shutil.rmtree("outputs/.baselines")
    assert main([str(run), "evaluate=[knn,linear]", "evaluate.linear.epochs=5"]) == 0
    assert f"\n{run}\n" in capfd.readouterr().out  # and not how long the training took
    again = json.loads((run / "results.json").read_text())["metrics"]
    assert {name: again[name] for name in before["metrics"]} == before["metrics"] and "linear/top1" in again
    refuses(f"evaluate {run} dataset.root=x", "dataset.root device evaluate paths.data", capfd)
    refuses(f"evaluate {run} seed=1", "seed", capfd)
    shutil.rmtree(run / "checkpoints")
    refuses(f"evaluate {run} evaluate=geometry", f"checkpoints/last.pt {run}/results.json", capfd, 1)
    (run / "results.json").unlink()
    refuses(f"evaluate {run}", f"{run}", capfd, 1)


def test_a_run_is_named_by_its_run_id_and_keeps_its_evaluators_and_the_settings_of_its_dataset(
    train: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train("max_steps=1", "dataset.knn_k=7", "evaluate=knn", "evaluate.baselines=[]")[0] == 0
    run = only_run()

    def evaluators() -> dict[str, Any]:
        return {
            each["evaluator"]: each["settings"]
            for each in json.loads((run / "results.json").read_text())["evaluations"]
        }

    assert main([run.name, "evaluate.knn.temperature=0.2"]) == 0
    assert (evaluators().keys(), evaluators()["knn"]["temperature"]) == ({"knn"}, 0.2)
    claim_elsewhere(run, "node7", silent=0)  # another process at work on the run: this one waits for it
    threading.Timer(1.0, (run / runs.LEASE).unlink).start()
    assert main([run.name, "evaluate=[knn_val]"]) == 0 and evaluators()["knn_val"]["k"] == 7
    refuses(f"evaluate {run.name} evaluate.linear.epochs=2", "evaluate.linear.epochs knn", capfd)


def test_tf32_is_set_as_in_the_run_and_a_bad_value_is_refused(
    train: Train, tf32: Callable[[bool], None], capfd: pytest.CaptureFixture[str]
) -> None:
    assert train("max_steps=1", "tf32=false")[0] == 0
    folder = str(only_run())
    tf32(True)
    assert main([folder, "evaluate=knn", "evaluate.baselines=[]"]) == 0
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.benchmark
    refuses(f"evaluate {folder} evaluate=knn evaluate.knn.k=2000", "evaluate.knn.k 1 1347", capfd)


def test_many_runs_are_evaluated_by_one_command(grid: list[Path]) -> None:
    asked = ["evaluate=knn", "evaluate.baselines=[]", "evaluate.knn.k=3"]
    assert main(["loss=dcl", *asked]) == 0
    found = [json.loads((run / "results.json").read_text()) for run in grid]
    by_loss = {(content["config"]["choices"]["loss"], "knn[k=3]/top1" in content["metrics"]) for content in found}
    assert by_loss == {("dcl", True), ("infonce", False)}
    assert main(["default", *asked]) == 0
    found = [json.loads((run / "results.json").read_text()) for run in grid]
    assert len(found) == 4 and all("knn[k=3]/top1" in content["metrics"] for content in found)


@pytest.mark.parametrize("which", [0, 1])
def test_a_run_that_cannot_be_evaluated_is_named_and_the_others_are_evaluated(
    grid: list[Path], capfd: pytest.CaptureFixture[str], which: int
) -> None:
    """Whichever comes first, the exit code is that of the lost one."""
    lost, other = grid[which], grid[1 - which]
    (lost / "checkpoints" / "last.pt").unlink()
    for run in grid[2:]:
        shutil.rmtree(run)
    assert main(["default", "evaluate=knn", "evaluate.baselines=[]", "evaluate.knn.k=3"]) == 1
    assert str(lost) in capfd.readouterr().err
    assert "knn[k=3]/top1" in json.loads((other / "results.json").read_text())["metrics"]
