"""Files that a run reads back: whatever they hold, a command carries on or names the file; no good file is lost."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench import files
from ssl_bench.errors import RunError
from ssl_bench.record import checkpoint, runs
from ssl_bench.record.dashboard import Tracker
from ssl_bench.record.runs import read_rows
from tests.conftest import SMALL, only_run
from tests.door.door import enter
from tests.results.folders import make, rows

Train = Callable[..., tuple[int, str]]
Variant = tuple[str, bytes]  # description, content
VARIANTS = 60
ODD = [b"", b"null", b"[]", b"3", b'"text"', b"{}", b"\xff\xfe", b"[" * 5000, b"NaN"]


def variants(content: bytes, seed: int, count: int = VARIANTS) -> list[Variant]:
    """``content`` cut at random places, and with up to eight bytes changed each."""
    generator = random.Random(seed)
    made = [(f"seed {seed}, cut at {at}", content[:at]) for at in generator.choices(range(len(content)), k=count)]
    for number in range(count):
        changed = bytearray(content)
        for _ in range(generator.randint(1, 8)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        made.append((f"seed {seed}, change {number}", bytes(changed)))
    return made


def test_metrics_of_any_content_are_resumed() -> None:
    """Every complete row up to the step of the checkpoint is kept."""
    path = make("a/1", rows(3)) / "metrics.jsonl"
    content = path.read_bytes()
    for description, changed in [*variants(content, 7), *(("odd", odd) for odd in ODD), ("whole", content)]:
        path.write_bytes(changed)
        whole = [row["step"] for row in read_rows(path) if row["step"] <= (4 if "loss" in row else 0)]
        Tracker(path.parent, {"tracking": {"mode": "off"}}, "id", 4, {})
        assert [row["step"] for row in files.read_json_lines(path)] == whole, description
    assert len(whole) == 2


# ---- checkpoints


STATE: dict[str, Any] = {"run_id": "id", "step": 3, "method": {"weight": torch.arange(200.0)}}


def test_a_checkpoint_with_any_damage_is_refused_by_name_with_the_command_that_begins_anew(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, STATE)
    path = tmp_path / checkpoint.FILE
    content, refused = path.read_bytes(), 0
    for description, changed in [*variants(content, 3), *(("odd", odd) for odd in ODD)]:
        path.write_bytes(changed)
        try:
            state = checkpoint.load(tmp_path, "id")
        except RunError as error:
            assert str(path) in str(error) and f"`rm {path}`" in str(error) and "\n" not in str(error), description
            assert "weights_only" not in str(error) and path.read_bytes() == changed
            refused += 1
        else:
            assert state is not None and torch.equal(state["method"]["weight"], STATE["method"]["weight"]), description
    assert refused > 100  # a change in the padding of the archive has no effect


def test_no_checkpoint_runs_code_and_torchs_advice_is_not_repeated(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.mkdir, ("hacked",)

    for state in (Hostile(), STATE | {"hook": Hostile()}, [1], {"step": 3}, {"run_id": 3}, "text"):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        torch.save(state, tmp_path / checkpoint.FILE)
        with pytest.raises(RunError, match=r"last\.pt.*`rm ") as refusal:
            checkpoint.load(tmp_path, "id")
        assert "weights_only" not in str(refusal.value) and "\n" not in str(refusal.value)
    assert not Path("hacked").exists()


# ---- whole commands

TRAIN = ["max_steps=2", "batch_size.size=64", "checkpoint.every=1", "evaluate=knn", "name=r"]


@pytest.mark.slow
def test_a_run_with_a_damaged_result_goes_on(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(*TRAIN)[0] == 0
    run = only_run()
    good, rows_before = runs.read_results(run), (run / "metrics.jsonl").read_bytes()
    assert good is not None
    for content in (b'{"metrics": {"knn', b"[]", json.dumps(good | {"run_id": "other"}).encode()):
        (run / "results.json").write_bytes(content)
        assert enter("status --json", capfd).code == 0
        code, printed = train(*TRAIN)
        assert code == 0 and "already done" not in printed
        again = runs.read_results(run)
        assert again is not None and again["metrics"] == good["metrics"]
        assert (run / "metrics.jsonl").read_bytes() == rows_before  # the evaluation's row is not repeated
    assert "already done" in train(*TRAIN)[1]


def test_an_evaluation_that_is_repeated_has_one_row(tmp_path: Path) -> None:
    config = {"tracking": {"mode": "off"}}
    first = Tracker(tmp_path, config, "id", 0, {})
    for row in ({"loss": 1.0, "seconds": 1.0}, {"knn/top1": 0.2}):
        first.row(2, row)
    for row in ({"loss": 1.0, "seconds": 1.0}, {"knn/top1": 0.3}):
        first.row(4, row)
    steps = {0: [2, 4], 2: [2, 2, 4], 4: [2, 2, 4, 4]}
    for evaluated_step in (4, 2, 0):
        Tracker(tmp_path, config, "id", 4, {}, evaluated_step)
        kept = [row["step"] for row in files.read_json_lines(tmp_path / "metrics.jsonl")]
        assert kept == steps[evaluated_step]


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of a run that lost its results."""
    from ssl_bench.train import main
    from tests.conftest import no_pictures

    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("stopped"))
    try:
        with no_pictures():
            assert main([*SMALL, *TRAIN]) == 0
        return {
            str(path): path.read_bytes()
            for path in only_run().rglob("*")
            if path.is_file() and path.name != "results.json"
        }
    finally:
        os.chdir(before)


def restore(content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)
    return only_run()


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_is_refused(train: Train, stopped_run: dict[str, bytes]) -> None:
    path = restore(stopped_run) / "checkpoints/last.pt"
    state = torch.load(path, weights_only=True)
    changes: list[dict[str, Any]] = [{"method": {}}, {"step": -1}, {"ranks": [{}]}, {"seconds": None}]
    for change, error in zip(changes, ["RuntimeError", "ValueError", "KeyError", "TypeError"], strict=True):
        torch.save(state | change, path)
        before = path.read_bytes()
        code, printed = train(*TRAIN)
        assert code == 1 and "Traceback" not in printed
        (line,) = (line for line in printed.splitlines() if line.startswith("ssl-bench: "))
        assert error in line and f"`rm {path}`" in line
        assert path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["checkpoints/last.pt", "metrics.jsonl", "config.yaml"])
def test_a_run_with_a_damaged_file_goes_on_or_names_it(
    train: Train, name: str, stopped_run: dict[str, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    for description, content in variants(stopped_run[str(restore(stopped_run) / name)], 11, 1):
        run = restore(stopped_run)
        (run / "results.json").unlink(missing_ok=True)
        (run / name).write_bytes(content)
        code, printed = train(*TRAIN)
        assert "Traceback" not in printed, (description, printed)
        assert code == 0 or (code == 1 and "`rm " in printed), (description, printed)
        assert enter("status --json", capfd).code == 0
