"""The data of a report, from results folders that are made by hand."""

import base64
import json
import math
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml

from ssl_bench.commands import report as command
from ssl_bench.errors import ConfigError
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.report import html, pictures
from ssl_bench.report.collect import Collector
from tests.report import runs
from tests.report.test_html import content
from tests.results.folders import OUTPUTS, configuration, finish, make, make_grid


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


def test_a_grid_has_its_states_and_only_the_keys_that_vary() -> None:
    runs.grid()
    data = Collector(OUTPUTS).collect(Path.cwd())
    assert data["shown"] == ["loss", "batch_size", "temperature.tau", "seed"]
    assert data["keys"][4:] == ["negatives_per_anchor", "loss.of", "batch_size.size"]
    assert (
        data["common"]["dataset"] == "mnist"
        and data["common"]["epochs"] == 2
        and not {"loss", "paths.outputs"} & data["common"].keys()
    )
    assert [run["state"] for run in data["runs"]] == ["done"] * 23 + ["failed"]
    first, last = data["runs"][0], data["runs"][-1]
    assert first["values"] == ["dcl", 64, 0.1, 0, 126, "dcl", 64] and first["metrics"] == {"knn/top1": 0.6164}
    assert (first["seconds"], first["speed"], first["hardware"]) == (20.0, 100.0, "1 x a CPU")
    assert first["command"] == "ssl-bench train loss=dcl batch_size=b64 temperature.tau=0.1 seed=0"
    assert last["reason"] == "loss=nan: set optimizer.lr to a smaller value" and last["values"][4] is None
    assert [group["name"] for group in data["groups"]] == ["grid/ loss x2, batch_size x3, temperature.tau x2, seed x2"]
    assert data["curves"][0]["loss"][2:] == [20, 0] and first["steps_per_epoch"] == 10


def test_a_grid_has_the_runs_that_it_found_done_under_another_name() -> None:
    old = [
        runs.run(f"old/{seed}", f"ssl-bench train name=old seed={seed}", 0.5, "dcl", 64, 0.1, seed) for seed in (0, 1)
    ]
    new = runs.run("new/2", "ssl-bench train name=new seed=2", 0.6, "dcl", 64, 0.1, 2)
    found = {0: Outcome(State.DONE_BEFORE, folder=str(old[0])), 2: Outcome(State.DONE, folder=str(new))}
    make_grid("1", ["name=new seed=0", "name=new seed=1", "name=new seed=2"], found, pid=2**22 - 1, started=0.0)
    data = Collector(OUTPUTS).collect(Path.cwd())
    groups = {each["key"]: sorted(data["runs"][place]["id"] for place in each["runs"]) for each in data["groups"]}
    assert groups == {"old": ["old/0", "old/1"], "new": ["new/2", "old/0"]}
    names = {each["key"]: (each["name"], each["command"] is None, each["started"]) for each in data["groups"]}
    assert names["new"] == ("new/ seed x3", False, 0.0) and names["old"][:2] == ("old/", True) and names["old"][2] > 0
    chosen = Collector(OUTPUTS, ["new"]).collect(Path.cwd())
    assert {run["id"] for run in chosen["runs"]} == {"old/0", "new/2"}
    assert [(group["key"], group["runs"]) for group in chosen["groups"]] == [("new", [0, 1])]
    assert [group["key"] for group in Collector(OUTPUTS, ["old"]).collect(Path.cwd())["groups"]] == ["old"]


def test_a_run_to_come_has_no_value_of_a_setting_that_its_command_does_not_name() -> None:
    for k in (16, 64):
        make(f"a/{k}", choices={"dataset": "mnist", "negatives": "random_k"}, negatives={"k": k})
    make_grid("1", ["name=b loss=dcl batch_size.size=64"], {})
    data = Collector(OUTPUTS).collect(Path.cwd())
    k = data["keys"].index("negatives.k")
    assert [run["values"][k] for run in data["runs"]] == [16, 64, None]
    assert data["runs"][2]["values"][data["keys"].index("batch_size")] == 64


@pytest.mark.parametrize("part", ["environment", "facts", "warnings", "units", "evaluations", "metrics"])
def test_a_damaged_part_of_one_run_does_not_hide_the_others(part: str) -> None:
    folders = runs.grid()
    runs.add(folders[0], **{part: "x"})
    (OUTPUTS / ".sweeps" / "1" / "jobs" / "1.json").write_text('{"state": "done", "folder": true}')
    (OUTPUTS / ".runs.json").write_text('{"version": [], "values": 3}')
    data = Collector(OUTPUTS).collect(Path.cwd())
    assert [run["state"] for run in data["runs"]].count("done") >= 22 and html.render(data)


def test_a_value_that_is_no_number_is_shown_as_text() -> None:
    folders = runs.grid()
    runs.add(folders[0], facts=runs.FACTS | {"lr": math.nan}, environment={"python": math.inf})
    runs.add(folders[2], facts=runs.FACTS | {"lr": 0.5})
    runs.add(folders[1], config=configuration(optimizer={"lr": math.inf}))
    (folders[23] / "config.yaml").write_text(yaml.safe_dump(configuration(optimizer={"lr": -math.inf})))
    data = Collector(OUTPUTS).collect(Path.cwd())
    assert json.dumps(data, allow_nan=False)
    scaled, rate = (data["keys"].index(name) for name in ("lr", "optimizer.lr"))
    assert [data["runs"][n]["values"][rate] for n in (1, 23)] == ["Infinity", "-Infinity"]
    assert [data["runs"][n]["values"][scaled] for n in (0, 2)] == ["NaN", 0.5]


