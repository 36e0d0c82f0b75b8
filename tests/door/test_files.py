"""Files that a run reads back: whatever they hold, a command carries on or names the file; no good file is lost."""

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench import files
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.launch.lock import Lock, locked
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.papers.cell_runs import value
from ssl_bench.record import checkpoint, results
from ssl_bench.record.metrics import Tracker
from ssl_bench.status.runs import finished
from ssl_bench.status.scan import Scan
from tests.conftest import SMALL, only_run
from tests.door.door import enter
from tests.ranks import train_on_two_ranks
from tests.status.folders import OUTPUTS, finish, make, make_grid, rows, running

Train = Callable[..., tuple[int, str]]
Variant = tuple[str, bytes]  # description, content
VARIANTS = 200
ODD = [b"", b"null", b"[]", b"3", b'"text"', b"{}", b"\xff\xfe", b"{" * 50, b"[" * 5000, b"1" * 5000]
ODD += [b'{"run_id": 1, "config": [], "metrics": {}, "seconds": "x"}', b'{"state": [], "code": {}}', b"NaN", b"1e999"]


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


def with_every_number(content: Any) -> list[Variant]:
    """JSON with each of its values, at any depth, replaced by values of other types."""

    def places(node: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        return [path, *(place for key in keys for place in places(node[key], (*path, key)))]

    made = []
    for place in places(content, ())[1:]:
        odd: Any
        for odd in (None, True, -1, 10**30, 1e308, float("nan"), "\ud800", "../../etc", [], {"a": [1]}, [[[]]]):
            copy = json.loads(json.dumps(content))
            node = copy
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = odd
            made.append((f"{place} = {odd!r}", json.dumps(copy).encode()))
    return made


def fuzzed(path: Path, read: Callable[[], object], extra: list[Variant] | None = None) -> int:
    """Call ``read`` with each variant of a file; return how often it answered."""
    content, answers = path.read_bytes(), 0
    for description, changed in [*variants(content, 7), *(("odd", odd) for odd in ODD), *(extra or [])]:
        path.write_bytes(changed)
        try:
            answers += read() is not None
        except Exception as error:
            raise AssertionError(f"{path.name}: {description}: {changed[:300]!r}") from error
    path.write_bytes(content)
    return answers


def scan() -> tuple[Any, ...]:
    """All that ``status`` and ``table`` read; the runs are too few for a cache."""
    entries, left = Scan(OUTPUTS).update(time.time())
    seen = [(entry.best, entry.command, entry.reason, entry.left, entry.run and entry.run.share) for entry in entries]
    done = [(run.seed, dict(run.config), value(run, "knn/top1"), value(run, "loss@2")) for run in finished(OUTPUTS)]
    return seen, left, done


@pytest.fixture
def run() -> Path:
    """Directory of a finished run without a checkpoint, beside one that is running in a grid."""
    folder = make("a/1", rows(3), seed=4)
    finish(folder, 33.5, knn_top1=0.5)
    with locked(make("a/2", rows(2), seed=5), False):
        (OUTPUTS / "a/3").mkdir()
        shutil.copytree(OUTPUTS / "a/2", OUTPUTS / "a/3", dirs_exist_ok=True)
    make_grid("1", ["seed=4", "seed=5"], {0: Outcome(State.DONE, folder="outputs/a/1"), 1: running("outputs/a/3")})
    return folder


def test_metrics_of_any_content_are_resumed(run: Path) -> None:
    path, config = run / "metrics.jsonl", {"tracking": {"mode": "off"}}
    content = path.read_bytes()

    def resume() -> list[Any]:
        changed = path.read_bytes()
        Tracker(run, config, "id", 4, {})
        kept = files.read_json_lines(path)
        assert all(row["step"] <= 4 for row in kept)
        aside = run / "metrics.jsonl.damaged-1"
        complete = changed.splitlines()[:-1]
        assert aside.exists() or len(kept) >= sum(b'"step": 2,' in row or b'"step": 4,' in row for row in complete) - 1
        if aside.exists():
            assert aside.read_bytes() == changed
            aside.unlink()
        return kept

    fuzzed(path, resume)
    assert path.read_bytes() == content
    assert len(resume()) == 2


def test_a_record_that_leads_out_of_the_results_names_no_run(run: Path) -> None:
    outside = Path("elsewhere/a/1")
    shutil.copytree(run, outside)
    for folder in ("../elsewhere/a/1", str(outside.absolute()), "../../../etc/passwd"):
        path = OUTPUTS / ".sweeps/1/jobs/0.json"
        path.write_text(json.dumps(Outcome(State.DONE, folder=folder).record()))
        entries, _ = Scan(OUTPUTS).update(time.time())
        assert {str(entry.run.folder) for entry in entries if entry.run} == {f"outputs/a/{n}" for n in (1, 2, 3)}


def test_a_lock_that_cannot_be_read_ends_with_its_lease(tmp_path: Path) -> None:
    for content in (b'{"pid": 3}', b'{"pid": "../../etc", "host": []}'):
        folder = tmp_path / str(len(content))
        (folder / "claims").mkdir(parents=True)
        (folder / "claims/1").write_bytes(content)
        waiting = Lock(folder, lease=0.05)
        assert str(waiting.take()).startswith("another process (process 0)")
        time.sleep(0.06)
        assert waiting.take() is None and waiting.number == 2
        waiting.release(False)


# ---- other things in place of a file


def no_file(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to nothing":
        path.symlink_to("nowhere")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["directory", "pipe", "link to nothing", "link to itself", "device"])
def test_what_is_no_file_is_not_read(run: Path, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("config.yaml", "metrics.jsonl", "command.txt", "failed.json", "claims/1"):
        (OUTPUTS / "a/3/claims").mkdir(exist_ok=True)
        no_file(OUTPUTS / "a/3" / name, kind)
    no_file(run / "results.json", kind)
    no_file(OUTPUTS / ".sweeps/1/jobs/0.json", kind)
    no_file(OUTPUTS / ".runs.json", kind)
    entries, _ = Scan(OUTPUTS).update(time.time())
    assert [(entry.run.path, entry.state) for entry in entries if entry.run] == [("a/1", "partial"), ("a/2", "partial")]
    for command in ("status", "status --json"):
        answer = enter(command, capfd)
        assert answer.code == 0 and "Traceback" not in answer.out + answer.err
    assert not results.finished(run) and files.read_json_lines(OUTPUTS / "a/3/metrics.jsonl") == []
    assert files.read_yaml(OUTPUTS / "a/3/config.yaml") is None
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        Tracker(OUTPUTS / "a/3", {"tracking": {"mode": "off"}}, "id", 0, {})
    results.set_damaged_aside(run)
    assert os.path.lexists(run / "results.json.damaged-1") and not os.path.lexists(run / "results.json")
    checkpoints = run / "checkpoints"
    checkpoints.mkdir()
    no_file(checkpoints / "last.pt", kind)
    with pytest.raises(RunError, match=r"last\.pt cannot be read \(.*\): remove .*checkpoints to start again"):
        checkpoint.load(checkpoints, "id")


def test_what_is_no_plain_data_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a: &a [x, x]\nb: &b [*a, *a]\n")
    assert files.read_yaml(path) == {"a": ["x", "x"], "b": [["x", "x"]] * 2}
    for text in ["? [a]\n: b", "a: 9999-99-99", "!!python/object/apply:os.system [touch hacked]", "{a: ["]:
        path.write_text(text)
        assert files.read_yaml(path) is None, text
    assert not Path("hacked").exists()
    path.write_text('1\n"012\n2\n"xx"')
    assert files.read_json_lines(path) == [1, 2, "xx"]
    with pytest.raises(OSError, match="File too large"):
        files.read_bytes(path, 5)


# ---- checkpoints


STATE: dict[str, Any] = {"run_id": "id", "step": 3, "method": {"weight": torch.arange(200.0)}}


def test_a_checkpoint_with_any_damage_is_refused_or_replaced_by_the_previous_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, STATE | {"step": 2})
    checkpoint.save(folder, STATE)
    content = (folder / "last.pt").read_bytes()
    steps = {2: 0, 3: 0}
    for description, changed in [*variants(content, 3), *(("odd", odd) for odd in ODD)]:
        (folder / "last.pt").write_bytes(changed)
        caplog.clear()
        state = checkpoint.load(folder, "id")
        assert state is not None and torch.equal(state["method"]["weight"], STATE["method"]["weight"]), description
        steps[state["step"]] += 1
        assert len(caplog.messages) == (state["step"] == 2)
        assert "weights_only" not in caplog.text and all("\n" not in message for message in caplog.messages)
    assert steps[2] > 350  # a change in the padding of the archive has no effect


def test_no_checkpoint_runs_code_and_torchs_advice_is_not_repeated(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.mkdir, ("hacked",)

    for state in (Hostile(), STATE | {"hook": Hostile()}, [1], {"step": 3}, {"run_id": 3}, "text"):
        torch.save(state, tmp_path / "last.pt")
        with pytest.raises(RunError, match=r"last\.pt cannot be read \([^)]*\): remove .* to start again") as refusal:
            checkpoint.load(tmp_path, "id")
        assert "weights_only" not in str(refusal.value) and "\n" not in str(refusal.value)
    assert not Path("hacked").exists()


def test_a_checkpoint_from_before_its_renaming_is_used(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, STATE)
    (tmp_path / "last.pt").rename(tmp_path / "next.pt")
    (tmp_path / "previous.pt").write_bytes(b"damaged")
    state = checkpoint.load(tmp_path, "id")
    assert state is not None and state["step"] == 3


# ---- whole commands

TRAIN = ["max_steps=2", "batch_size.size=64", "checkpoint.every=1", "evaluate=knn", "name=r"]


@pytest.mark.slow
def test_a_damaged_result_is_set_aside_and_the_run_goes_on(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(*TRAIN)[0] == 0
    run = only_run()
    good, rows_before = results.read(run), (run / "metrics.jsonl").read_bytes()
    assert good is not None
    for number, content in enumerate((b'{"metrics": {"knn', b"[]", json.dumps(good | {"run_id": "other"}).encode()), 1):
        (run / "results.json").write_bytes(content)
        assert enter("status --json", capfd).code == 0
        code, printed = train(*TRAIN)
        sentence = (
            f"results.json is no result of this run: it is now results.json.damaged-{number}, and the run goes on"
        )
        assert code == 0 and sentence in printed and "already done" not in printed
        assert "resuming at step 2 of 2" in printed
        assert (run / f"results.json.damaged-{number}").read_bytes() == content
        again = results.read(run)
        assert again is not None and again["metrics"] == good["metrics"]
        assert (run / "metrics.jsonl").read_bytes() == rows_before  # the evaluation's row is not repeated
    assert "already done" in train(*TRAIN)[1]


def test_a_result_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Any, largest: int = 0) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "results.json").write_text("{}")
    monkeypatch.setattr(files, "read_bytes", denied)
    with pytest.raises(
        ConfigError, match=r"results\.json: Permission denied; make it readable, or remove it to compute"
    ):
        results.set_damaged_aside(tmp_path)
    assert (tmp_path / "results.json").read_text() == "{}"


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": {}}, "does not fit this run (RuntimeError: "),
        ({"optimizer": {"state": {}, "param_groups": []}}, "does not fit this run (ValueError: "),
        ({"step": "two"}, "does not fit this run (ValueError: "),
        ({"step": -1}, "does not fit this run (ValueError: "),
        ({"ranks": [{}]}, "does not fit this run (KeyError: "),
        ({"ranks": 3}, "does not fit this run (TypeError: "),
        ({"seconds": float("nan")}, "does not fit this run (ValueError: "),
        ({"seconds": None}, "does not fit this run (TypeError: "),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    train: Train, change: dict[str, Any], sentence: str, stopped_run: dict[str, bytes]
) -> None:
    run = restore(stopped_run)
    path = run / "checkpoints/last.pt"
    state = torch.load(path, weights_only=True)
    torch.save(state | change, path)
    before = path.read_bytes()
    code, printed = train(*TRAIN)
    assert code == 1 and "Traceback" not in printed
    (line,) = (line for line in printed.splitlines() if line.startswith("ssl-bench: "))
    assert sentence in line and line.endswith(f"remove {run / 'checkpoints'} to start again")
    assert path.read_bytes() == before


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
@pytest.mark.parametrize("name", ["checkpoints/last.pt", "metrics.jsonl", "config.yaml", "command.txt", "train.log"])
def test_a_run_with_a_damaged_file_goes_on_or_names_it(train: Train, name: str, stopped_run: dict[str, bytes]) -> None:
    for description, content in variants(stopped_run[str(restore(stopped_run) / name)], 11, 2):
        run = restore(stopped_run)
        (run / "results.json").unlink(missing_ok=True)
        (run / name).write_bytes(content)
        code, printed = train(*TRAIN)
        assert "Traceback" not in printed, (description, printed)
        assert code == 0 or (code == 1 and "to start again" in printed), (description, printed)
        assert enter_quietly("status --json") == 0
        for extra in run.glob("*.damaged-*"):
            extra.unlink()


def enter_quietly(command: str) -> int:
    from ssl_bench.commands.status import main

    return main(command.split()[1:])


@pytest.mark.slow
def test_two_ranks_set_a_damaged_result_aside(train: Train) -> None:
    arguments = [*SMALL, *TRAIN, "devices=2"]
    assert train_on_two_ranks(*arguments)[0] == 0
    run = only_run()
    (run / "results.json").write_text("{")
    code, printed = train_on_two_ranks(*arguments)
    assert code == 0 and "it is now results.json.damaged-1" in printed and results.finished(run)


def test_a_grid_of_other_content_is_no_grid() -> None:
    folder = make_grid("1", ["seed=1"], {})
    content = json.loads((folder / "grid.json").read_text())
    changes: list[dict[str, Any]] = [{"started": float("inf")}, {"started": float("nan")}, {"pid": 10**400}]
    for change in [*changes, {"pid": -1}, {"runs": 3}, {"command": 3}]:
        (folder / "grid.json").write_text(json.dumps(content | change))
        assert Scan(OUTPUTS).update(time.time())[0] == []
