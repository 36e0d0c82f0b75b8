"""The data of a report, from results folders that are made by hand."""

import base64
import json
import math
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ssl_bench.commands import report as command
from ssl_bench.report import html, pictures
from ssl_bench.report.collect import collect
from ssl_bench.results.table import FINISHED
from tests.report import runs
from tests.report.test_html import content
from tests.results.folders import LOST, OUTPUTS, add, configuration, finish, make, make_grid


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


def ordered(data: dict[str, Any], folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The runs of these folders, in this order."""
    found = {run["folder"]: run for run in data["runs"]}
    return [found[str(folder)] for folder in folders]


def test_a_grid_has_its_states_and_the_settings_that_vary() -> None:
    folders = runs.grid()
    data = collect([], OUTPUTS, Path.cwd())
    assert data["shown"] == ["loss", "batch_size", "temperature.tau", "seed"]
    assert data["keys"] == [*data["shown"], "negatives_per_anchor", "batch_size.size"]
    assert (data["common"]["dataset"], data["common"]["epochs"]) == ("mnist", 2)
    assert not {"loss", "paths.outputs"} & data["common"].keys()
    every = ordered(data, folders)
    assert [run["state"] for run in every] == [FINISHED] * 23 + ["diverged"]
    first, last = every[0], every[-1]
    assert first["values"] == ["dcl", 64, 0.1, 0, 126, 64] and first["metrics"] == {"knn/top1": 0.6164}
    assert (first["seconds"], first["speed"], first["hardware"]) == (20.0, 100.0, "1 x a CPU")
    assert first["command"] == "ssl-bench train name=grid loss=dcl batch_size=b64 temperature.tau=0.1 seed=0"
    assert last["reason"] == LOST and last["values"][4] is None
    (group,) = data["groups"]
    assert group["name"] == "grid/ loss x2, batch_size x3, temperature.tau x2, seed x2" and group["command"]
    (sentence,) = group["left_out"]["knn/top1"]
    assert "diverged: 1 of 24 runs (loss=infonce" in sentence
    assert data["curves"][0]["loss"][2:] == [20, 0] and first["steps_per_epoch"] == 10


def test_a_grid_has_the_runs_that_it_found_done_under_another_name() -> None:
    old = [runs.run(f"old/{seed}", 0.5, "dcl", 64, 0.1, seed, f"name=old seed={seed}") for seed in (0, 1)]
    new = runs.run("new/2", 0.6, "dcl", 64, 0.1, 2, "name=new seed=2")
    make_grid("1", ["name=new seed=0", "name=new seed=1", "name=new seed=2"], {0: old[0], 2: new})
    data = collect([], OUTPUTS, Path.cwd())
    groups = {each["key"]: {data["runs"][place]["folder"] for place in each["runs"]} for each in data["groups"]}
    assert groups == {"old": {*map(str, old)}, "new": {str(new), str(old[0]), None}}  # and one that is not begun
    names = {each["key"]: (each["name"], each["command"] is None) for each in data["groups"]}
    assert names["new"][0] == "new/ seed x3" and names["old"] == ("old/ seed x2", True)
    chosen = collect(["new"], OUTPUTS, Path.cwd())
    assert {run["folder"] for run in chosen["runs"]} == {str(old[0]), str(new), None}
    assert [(group["key"], group["runs"]) for group in chosen["groups"]] == [("new", [0, 1, 2])]
    assert [group["key"] for group in collect(["old"], OUTPUTS, Path.cwd())["groups"]] == ["old"]


def test_a_run_to_come_has_no_value_of_a_setting_that_its_command_does_not_name() -> None:
    folders = [make("a/", choices={"dataset": "mnist", "loss": "dcl"}, negatives={"k": k}, seed=0) for k in (16, 64)]
    make_grid("1", ["name=b loss=dcl batch_size.size=64"])
    data = collect([], OUTPUTS, Path.cwd())
    k = data["keys"].index("negatives.k")
    assert [run["values"][k] for run in ordered(data, folders)] == [16, 64]
    (to_come,) = [run for run in data["runs"] if run["folder"] is None]
    assert to_come["state"] == "not begun" and to_come["values"][k] is None
    assert to_come["values"][data["keys"].index("batch_size")] == 64
    assert data["shown"] == ["batch_size", "negatives.k"]


@pytest.mark.parametrize("part", ["environment", "facts", "warnings", "units", "evaluations", "metrics"])
def test_a_damaged_part_of_one_run_does_not_hide_the_others(part: str) -> None:
    folders = runs.grid()
    add(folders[0], **{part: "x"})
    data = collect([], OUTPUTS, Path.cwd())
    first, *others = ordered(data, folders)
    assert [run["state"] for run in others].count(FINISHED) == 22 and first["state"] == "damaged" and html.render(data)
    assert "results.json is damaged" in first["reason"] and part in first["reason"] and first["metrics"] == {}


def test_a_value_that_is_no_number_is_shown_as_text() -> None:
    folders = runs.grid()
    add(folders[0], facts=runs.FACTS | {"lr": math.nan}, environment={"python": math.inf})
    add(folders[2], facts=runs.FACTS | {"lr": 0.5})
    add(folders[1], config=configuration(optimizer={"lr": math.inf}))
    add(folders[3], facts=runs.FACTS | {"lr": 0.25})
    data = collect([], OUTPUTS, Path.cwd())
    assert json.dumps(data, allow_nan=False)
    scaled, rate = (data["keys"].index(name) for name in ("lr", "optimizer.lr"))
    every = ordered(data, folders)
    assert every[1]["values"][rate] == "Infinity" and [every[n]["values"][scaled] for n in (0, 2)] == ["NaN", 0.5]


def test_pictures_are_data_while_there_is_room_and_links_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = runs.grid()
    (folders[0] / "figures" / "a.png").write_bytes(bytes(1000))
    (folders[0] / "figures" / "npc.png").rename(folders[0] / "figures" / "n c.png")
    (folders[0] / "figures" / "link.png").symlink_to("n c.png")
    monkeypatch.setattr(pictures, "EMBEDDED_BYTES", 1000 + len(runs.PNG) - 1)  # for one of the two
    (Path.cwd() / "elsewhere").mkdir()
    (first, *_) = ordered(collect([], OUTPUTS, Path.cwd() / "elsewhere"), folders)
    (shown, linked) = first["pictures"]
    assert shown == {"name": "a.png", "src": f"data:image/png;base64,{base64.b64encode(bytes(1000)).decode()}"}
    assert linked == {"name": "n c.png", "href": f"../{folders[0]}/figures/n%20c.png"}


def test_no_file_outside_of_a_run_is_read() -> None:
    (folder, *_) = runs.grid()
    Path("mine.png").write_bytes(b"PRIVATE")
    Path("mine").write_text("PRIVATE\n" * 20)
    for name in ("command.txt", "train.log", "metrics.jsonl", "results.json", "figures/x.png"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(Path("mine").absolute())
    (first, *_) = ordered(collect([], OUTPUTS, Path.cwd()), [folder])
    assert (first["command"], first["log"], first["metrics"], first["state"]) == (None, "", {}, "damaged")
    shutil.rmtree(folder / "figures")
    (folder / "figures").symlink_to(Path.cwd())
    (first, *_) = ordered(collect([], OUTPUTS, Path.cwd()), [folder])
    assert first["pictures"] == []


@pytest.mark.slow
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
    return [run["state"] for run in content(path.read_text(), "data")["runs"]].count(FINISHED)