def test_only_changed_files_are_read_again() -> None:
    folders = runs.grid()
    collector = Collector(OUTPUTS)
    before = collector.collect(Path.cwd())
    with open(folders[-1] / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 30, "epoch": 2.0, "loss": 0.5}) + "\n")
    after = collector.collect(Path.cwd())
    assert [a is b for a, b in zip(before["curves"], after["curves"], strict=True)] == [True] * 23 + [False]
    assert after["curves"][-1]["loss"][0][-1] == 30


def test_pictures_are_data_while_there_is_room_and_links_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = runs.grid()
    (folders[0] / "figures" / "a.png").write_bytes(bytes(1000))
    (folders[0] / "figures" / "npc.png").rename(folders[0] / "figures" / "n c.png")
    (folders[0] / "figures" / "curves.png").write_bytes(b"drawn by the page")
    (folders[0] / "figures" / "link.png").symlink_to("n c.png")
    monkeypatch.setattr(pictures, "ROOM", 1000 + len(runs.PNG) - 1)  # for one of the two
    (Path.cwd() / "elsewhere").mkdir()
    (shown, linked) = Collector(OUTPUTS).collect(Path.cwd() / "elsewhere")["runs"][0]["pictures"]
    assert shown == {"name": "a.png", "src": f"data:image/png;base64,{base64.b64encode(bytes(1000)).decode()}"}
    assert linked == {"name": "n c.png", "href": "../outputs/grid/r000000000/figures/n%20c.png"}


def test_names_select_folders_and_run_ids() -> None:
    runs.grid()
    runs.run("other/abc", "ssl-bench train", 0.5, "dcl", 64, 0.1, 5)
    assert len(Collector(OUTPUTS, ["grid"]).collect(Path.cwd())["runs"]) == 24
    chosen = Collector(OUTPUTS, ["abc", "grid/r000000003"]).collect(Path.cwd())
    assert [run["id"] for run in chosen["runs"]] == ["grid/r000000003", "other/abc"]
    with pytest.raises(ConfigError, match=r"^gird: .*grid\b"):
        Collector(OUTPUTS, ["gird"]).collect(Path.cwd())


def test_the_command_writes_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    runs.grid()
    assert command.main(["--out", "r.html"]) == 0
    assert capsys.readouterr().out == "r.html: 24 runs, 0.7 MB\n"


def test_a_watched_report_is_written_again_when_a_run_has_changed_and_stays_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = runs.grid()
    monkeypatch.setattr(command, "PAUSE", 0.01)
    path, times = Path("report.html"), list[int]()

    def wait_for_runs(count: int) -> None:
        deadline = time.monotonic() + 30
        while not path.exists() or done(path) != count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def interrupt() -> None:
        try:
            wait_for_runs(23)
            times.append(path.stat().st_mtime_ns)
            time.sleep(0.5)  # in which nothing changes
            times.append(path.stat().st_mtime_ns)
            (folders[-1] / "failed.json").unlink()
            finish(folders[-1], 20.0, knn_top1=0.99)
            wait_for_runs(24)
            assert 'id="live"' in path.read_text()
        finally:
            signal.raise_signal(signal.SIGINT)

    reader = threading.Thread(target=interrupt)
    reader.start()
    assert command.main(["--watch"]) == 0
    reader.join()
    assert times[0] == times[1] and done(path) == 24 and 'id="live"' not in path.read_text()
    assert capsys.readouterr().out.endswith("it is written again when a run has changed, until Ctrl-C\n")


def done(path: Path) -> int:
    """Number of finished runs in a report."""
    return [run["state"] for run in content(path.read_text(), "data")["runs"]].count("done")


def test_json_has_the_numbers_of_the_runs_and_writes_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    runs.grid()
    assert command.main(["--json"]) == 0 and not Path("report.html").exists()
    data = json.loads(capsys.readouterr().out)
    assert not any("pictures" in run for run in data["runs"])
    stored = {path.parent: json.loads(path.read_text()) for path in OUTPUTS.glob("grid/*/results.json")}
    metrics = {OUTPUTS / run["id"]: run["metrics"] for run in data["runs"] if run["state"] == "done"}
    assert len(metrics) == 23 and metrics == {folder: content["metrics"] for folder, content in stored.items()}
    (group,) = data["groups"]
    by_loss = next(verdict for verdict in group["verdicts"]["knn/top1"] if verdict["by"] == "loss")
    tops = {tuple(run["values"][:4]): metrics[OUTPUTS / run["id"]]["knn/top1"] for run in data["runs"][:-1]}
    others = [("infonce", *rest) for loss, *rest in tops if loss == "dcl"]
    pairs = [(tops["dcl", *other[1:]], tops[other]) for other in others if other in tops]
    overall, difference = by_loss["cells"][0], sum(infonce - dcl for dcl, infonce in pairs) / len(pairs)
    assert (by_loss["unit"], overall["of"], len(pairs)) == ("percent", "infonce", 11)
    assert overall["difference"] == pytest.approx(100 * difference)
    steps, losses, count, lost = data["curves"][0]["loss"]
    assert (steps, count, lost) == ([*range(1, 21)], 20, 0)
    assert losses[0] == pytest.approx(3.1 * math.exp(-1 / 20), 1e-3)
    assert command.main(["--json", "--out", "x.html"]) == 2
    assert "--json" in capsys.readouterr().err
