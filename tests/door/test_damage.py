"""Files that a crash has cut short: a command carries on or names the file, and no number is a wrong one.

Each file is cut in a copy of the same runs.
"""

import itertools
import json
import shutil
import statistics
from pathlib import Path

import pytest

from ssl_bench.record import runs
from tests.conftest import no_pictures
from tests.door.damage import GRID, RUN, environment
from tests.door.door import enter

# Files that are read back, with the share of each that is left.
CUT = [("outputs/r/*/results.json", 0.0), ("outputs/r/*/results.json", 0.5), ("outputs/r/*/config.yaml", 0.0)]
CUT += [("outputs/r/*/config.yaml", 0.5), ("outputs/r/*/metrics.jsonl", 0.5)]
RARER = [("outputs/g/*/results.json", 0.5), ("outputs/failed/*/failed.json", 0.5), ("outputs/.baselines/*.json", 0.5)]
RARER += [("outputs/*/grid-*.json", 0.5)]
RARER += [("cache/ssl_bench/compositions*.json", 0.5)]


@pytest.mark.parametrize(("name", "share"), [*CUT, *(pytest.param(*each, marks=pytest.mark.slow) for each in RARER)])
def test_a_file_that_was_cut_short_is_named_or_made_again(
    name: str, share: float, whole: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, "here")
    monkeypatch.chdir("here")
    environment(monkeypatch, Path.cwd())
    contents = [json.loads(path.read_bytes()) for path in Path().glob("*/*/*/results.json")]
    truth = {content["run_id"]: content["metrics"] for content in contents}
    of_loss = [truth[content["run_id"]] for content in contents if content["config"]["choices"]["loss"] == "infonce"]

    def entered(command: str) -> tuple[int, str]:
        with no_pictures():
            answer = enter(command, capfd)
        lines = answer.err.splitlines()
        assert answer.code in (0, 1, 2) and "Traceback" not in answer.out, (command, answer)
        assert all(line.startswith("ssl-bench: ") for line in lines), (command, answer)
        assert len(lines) <= 3 and (answer.code == 0 or lines), (command, answer)
        return answer.code, answer.out

    entered("status --json"), entered("table tiny/table1 --format json")  # which fill the cache
    runs._identity.cache_clear()
    path = sorted(Path().glob(name))[0]
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    (run,) = Path("outputs/r").iterdir()
    if ".baselines" in name:  # which only a run without results reads
        (run / "results.json").unlink()

    code, out = entered("status --json")
    assert code == 0
    for record in json.loads(out):
        if record["state"] == "finished":
            assert record["best"].items() <= truth[Path(record["folder"]).name].items()
    code, out = entered("table tiny/table1 --format json")
    if code == 0:
        seeds = [100 * metrics["knn/top1"] for metrics in of_loss]
        (cell,) = json.loads(out)["cells"]
        possible = [statistics.mean(some) for n in (1, 2, 3) for some in itertools.combinations(seeds, n)]
        assert cell["mean"] in (None, *map(pytest.approx, possible))
    for command in ("status", "report", "reproduce tiny/table1 --dry-run", f"evaluate {run}", f"export {run} --out x"):
        entered(command)

    grid = "/g/" in name or "/grid-" in name
    again = " ".join(["train", *(GRID if grid else [*RUN, "name=r", "seed=7"])])
    if entered(again)[0]:  # the file is in the way, and was named: without it the run goes on
        path.unlink()
        assert entered(again)[0] == 0
    for trained in filter(Path.is_dir, Path("outputs/g" if grid else "outputs/r").iterdir()):
        content = runs.read_results(trained)
        assert content is not None and truth[trained.name].items() <= content["metrics"].items()
