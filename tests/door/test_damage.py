"""Files that a crash has cut short: a command carries on or names the file, and no number is a wrong one.

One run and one grid are trained once; each file is cut in a copy of them.
"""

import itertools
import json
import os
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ssl_bench import files
from ssl_bench.record import folders, results
from ssl_bench.train import main
from tests.conftest import SMALL, no_pictures
from tests.door.door import enter

COMMON = [o for o in SMALL if not o.startswith("evaluate")] + ["dataset=scattered_digits", "max_steps=2"]
COMMON += ["evaluate=[knn]", "evaluate.knn.k=5"]
RUN = ["train", *COMMON, "name=r", "seed=7"]
GRID = ["train", *COMMON, "-m", "name=g", "seed=0,1"]
TABLE = {"title": "t", "metric": "knn/top1", "set": COMMON, "seeds": [0, 1], "columns": {"simclr": []}}
TABLE["rows"] = {"digits": {"values": [50.0]}}
PAPER = {"paper": "tiny", "title": "t", "cite": "nobody", "tables": {"table1": TABLE}}


def environment(context: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the caches and the papers be those of the folder, and the status keep its cache of few files."""
    context.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    context.setenv("SSL_BENCH_PAPERS", str(folder / "papers"))
    context.setattr("ssl_bench.record.cache.FEW_CHANGES", 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run, a run that failed, a grid, and a paper whose table the grid fills."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("whole")
    os.chdir(folder)
    with no_pictures(), pytest.MonkeyPatch.context() as context:
        environment(context, folder)
        Path("papers").mkdir()
        Path("papers/tiny.yaml").write_text(yaml.safe_dump(PAPER))
        for command in (RUN, GRID, ["train", *COMMON, "name=failed", "seed=8"]):
            assert main(command[1:]) == 0
        (failed,) = Path("outputs/failed").iterdir()
        (failed / "results.json").unlink()
        files.write_json(failed / "failed.json", {"reason": "no", "detail": ""})
    os.chdir(before)
    yield folder


# Files that are read back, with the share of each that is left.
CUT = [("outputs/r/*/results.json", 0.0), ("outputs/r/*/results.json", 0.5), ("outputs/r/*/config.yaml", 0.0)]
CUT += [("outputs/r/*/config.yaml", 0.5), ("outputs/r/*/metrics.jsonl", 0.5), ("outputs/.runs.json", 0.5)]
RARER = [("outputs/g/*/results.json", 0.5), ("outputs/failed/*/failed.json", 0.5), ("outputs/.baselines/*.json", 0.5)]
RARER += [("outputs/.sweeps/*/grid.json", 0.5), ("outputs/.sweeps/*/jobs/*.json", 0.5)]
RARER += [("cache/ssl_bench/compositions*.json", 0.5)]


@pytest.mark.parametrize(("name", "share"), [*CUT, *(pytest.param(*each, marks=pytest.mark.slow) for each in RARER)])
def test_a_file_that_was_cut_short_is_named_or_made_again(
    name: str, share: float, whole: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, "here")
    monkeypatch.chdir("here")
    environment(monkeypatch, Path.cwd())
    truth = {path.parent.name: json.loads(path.read_bytes())["metrics"] for path in Path().glob("*/*/*/results.json")}

    def entered(command: str) -> tuple[int, str]:
        with no_pictures():
            answer = enter(command, capfd)
        lines = answer.err.splitlines()
        assert answer.code in (0, 1, 2) and "Traceback" not in answer.out, (command, answer)
        assert all(line.startswith("ssl-bench: ") for line in lines), (command, answer)
        assert len(lines) <= 3 and (answer.code == 0 or lines), (command, answer)
        return answer.code, answer.out

    entered("status --json"), entered("table tiny/table1 --format json")  # which fill the caches
    folders._index.cache_clear()
    path = sorted(Path().glob(name))[0]
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    (run,) = Path("outputs/r").iterdir()
    if ".baselines" in name:  # which only a run without results reads
        (run / "results.json").unlink()

    code, out = entered("status --json")
    assert code == 0
    for record in json.loads(out):
        if record["state"] == "done":
            assert record["best"].items() <= truth[Path(record["folder"]).name].items()
    code, out = entered("table tiny/table1 --format json")
    if code == 0:
        seeds = [100 * metrics["knn/top1"] for metrics in truth.values()]
        (cell,) = json.loads(out)["cells"]
        possible = [statistics.mean(some) for n in (1, 2, 3) for some in itertools.combinations(seeds, n)]
        assert cell["mean"] in (None, *map(pytest.approx, possible))
    for command in ("status", "report", "reproduce tiny/table1 --dry-run", f"evaluate {run}", f"export {run} --out x"):
        entered(command)

    grid = "/g/" in name or ".sweeps" in name
    again = " ".join(GRID if grid else RUN)
    if entered(again)[0]:  # the file is in the way, and was named: without it the run goes on
        path.unlink()
        assert entered(again)[0] == 0
    for trained in Path("outputs/g" if grid else "outputs/r").iterdir():
        content = results.read(trained)
        assert content is not None and truth[trained.name].items() <= content["metrics"].items()
