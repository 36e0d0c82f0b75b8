"""A run is a training and its evaluations: what is there is not computed again, whichever command asks for it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ssl_bench import load
from ssl_bench.commands.evaluate import main
from ssl_bench.errors import RunError
from ssl_bench.files import read_json, write_json
from ssl_bench.record import evaluations
from tests.conftest import SMALL, only_run, stopped_at
from tests.door.door import refused, refuses

Train = Callable[..., tuple[int, str]]
KNN = ["evaluate=knn", "evaluate.baselines=[init,raw]"]
STEADY = ["optimizer.schedule=constant", "optimizer.warmup_epochs=2", *KNN]
FEW = ["dataset.size=12", "dataset.share=0.2", "batch_size.size=48"]  # five steps an epoch


def results(run: Path | None = None) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(((run or only_run()) / "results.json").read_text())
    return content


def weights(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(run / "checkpoints/last.pt", weights_only=True)
    return {"step": state["step"], **state["method"]}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = ((one[name], other[name]) for name in one)
    return one.keys() == other.keys() and all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)


def test_another_evaluation_trains_nothing_and_computes_what_is_missing(trained: Path, train: Train) -> None:
    first, saved = results(), (only_run() / "checkpoints/last.pt").stat().st_mtime_ns
    code, printed = train("max_steps=3", *KNN, "evaluate.knn.k=5", "log_every=7", "evaluate.knn.temperature=1e-1")
    assert code == 0 and "step 3/3" not in printed
    second = results()
    more = ["evaluate=[linear,knn]", "evaluate.linear.epochs=2", "evaluate.baselines=[init]"]
    assert train("max_steps=3", *more)[0] == 0
    third = results()
    assert (only_run() / "checkpoints/last.pt").stat().st_mtime_ns == saved
    for before, after in ((first, second), (second, third)):
        assert after["metrics"].items() > before["metrics"].items() and after["facts"] == before["facts"]
        assert after["config"]["log_every"] == before["config"]["log_every"] == 1
        assert (after["seconds"], after["environment"]) == (before["seconds"], before["environment"])
    new = third["metrics"].keys() - first["metrics"].keys()
    assert {"knn[k=5]/top1", "knn[k=5]_raw/top1", "linear/top1", "linear_init/top1"} <= new
    assert "linear_raw/top1" not in new
    assert [len(content["evaluations"]) for content in (first, second, third)] == [3, 6, 8]
    rows = [json.loads(line) for line in (only_run() / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1].items() >= third["metrics"].items()
    assert rows[-1]["evaluations"] == list(dict.fromkeys(map(evaluations.mark, third["evaluations"])))
    code, printed = train("max_steps=3", *KNN, "evaluate.knn.k=5", "evaluate.knn.temperature=1e-1")
    assert code == 0 and printed.startswith(("\u250f", "already done"))
    shown = f"{100 * third['metrics']['knn[k=5]/top1']:.1f}%"
    assert shown in printed and results() == third


def test_a_baseline_is_computed_once_and_a_training_is_found_under_another_name(trained: Path, train: Train) -> None:
    baselines = sorted(Path("outputs/.baselines").iterdir())
    assert len(baselines) == 2
    for path in baselines:
        write_json(path, dict.fromkeys(read_json(path), 0.125))
    code, printed = train("max_steps=3", *KNN, "name=new")
    assert code == 0 and f"already done: {trained}" in printed
    assert train("max_steps=3", *KNN, "evaluate.knn.k=7", "name=new")[0] == 0
    assert only_run() == trained and {"knn/top1", "knn[k=7]/top1"} <= results()["metrics"].keys()
    assert results()["name"] == results()["config"]["name"] == "default"  # a reader refuses two names
    assert train("max_steps=3", *KNN, "loss=dcl", "name=other")[0] == 0
    other = results(next(Path("outputs/other").iterdir()))["metrics"]
    assert other["knn_init/top1"] == other["knn_raw/top1"] == 0.125 != other["knn/top1"]


def test_a_refused_command_leaves_a_run_as_it_was(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    from ssl_bench.evaluate.knn import KNN as Evaluator

    def leaves(says: str, *arguments: str) -> None:
        before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
        code, printed = train(*STEADY, *FEW, *arguments)
        assert code == 1 and says in printed, printed
        assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before

    assert train("epochs=2", *STEADY, *FEW)[0] == 0
    run = only_run()
    leaves("epochs to 2 ", "epochs=1", "evaluate.knn.k=3")
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "run", lambda *_: 1 / 0)
        leaves("ZeroDivisionError", "epochs=2", "evaluate.knn.k=3")
    last = run / "checkpoints/last.pt"
    whole = last.read_bytes()
    last.unlink()
    leaves(f"ssl-bench: {run} ", "epochs=3")
    last.write_bytes(b"")
    leaves("last.pt ", "epochs=3")
    torch.save({"run_id": "other", "step": 1, "method": {}}, last)
    leaves(" other", "epochs=3")
    last.write_bytes(whole)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"epochs": 1}))  # as earlier versions left it
    assert main([str(run), "evaluate.knn.k=3"]) == 0 and "knn[k=3]/top1" in results()["metrics"]
    with stopped_at(15):
        assert train("epochs=4", *STEADY, *FEW)[0] == 143
    with refused("15 10", RunError):
        load(run)


def test_a_stopped_run_goes_on_as_an_undisturbed_one(train: Train) -> None:
    """Also with random numbers of its network."""
    dropping = ["backbone=timm", "backbone.name=test_vit", "backbone.args.patch_size=4", "backbone.args.depth=2"]
    command = ["epochs=3", *SMALL[1:], *dropping, "backbone.args.drop_path_rate=0.9", *KNN, *FEW]
    assert train(*command, small=False)[0] == 0
    whole = only_run()
    expected, trained = results(whole), weights(whole)
    shutil.rmtree("outputs")
    for step in (5, 12):
        with stopped_at(step):
            code, printed = train(*command, small=False)
        assert code == 143 and "SIGTERM" in printed and "Traceback" not in printed
    run = only_run()
    assert run.name == whole.name and not (run / "results.json").exists()
    assert train(*command, small=False)[0] == 0
    assert results(run)["metrics"] == expected["metrics"] and equal(weights(run), trained)


def moments(run: Path) -> int:
    """How many weights have a state of the optimiser in the checkpoint."""
    state: dict[str, Any] = torch.load(run / "checkpoints/last.pt", weights_only=True)
    return len(state.get("optimizer", {}).get("state", {}))


def test_readers_take_the_last_checkpoint_or_nothing(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    assert train("epochs=2", "checkpoint.every=1", *KNN, *FEW)[0] == 0
    run = only_run()
    first, trained, last = results(), weights(run), run / "checkpoints/last.pt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    names = f"{last} {run}/results.json"
    with refused(names, RunError):
        load(run)
    refuses(f"export {run}", names, capfd, 1)
    refuses(f"evaluate {run} evaluate.knn.k=3", names, capfd, 1)
    last.unlink()
    (run / "results.json").unlink()
    assert train("epochs=2", "checkpoint.every=1", *KNN, *FEW)[0] == 0
    assert equal(weights(run), trained) and results()["metrics"] == first["metrics"]
    torch.save(torch.load(last, weights_only=True) | {"step": 5}, last)  # as an older copy of the file
    with refused(f"{names} 5 10", RunError):
        load(run)
    last.unlink()
    refuses(f"evaluate {run} evaluate.knn.k=3", f"{run} checkpoints/last.pt", capfd, 1)


def test_a_finished_run_has_one_checkpoint_with_networks_only_and_is_as_good(train: Train) -> None:
    words = ["epochs=2", *KNN, *FEW, "diagnostics.gradient_snr=0.9"]
    with stopped_at(6):
        assert train(*words)[0] == 143
    run = only_run()
    assert moments(run) > 0
    assert train(*words)[0] == 0
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["last.pt"]
    state, first = torch.load(run / "checkpoints/last.pt", weights_only=True), results(run)
    assert moments(run) == 0 and not {"optimizer", "scaler", "snr"} & state.keys()
    assert all(value.isfinite().all() for value in load(run).state_dict().values())
    assert main([str(run), "evaluate=[knn,geometry]", "evaluate.knn.k=5"]) == 0
    assert results(run)["metrics"].items() > first["metrics"].items()
    assert "already done" in train(*words)[1]
    (run / "results.json").unlink()  # as a kill after the last step leaves it
    code, printed = train(*words)
    assert code == 0 and "step 10/10" not in printed and results(run)["metrics"] == first["metrics"]
    assert equal(weights(run), {"step": state["step"], **state["method"]})
    assert train("max_steps=1", f"init={run}", "name=next")[0] == 0


@pytest.mark.parametrize("change", [{"optimizer": None}, {"pruned": True}])
def test_a_checkpoint_with_networks_only_is_not_trained_on(train: Train, change: dict[str, Any]) -> None:
    """Where a run can go on to more epochs, its own one is whole; ``ssl-bench prune`` of version 0.4 left others."""
    assert train("epochs=1", *STEADY[:2], *FEW)[0] == 0
    run = only_run()
    last = run / "checkpoints/last.pt"
    assert moments(run) > 0
    state = torch.load(last, weights_only=True) | change
    torch.save({key: value for key, value in state.items() if value is not None}, last)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"halt_at": None}))  # a key of that version
    before = last.read_bytes(), (run / "config.yaml").read_bytes()
    code, printed = train("epochs=2", *STEADY[:2], *FEW)
    assert code == 1 and f"`rm {last} {run}/results.json`" in printed
    assert (last.read_bytes(), (run / "config.yaml").read_bytes()) == before
    assert main([str(run), "evaluate=knn"]) == 0


def test_a_constant_schedule_goes_on_from_a_shorter_training(train: Train) -> None:
    assert train("epochs=3", *STEADY, *FEW)[0] == 0
    whole = only_run()
    expected, trained = results(whole), weights(whole)
    shutil.rmtree("outputs")
    assert train("epochs=1", *STEADY, *FEW)[0] == 0
    short = results()["metrics"]
    assert train("epochs=3", *STEADY, *FEW)[0] == 0
    assert only_run().name == whole.name and equal(weights(only_run()), trained)
    content = results()
    assert content["metrics"] == expected["metrics"]
    config = content["config"]
    assert evaluations.of(content["evaluations"], config | {"epochs": 1}) == short
    code, printed = train("epochs=1", *STEADY, *FEW)
    assert code == 0 and f"{100 * short['knn/top1']:.1f}%" in printed
    code, printed = train("-m", "epochs=1", *STEADY, *FEW, "seed=0,1", "loss=infonce", "optimizer.nesterov=false")
    other = next(each for path in Path("outputs").glob("default/*") if (each := results(path))["config"]["seed"] == 1)
    assert f"{50 * (short['knn/top1'] + other['metrics']['knn/top1']):.2f} \u00b1" in printed
    code, printed = train("epochs=1", *STEADY, *FEW, "evaluate.knn.k=3")
    assert code == 1 and "epochs to 3 " in printed
