"""Damaged files of a results folder: a command carries on or names the file, and no number is a wrong one.

Files are cut short or hold anything, and each field is replaced by each kind of value. Healthy runs keep their numbers;
a run that cannot be read is counted as damaged, with what is wrong in it, and has no numbers.
"""

import itertools
import json
import math
import os
import shlex
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ssl_bench import files
from ssl_bench.config.compose import load
from ssl_bench.errors import RunError
from ssl_bench.record import checkpoint, runs
from ssl_bench.record.dashboard import Tracker
from ssl_bench.record.runs import read_rows
from ssl_bench.train import main
from ssl_bench.training.finished import read_config
from tests.conftest import SMALL, no_pictures
from tests.door.door import enter, refuses
from tests.door.hostile import MARKER, Payload, variants
from tests.results.folders import make, rows

RUN = [o for o in SMALL if not o.startswith("evaluate")] + ["dataset=scattered_digits", "max_steps=1"]
RUN += ["evaluate=[knn]", "evaluate.knn.k=5"]
ONE, GRID = [*RUN, "name=r", "seed=7"], [*RUN, "-m", "name=g", "seed=0,1", "loss=dcl,infonce"]
TABLE = {"title": "t", "metric": "knn/top1", "set": RUN, "seeds": [0, 1], "columns": {"simclr": []}}
TABLE["rows"] = {"digits": {"values": [50.0]}}
PAPER: dict[str, Any] = {"paper": "tiny", "title": "t", "cite": "nobody", "tables": {"table1": TABLE}}
MISSING = object()  # in place of a value: the field is removed
VALUES = [None, True, 7, -3, math.nan, math.inf, "text", "", [1], [[1]], {"a": 1}, MISSING]
# Of how many changes of results.json, config.yaml, metrics.jsonl and grid.json one is tried: another one on each day.
SHARES = [
    pytest.param((56, 88, 136, 56), id="some"),
    pytest.param((7, 11, 17, 7), id="a_part", marks=pytest.mark.slow),
    pytest.param((1, 1, 1, 1), id="all", marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)]),
]
Capture = pytest.CaptureFixture[str]


