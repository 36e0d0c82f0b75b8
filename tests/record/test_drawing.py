"""Plots of artifacts and learning curves: their data, the PNG files, and matplotlib imported only when one is drawn."""

import dataclasses
import json
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ssl_bench.commands.evaluate import main
from ssl_bench.evaluate.artifacts import Artifact, Curve, Distribution, Histogram
from ssl_bench.record import drawing
from ssl_bench.signals import Interrupted
from ssl_bench.training.evaluation import write_artifacts
from tests.conftest import only_run
from tests.record.wandb_files import history, records, wandb_directories

Train = Callable[..., tuple[int, str]]
GEOMETRY = "evaluate=[geometry,npc,projections]"
NPC = ["evaluate.npc.batch_sizes=[8,32]", "evaluate.npc.batches=2"]


def histogram(groups: int) -> Histogram:
    counts = {str(2**i): [i, 3, 0, 7] for i in range(groups)}
    return Histogram(counts, [0, 0.25, 0.5, 0.75, 1], "multiplier", "anchors", "batch size")


ARTIFACTS: dict[str, tuple[Artifact, tuple[int, int]]] = {
    "npc/few": (histogram(6), (660, 456)),
    "npc/many": (histogram(9), (660, 456)),
    "geometry/classes": (Distribution({"test": [0.3, 0.5, 0.4], "train": [0.2]}, "distance", "classes"), (660, 456)),
    "npc/curve": (Curve([32, 64, 128], {"mean": [0.5, 0.7, 0.9], "cv": [0.4, 0.2, 0.1]}, "N", True), (960, 384)),
}


def test_every_artifact_is_written_as_data_and_drawn(tmp_path: Path) -> None:
    pictures = write_artifacts(tmp_path / "figures", {name: artifact for name, (artifact, _) in ARTIFACTS.items()})
    assert list(pictures) == list(ARTIFACTS)
    for name, (artifact, size) in ARTIFACTS.items():
        stem = tmp_path / "figures" / name.replace("/", "-")
        data = json.loads(Path(f"{stem}.json").read_text())
        assert data.pop("kind") == type(artifact).__name__.lower()
        assert data == dataclasses.asdict(artifact)
        assert pictures[name] == Path(f"{stem}.png")
        with Image.open(pictures[name]) as picture:
            picture.load()
            assert picture.format == "PNG" and picture.size == size
            assert sum(n > 0 for n in picture.convert("L").histogram()) > 10  # not a blank page
    assert len(list((tmp_path / "figures").iterdir())) == 2 * len(ARTIFACTS)


def test_histograms_are_drawn_as_shares_in_colours() -> None:
    (panel,) = drawing.of_artifact(histogram(7), "").axes
    assert len({line.get_color() for line in panel.lines}) == 7
    assert panel.lines[1].get_ydata().tolist() == [1 / 11, 3 / 11, 0, 7 / 11, 7 / 11]
    assert panel.get_xlabel() == "multiplier" and panel.get_ylabel() == "share of the anchors"


def test_names_are_texts_in_a_font_that_has_them(caplog: pytest.LogCaptureFixture) -> None:
    # The fourth is in a font of matplotlib's, the last in none.
    names = ["_bg", "a$b$", "$x_{", "\u2332", "\U00030000"]
    lines = [drawing.Line(i, [0, 1], [i, 100 - i], {"label": name}) for i, name in enumerate(names)]
    panel = partial(drawing.plot, lines=lines, axes={"ylabel": "top1 (%)"}, legend={})
    (axis,) = drawing.figure_of([panel], (3, 3)).axes
    texts = axis.get_legend().get_texts()
    assert [text.get_text() for text in texts] == names and not any(text.get_parse_math() for text in texts)
    assert "STIXGeneral" in texts[3].get_fontfamily() and "characters \U00030000:" in caplog.text
    assert axis.get_ylim() == (0, 100)


def test_a_plot_that_cannot_be_drawn_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    with caplog.at_level(logging.WARNING):
        assert not write_artifacts(tmp_path, {"npc/few": histogram(2)})
    assert "npc-few.png" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["npc-few.json"]


@pytest.mark.slow
def test_a_run_and_a_later_evaluation_write_their_plots(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    code, printed = train("max_steps=4", GEOMETRY, *NPC, "evaluate.baselines=[raw]", "tracking=offline", pictures=True)
    assert code == 0 and "not drawn" not in printed and "W&B failed" not in printed, printed
    folder = only_run()
    stems = ["geometry-intra_distances", "npc-by_batch_size", "npc-multiplier", "projections-histograms"]
    stems_of_run = ["geometry_raw-intra_distances", *stems]
    names = sorted(path.name for path in (folder / "figures").iterdir())
    assert names == sorted(f"{stem}.{end}" for stem in stems_of_run for end in ("json", "png"))
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    assert all(isinstance(value, float) for value in metrics.values())
    curve = json.loads((folder / "figures" / "npc-by_batch_size.json").read_text())
    assert curve["x"] == [8, 32]
    assert curve["lines"]["mean NPC multiplier"] == [metrics["npc/n8_mean"], metrics["npc/n32_mean"]]
    distances = json.loads((folder / "figures" / "geometry-intra_distances.json").read_text())["values"]["test"]
    assert sum(distances) / 10 == pytest.approx(metrics["geometry/intra_distance"])
    row = history(records(wandb_directories(folder)[0]))[-1]  # W&B has the same plots, in the row of the results
    shown = [key for key in row if key.startswith("figures/")]
    assert {name.removeprefix("figures/").replace("/", "-") for name in shown} == {*stems_of_run}
    capfd.readouterr()
    assert main([str(folder), "evaluate=npc", "evaluate.npc.batches=1", *NPC[:1], "evaluate.baselines=[]"]) == 0
    new = {path.name for path in (folder / "figures").iterdir()} - set(names)
    stems = ["npc[batches=1]-by_batch_size", "npc[batches=1]-multiplier"]
    assert new == {f"{stem}.{end}" for stem in stems for end in ("json", "png")}


def test_a_signal_while_a_plot_is_drawn_is_not_taken_for_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(drawing, "as_png", stop)
    with pytest.raises(Interrupted):
        write_artifacts(tmp_path, {"npc/few": histogram(2)})