def environment(context: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the caches and the papers be those of the folder."""
    context.chdir(folder)
    context.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    context.setenv("SSL_BENCH_PAPERS", str(folder / "papers"))
    files.SAID.clear()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, one that failed, a grid of two losses and two seeds, and a paper whose table they fill."""
    folder = tmp_path_factory.mktemp("whole")
    with no_pictures(), pytest.MonkeyPatch.context() as context:
        environment(context, folder)
        Path("papers").mkdir()
        Path("papers/tiny.yaml").write_text(yaml.safe_dump(PAPER))
        for words in (ONE, GRID, [*RUN, "name=failed", "seed=8"]):
            assert main(words) == 0
        (failed,) = Path("outputs/failed").iterdir()
        (failed / "results.json").unlink()
        files.write_json(failed / "failed.json", {"reason": "no", "detail": ""})
    return folder


@pytest.fixture
def victim(whole: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of one of the runs of the grid, in a copy of them."""
    shutil.copytree(whole, "here")
    environment(monkeypatch, Path("here").absolute())
    return sorted(path for path in Path("outputs/g").iterdir() if path.is_dir())[1]


def entered(command: str, capfd: Capture) -> tuple[int, str]:
    """The exit code of a command, which must end in sentences, and what it prints."""
    with no_pictures():
        answer = enter(command, capfd)
    lines = answer.err.splitlines()
    assert answer.code in (0, 1, 2) and "Traceback" not in answer.out, (command, answer)
    assert all(line.startswith("ssl-bench: ") for line in lines) and len(lines) <= 3, (command, answer)
    assert answer.code == 0 or lines, (command, answer)
    return answer.code, answer.out


# ---- one damage and every command

# Files that are read back, with the share of each that is left, or a field with another value.
DAMAGES: list[tuple[str, Any]] = [("r/*/results.json", 0.5), ("r/*/config.yaml", 0.0), ("r/*/metrics.jsonl", 0.5)]
DAMAGES += [("r/*/results.json", (("config", "choices"), [1]))]
RARER: list[tuple[str, Any]] = [("r/*/results.json", (("config", "epochs"), "ten")), ("g/*/results.json", 0.5)]
RARER += [("r/*/results.json", (("config", key), v)) for key, v in (("dataset", MISSING), ("evaluate", 3))]
RARER += [("r/*/results.json", 0.0), ("r/*/config.yaml", 0.5), ("failed/*/failed.json", 0.5)]
RARER += [(".baselines/*.json", 0.5), ("*/grid-*.json", 0.5), ("../cache/ssl_bench/compositions*.json", 0.5)]


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize(
    ("name", "damage"), [*DAMAGES, *(pytest.param(*each, marks=pytest.mark.slow) for each in RARER)]
)
def test_a_damaged_file_is_named_or_made_again(name: str, damage: Any, capfd: Capture) -> None:
    contents = [json.loads(path.read_bytes()) for path in Path().glob("*/*/*/results.json")]
    truth = {content["run_id"]: content["metrics"] for content in contents}
    of_loss = [truth[content["run_id"]] for content in contents if content["config"]["choices"]["loss"] == "infonce"]
    entered("status --json", capfd), entered("table tiny/table1 --format json", capfd)  # which fill the cache
    runs._identity.cache_clear()
    path = sorted(Path("outputs").glob(name))[0]
    content = path.read_bytes()
    path.write_bytes(
        content[: int(damage * len(content))]
        if isinstance(damage, float)
        else json.dumps(changed(json.loads(content), *damage)).encode()
    )
    (run,) = Path("outputs/r").iterdir()
    if ".baselines" in name:  # which only a run without results reads
        (run / "results.json").unlink()

    code, out = entered("status --json", capfd)
    assert code == 0
    for record in json.loads(out):
        if record["state"] == "finished":
            assert record["best"].items() <= truth[Path(record["folder"]).name].items()
    code, out = entered("table tiny/table1 --format json", capfd)
    if code == 0:
        seeds = [100 * metrics["knn/top1"] for metrics in of_loss]
        (cell,) = json.loads(out)["cells"]
        possible = [statistics.mean(some) for n in (1, 2, 3) for some in itertools.combinations(seeds, n)]
        assert cell["mean"] in (None, *map(pytest.approx, possible))
    for command in ("status --csv", "report", "reproduce tiny/table1 --dry-run", f"evaluate {run}", "compare g"):
        entered(command, capfd)
    entered(f"export {run} --out x", capfd)

    grid = name.startswith(("g/", "*/grid"))
    again = shlex.join(["train", *(GRID if grid else ONE)])
    if entered(again, capfd)[0]:  # the file is in the way, and was named: without it the run goes on
        path.unlink()
        assert entered(again, capfd)[0] == 0
    for trained in filter(Path.is_dir, Path("outputs/g" if grid else "outputs/r").iterdir()):
        results = runs.read_results(trained)
        assert results is not None and truth[trained.name].items() <= results["metrics"].items()


# ---- each field with each kind of value


def fields(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields in a node, of a list the first one."""
    items = node.items() if isinstance(node, dict) else enumerate(node[:1]) if isinstance(node, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from fields(value, (*at, key))


def changed(node: Any, path: Sequence[Any], value: Any) -> Any:
    """A copy of a node with another value at a path."""
    copy = json.loads(json.dumps(node))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


def numbers(capfd: Capture) -> tuple[dict[str, Any], str]:
    """The records of ``status --json`` by the names of the runs' directories, and what it says beside them.

    Without the labels, which say what distinguishes a run from the others, and the overrides, which a grid's file has.
    """
    files.SAID.clear()
    answer = enter("status --json", capfd)
    assert answer.code == 0
    records = [{**each, "label": "", "overrides": ""} for each in json.loads(answer.out) if each["folder"]]
    return {Path(record["folder"]).name: record for record in records}, answer.err


def as_lines(content: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in content)


@pytest.mark.parametrize("every", SHARES)
@pytest.mark.parametrize("finished", [True, False])
def test_a_field_of_another_kind_damages_its_run_alone(
    every: tuple[int, ...], finished: bool, victim: Path, capfd: Capture
) -> None:
    if not finished:
        (victim / "results.json").unlink()
    kept, said = numbers(capfd)
    assert said == ""
    (grid,) = Path("outputs").glob("*/grid-*.json")
    written: list[tuple[Path, Callable[[Any], str], int]] = [(victim / "results.json", json.dumps, every[0])] * finished
    written += [(victim / "config.yaml", yaml.safe_dump, every[1]), (victim / "metrics.jsonl", as_lines, every[2])]
    for path, write, share in [*written, (grid, json.dumps, every[3])]:
        before = path.read_text()
        lines = before.splitlines() if path.suffix == ".jsonl" else ()
        content = [json.loads(line) for line in lines] or yaml.safe_load(before)
        every_change = list(itertools.product(fields(content), VALUES))
        for at, value in every_change[date.today().toordinal() % share :: share]:
            path.write_text(write(changed(content, at, value)))
            records, said = numbers(capfd)
            if path == grid:
                is_grid = files.read_json(path, runs.Grid, named=False) is not None
                assert records == kept and is_grid != (f"{path} is damaged" in said), (at, value, said)
            for name, record in kept.items():
                now = records[name]
                if name != victim.name:
                    assert sorted(now["metrics"].values()) == sorted(record["metrics"].values()), (path, at, value)
                elif now["state"] == "damaged":
                    assert now["reason"] and not now["metrics"], (path, at, value)
        path.write_text(before)
    assert numbers(capfd)[0] == kept


@pytest.mark.parametrize("text", ["", "\0" * 40, "filelock/2\npid=-1\n", "x" * 2000, "{}"])
def test_a_run_with_a_damaged_lease_is_busy_until_it_has_expired(text: str, victim: Path, capfd: Capture) -> None:
    (victim / "results.json").unlink()
    (expected, _), path = numbers(capfd), victim / runs.LEASE
    assert expected[victim.name]["state"] == "evaluation missing"
    path.write_text(text)
    fresh, said = numbers(capfd)
    assert said == "" and {**fresh, victim.name: None} == {**expected, victim.name: None}
    assert fresh[victim.name]["state"] == "busy"
    os.utime(path, times=(path.stat().st_mtime - 2 * runs.LEASE_SECONDS,) * 2)
    assert numbers(capfd) == (expected, "")


# ---- the configuration and the results of a run that is read

FOLDER = Path("outputs/default/0123456789")


def written(change: str = "", value: Any = ...) -> Path:
    """A run directory whose configuration has another value of a key, or no such key."""
    config = load(["tracking=off"])
    if change:
        config = changed(config, change.split("."), MISSING if value is ... else value)
    FOLDER.mkdir(parents=True)
    (FOLDER / "config.yaml").write_text(yaml.safe_dump(config))
    return FOLDER


CHANGES: list[tuple[str, Any]] = [("choices", ...), ("choices.dataset", None), ("seed", "text"), ("paths", "text")]
CHANGES += [(key, ...) for key in ("paths", "seed", "evaluate", "paths.data")]
CHANGES += [("augment", None), ("loss", "text"), ("new", 3), ("name", "../up")]


@pytest.mark.parametrize(("key", "value"), CHANGES)
def test_a_damaged_configuration_is_refused_by_its_key(key: str, value: Any, capfd: Capture) -> None:
    named = "" if key.startswith("choices") else key
    refuses(f"evaluate {written(key, value)}", f"{FOLDER}/config.yaml {named}", capfd)


RESULTS: list[Any] = [None, [], {}, {"config": {}}, {"config": []}, {"evaluations": [1]}, {"evaluations": [{}]}]
RESULTS += [{"metrics": {"knn/top1": "x"}}, {"metrics": {"knn/top1": 0.5}, "evaluations": []}]
RESULTS += [{"config": {"evaluate": 3}}]


@pytest.mark.parametrize("change", RESULTS, ids=str)
def test_a_run_with_damaged_results_is_named_and_not_taken(change: Any, capfd: Capture) -> None:
    run = written()
    config = yaml.safe_load((run / "config.yaml").read_text())
    content = {"run_id": run.name, "config": config, "metrics": {}, "seconds": 1.0, "evaluations": []}
    (run / "results.json").write_text(json.dumps(content | change if isinstance(change, dict) and change else change))
    for command in ("evaluate", "export"):
        answer = enter(f"{command} {run}", capfd)
        *damaged, line = answer.err.splitlines()
        assert answer.code == 1 and str(run) in line and len(damaged) <= 1, answer
        assert all("results.json" in each for each in damaged)
    if change in (None, [], {"config": {}}, {"config": []}):
        refuses(f"train init={run}", "init", capfd)


def test_a_run_that_is_read_is_not_tracked_and_runs_no_plugin_that_it_does_not_list(
    capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_config(written("tracking"))["tracking"]["mode"] == "off"
    shutil.rmtree(FOLDER)
    Path("my_losses.py").write_text("raise SystemExit('the code of the plugin ran')\n")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "my_losses")
    run = written("loss", {"_target_": "my_losses.Evil"})
    refuses(f"evaluate {run}", "plugins my_losses", capfd)
    assert "my_losses" not in sys.modules


# ---- metrics.jsonl and checkpoints of any content

ODD = [("odd", each) for each in (b"", b"null", b"[]", b"3", b'"text"', b"{}", b"\xff\xfe", b"[" * 5000, b"NaN")]


def test_metrics_of_any_content_are_resumed() -> None:
    """Every complete row up to the step of the checkpoint is kept."""
    path = make("a/1", rows(3)) / "metrics.jsonl"
    content = path.read_bytes()
    for description, damaged in [*variants(content, 7), *ODD, ("whole", content)]:
        path.write_bytes(damaged)
        kept = [row["step"] for row in read_rows(path) if row["step"] <= (4 if "loss" in row else 0)]
        Tracker(path.parent, {"tracking": {"mode": "off"}}, "id", 4, {})
        assert [row["step"] for row in files.read_json_lines(path)] == kept, description
    assert len(kept) == 2


def test_a_checkpoint_with_any_damage_is_refused_by_name_with_the_command_that_begins_anew(tmp_path: Path) -> None:
    state: dict[str, Any] = {"run_id": "id", "step": 3, "method": {"weight": torch.arange(200.0)}}
    checkpoint.save(tmp_path, state)
    path = tmp_path / checkpoint.FILE
    content, refused = path.read_bytes(), 0

    def read(description: str) -> Any:
        nonlocal refused
        before = path.read_bytes()
        try:
            return checkpoint.load(tmp_path, "id")
        except RunError as error:
            assert f"`rm {path}`" in str(error) and "\n" not in str(error), description
            assert "weights_only" not in str(error) and path.read_bytes() == before
            refused += 1

    for description, damaged in [*variants(content, 3), *ODD]:
        path.write_bytes(damaged)
        found = read(description)
        assert found is None or torch.equal(found["method"]["weight"], state["method"]["weight"]), description
    assert refused > 100  # a change in the padding of the archive has no effect
    for other in (Payload(), state | {"hook": Payload()}, [1], {"step": 3}, {"run_id": 3}, "text"):
        torch.save(other, path)
        assert read("other") is None
    assert not Path(MARKER).exists()


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"method": {}}, {"step": -1}, {"ranks": [{}]}, {"seconds": None}])
def test_a_checkpoint_that_does_not_fit_is_refused(change: Any, victim: Path, capfd: Capture) -> None:
    (run,) = Path("outputs/r").iterdir()
    (run / "results.json").unlink()
    path = run / checkpoint.FILE
    torch.save(torch.load(path, weights_only=True) | change, path)
    before = path.read_bytes()
    answer = enter(shlex.join(["train", *ONE]), capfd)
    assert answer.code == 1 and "Traceback" not in answer.out + answer.err
    assert f"`rm {path}`" in answer.err.splitlines()[-1] and path.read_bytes() == before
