"""A number is a value with what made it: after each of several actions, each reader shows the right one or refuses."""

import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import ssl_bench
from ssl_bench.commands import evaluate, export, table, train
from ssl_bench.commands.grid_end import show
from ssl_bench.errors import ConfigError
from ssl_bench.papers import tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.report.collect import collect
from ssl_bench.results import select
from ssl_bench.results import table as runs_table
from ssl_bench.results.comparison import compare
from tests.conftest import SMALL, no_pictures
from tests.door.door import enter

Capture = pytest.CaptureFixture[str]
BASE = [
    "backbone=resnet_digits",
    *SMALL,
    "dataset=folder",
    "dataset.size=16",
    "batch_size.size=128",
    "epochs=1",
    "optimizer.schedule=constant",
]
BASE += ["evaluate=[knn,knn_val]", "evaluate.baselines=[]", "evaluate.watch=0"]
RUN = [*BASE, "evaluate.knn.k=20", "evaluate.knn_val.k=20", "name=g"]
ANOTHER_K = ["evaluate.knn.k=1", "evaluate.knn_val.k=1"]
LOSSES = ("dcl", "infonce")
PLUGIN = """
from ssl_bench.objective.losses.dcl import DCL

__version__ = "1"


class Mine(DCL):
    def forward(self, contrast, tau):
        return FACTOR * super().forward(contrast, tau)
"""


@dataclass(frozen=True)
class Number:
    """An accuracy in a file ``results.json``: the metric, its value, and all that says what it is.

    ``loss`` has the source of its plugin.
    """

    folder: str
    loss: str
    seed: int
    epochs: int
    metric: str
    k: int
    value: float


def quietly(command: Callable[[list[str]], int], *words: str, code: int = 0) -> None:
    with no_pictures():
        assert command(list(words)) == code


def digits(folder: Path, first: int, count: int) -> None:
    """Write digits as pictures, in a folder for each class."""
    pixels, labels = load_digits(return_X_y=True)
    for i in range(first, first + count):
        (folder / str(labels[i])).mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((255 * pixels[i].reshape(8, 8) / 16).astype(np.uint8))
        picture.resize((16, 16)).save(folder / str(labels[i]) / f"{i}.png")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two losses with two seeds, each trained for an epoch of two steps and evaluated with k = 20."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("made")
    os.chdir(folder)
    digits(Path("images/train"), 0, 400)
    digits(Path("images/test"), 400, 200)
    digits(Path("others/train"), 600, 200)
    digits(Path("others/test"), 800, 100)
    for loss in LOSSES:
        for seed in (0, 1):
            quietly(train.main, *RUN, "dataset.root=images", f"loss={loss}", f"seed={seed}")
    os.chdir(before)
    yield folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(made, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")


def folders(loss: str) -> list[Path]:
    paths = sorted(Path("outputs").glob("g/*/results.json"))
    return [path.parent for path in paths if json.loads(path.read_text())["config"]["choices"]["loss"] == loss]


def truth(after: int | None = None, evaluator: str = "knn") -> list[Number]:
    """The accuracies of an evaluator in all files after so many epochs, or at the end of each run."""
    numbers = list[Number]()
    for path in Path("outputs").glob("*/*/results.json"):
        content = json.loads(path.read_text())
        config = content["config"]
        loss = " ".join([config["choices"]["loss"], *config.get("plugins", {}).values()])
        of_run = str(path.parent), loss, config["seed"], config["epochs"]
        for entry in content["evaluations"]:
            for metric, value in entry["metrics"].items() if entry["evaluator"] == evaluator else ():
                if entry["epochs"] == (after or config["epochs"]) and metric.endswith("/top1"):
                    numbers.append(Number(*of_run, metric, entry["settings"]["k"], value))
    return numbers


# ---- what is done with runs that are there


def nothing() -> None:
    pass


def another_k_of_one_loss() -> None:
    for folder in folders("dcl"):
        quietly(evaluate.main, str(folder), *ANOTHER_K)


def another_k_of_all() -> None:
    for loss in LOSSES:
        for folder in folders(loss):
            quietly(evaluate.main, str(folder), *ANOTHER_K)


def another_k_by_a_grid() -> None:
    quietly(
        train.main,
        *RUN,
        "dataset.root=images",
        "-m",
        f"loss={','.join(LOSSES)}",
        "seed=0,1",
        "evaluate.knn.k=20,5,1",
    )


def another_evaluator_of_one_loss() -> None:
    for folder in folders("dcl"):
        quietly(evaluate.main, str(folder), "evaluate=geometry")


def other_images() -> None:
    for folder in folders("dcl"):
        quietly(evaluate.main, str(folder), "evaluate.on={dataset: folder, root: others, size: 16}")


def another_epoch_of_one_loss() -> None:
    for seed in (0, 1):
        quietly(train.main, *RUN, "dataset.root=images", "loss=dcl", f"seed={seed}", "epochs=2")


def a_copy_of_a_run() -> None:
    shutil.copytree(folders("dcl")[0], Path("outputs/copies") / folders("dcl")[0].name)


def images_in_another_place() -> None:
    quietly(train.main, *RUN, "dataset.root=images", "loss=dcl", "seed=2")
    Path("images").rename("moved")
    quietly(train.main, *RUN, "dataset.root=moved", "loss=infonce", "seed=2")
    shutil.copytree("moved", "images")  # the second evaluation of one run reads them from a third place
    quietly(evaluate.main, str(folders("dcl")[0]), "evaluate.knn.k=1")


def one_trained_with_another_k() -> None:
    quietly(train.main, *RUN, "dataset.root=images", *ANOTHER_K, "loss=infonce", "seed=2")
    quietly(train.main, *RUN, "dataset.root=images", "loss=dcl", "seed=2")


def an_edit_of_a_plugin() -> None:
    """Train two seeds of a loss whose source is written again between them, as in a notebook."""
    Path("edited/conf/loss").mkdir(parents=True)
    Path("edited/conf/loss/mine.yaml").write_text("_target_: edited.Mine\n")
    with pytest.MonkeyPatch.context() as context:
        context.setenv("SSL_BENCH_PLUGINS", "edited")
        context.syspath_prepend(Path.cwd())
        for seed, factor in ((0, "1"), (1, "-1")):
            Path("edited/__init__.py").write_text(PLUGIN.replace("FACTOR", factor))
            words = ["dataset.root=images", "loss=mine", f"seed={seed}", "plugins=[edited]"]
            quietly(train.main, "--config-dir", "edited/conf", *RUN, *words)
    del sys.modules["edited"]


SOME = [another_k_of_one_loss, another_epoch_of_one_loss, a_copy_of_a_run, an_edit_of_a_plugin]
OTHERS = [nothing, another_k_of_all, another_k_by_a_grid, another_evaluator_of_one_loss, other_images]
OTHERS += [images_in_another_place, one_trained_with_another_k]


# ---- who reads numbers

NAME = re.compile(r"knn(?:\[k=(\d+)\])?((?:/\w+)*/top1)")


def meant(name: str, numbers: Collection[Number]) -> tuple[str, int] | None:
    """The metric and the k that a name says; the only k of all numbers if it says none. None: another evaluator's."""
    match = NAME.fullmatch(name)
    if not match or match[2].startswith("/projection"):
        return None
    metric = f"knn{match[2]}"
    ks = {number.k for number in numbers if number.metric == metric}
    assert match[1] or len(ks) == 1, f"{name} has no k, and there are {ks}"
    return metric, int(match[1] or next(iter(ks)))


def name_of(metric: str, k: int, numbers: Collection[Number]) -> str:
    several = len({number.k for number in numbers if number.metric == metric}) > 1
    return metric.replace("knn", f"knn[k={k}]") if several else metric


def kinds(numbers: Collection[Number]) -> list[tuple[str, int]]:
    return sorted({(number.metric, number.k) for number in numbers})


def by_folder(numbers: Collection[Number]) -> dict[tuple[str, str, int], float]:
    return {(number.folder, number.metric, number.k): number.value for number in numbers}


def shown_by(
    rows: Sequence[dict[str, Any]], folder: str, numbers: Collection[Number]
) -> dict[tuple[str, str, int], float]:
    """The accuracies that rows show, by the folder that stands under a key."""
    shown: dict[tuple[str, str, int], float] = {}
    for row in rows:
        for name, value in row.items():
            if value not in (None, "") and value == value and (kind := meant(name, numbers)):
                shown[(os.path.relpath(row[folder]), *kind)] = float(value)
    return shown


def runs_in_python(numbers: list[Number], capfd: Capture) -> None:
    assert shown_by(ssl_bench.runs(all=True).to_dict("records"), "path", numbers) == by_folder(numbers)


def status_as_csv(numbers: list[Number], capfd: Capture) -> None:
    rows = list(csv.DictReader(io.StringIO(enter("status --csv", capfd).out)))
    assert shown_by(rows, "folder", numbers) == by_folder(numbers)


def status_as_json(numbers: list[Number], capfd: Capture) -> None:
    records = json.loads(enter("status --json", capfd).out)
    rows = [{"folder": record["folder"], **record["metrics"]} for record in records]
    assert shown_by(rows, "folder", numbers) == by_folder(numbers)


def report(numbers: list[Number], capfd: Capture) -> None:
    data = collect([], Path("outputs"), Path.cwd())
    rows = [{"folder": run["folder"], **run["metrics"]} for run in data["runs"]]
    assert shown_by(rows, "folder", numbers) == by_folder(numbers)
    assert all(name in data["metrics"] for run in data["runs"] for name in run["metrics"])


def once(numbers: Collection[Number]) -> list[Number]:
    """The numbers without those of copies of runs."""
    return [number for number in numbers if not number.folder.startswith("outputs/copies")]


def means(numbers: Collection[Number]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for number in once(numbers):
        values.setdefault(number.loss, []).append(100 * number.value)
    return {loss: sum(of_loss) / len(of_loss) for loss, of_loss in values.items()}


def table_of_means(numbers: list[Number], capfd: Capture) -> None:
    for metric, k in kinds(numbers):
        of_kind = [number for number in numbers if (number.metric, number.k) == (metric, k)]
        words = ["g", "--rows", "loss", "--metric", name_of(metric, k, numbers), "--format", "csv"]
        capfd.readouterr()
        assert table.main(words) == 0
        rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
        names = (" ".join(filter(None, [row["loss"], row.get("plugins.edited")])) for row in rows)
        assert dict(zip(names, (float(row["mean"]) for row in rows), strict=True)) == pytest.approx(means(of_kind))


def end_of_a_grid(numbers: list[Number], capfd: Capture) -> None:
    """The tables below a grid of these runs, and the one of a grid with a seed."""
    for seeds in (None, 0):
        chosen = [n for n in once(numbers) if seeds is None or n.seed == seeds]
        groups = {loss: sorted({n.folder for n in chosen if n.loss == loss}) for loss in means(chosen)}
        capfd.readouterr()
        show({f"loss={loss}": [(Path(folder), None) for folder in of_loss] for loss, of_loss in groups.items()})
        printed = capfd.readouterr().out
        for metric, k in kinds(chosen):
            of_kind = [n for n in chosen if (n.metric, n.k) == (metric, k)]
            heading = name_of(metric, k, chosen)
            assert heading in printed or heading.removesuffix("/top1") in printed
            for mean in means(of_kind).values():
                assert f"{mean:.2f}" in printed or f"{mean:.1f}" in printed


def figure_of_means(numbers: list[Number], capfd: Capture) -> None:
    for metric, k in kinds(numbers):
        of_kind = [number for number in numbers if (number.metric, number.k) == (metric, k)]
        figure = ssl_bench.figure(x="loss", metric=name_of(metric, k, numbers))
        heights = [float(y) for axis in figure.axes for line in axis.lines for y in np.asarray(line.get_ydata())]
        for mean in means(of_kind).values():
            assert any(height == pytest.approx(mean) for height in heights)


def what_matters(numbers: list[Number], capfd: Capture) -> None:
    """The means of the losses, or in a sentence that nothing else than the seed varies."""
    for metric, k in kinds(numbers):
        of_kind = once([number for number in numbers if (number.metric, number.k) == (metric, k)])
        by_loss = means(of_kind)
        try:
            record = ssl_bench.compare(metric=name_of(metric, k, numbers)).record
        except ConfigError as refusal:
            alone = len(by_loss) == 1 and " seed" in str(refusal)
            assert alone or re.search("loss and (epochs|plugins.edited) vary together", str(refusal))
            continue
        (setting,) = record["settings"]
        levels = dict(zip(setting["levels"], setting["means"], strict=True))
        if len({frozenset(n.seed for n in of_kind if n.loss == loss) for loss in by_loss}) == 1:
            names = {loss.rpartition(" ")[2] if setting["setting"] != "loss" else loss: loss for loss in by_loss}
            assert {names[level]: mean for level, mean in levels.items()} == pytest.approx(by_loss)
        assert record["runs"] == len({(n.loss, n.seed) for n in of_kind})


def comparison(numbers: list[Number], capfd: Capture) -> None:
    runs = select.chosen([])
    for metric, k in kinds(numbers):
        values: dict[tuple[int, int], dict[str, float]] = {}
        for number in once(numbers):
            if (number.metric, number.k) == (metric, k):
                values.setdefault((number.epochs, number.seed), {})[number.loss] = 100 * number.value
        pairs = {seed: of for (_, seed), of in sorted(values.items()) if {*LOSSES} <= of.keys()}
        name = name_of(metric, k, numbers)
        if len({loss for of in values.values() for loss in of}) == 1:  # one loss has this number
            with pytest.raises(ConfigError, match="loss"):
                compare(runs, "loss", "infonce", name)
            continue
        rows = compare(runs, "loss", "infonce", name).rows
        assert [row.seeds for row in rows] == ([list(pairs)] if pairs else [])
        for row in rows:
            expected = [of["dcl"] - of["infonce"] for of in pairs.values()]
            assert row.difference == pytest.approx(sum(expected) / len(expected))


def plain_name(numbers: list[Number], capfd: Capture) -> None:
    """The plain name of several evaluations is the one that all runs have, which is said, or refused with the list."""
    runs = runs_table.finished(select.chosen([]))
    ks = {number.k for number in numbers if number.metric == "knn/top1"}
    counts = {k: len({n.folder for n in numbers if (n.metric, n.k) == ("knn/top1", k)}) for k in ks}
    of_all = [k for k in ks if counts[k] == len(runs)]
    capfd.readouterr()
    code = table.main(["g", "--rows", "loss", "--metric", "knn/top1", "--format", "md"])
    printed = capfd.readouterr()
    if len(ks) == 1:
        assert code == 0 and runs_table.choose(runs, "--metric", "knn/top1") == ("knn/top1", "")
    elif len(of_all) == 1:
        assert code == 0 and f"knn[k={of_all[0]}]/top1" in printed.out
    else:
        assert code == 2 and "ssl-bench: --metric=knn/top1: " in printed.err
        assert all(f"knn[k={k}]/top1" in printed.err for k in ks)


def papers_cells(numbers: list[Number], capfd: Capture) -> None:
    """A table of one's own asks for k = 20 and for k = 1, after one epoch."""
    words = [word for word in BASE if not word.startswith(("tracking", "log_every"))]
    node: dict[str, Any] = {"title": "t", "metric": "knn/top1", "set": [*words, "dataset.root=images"]}
    node["seeds"] = [0, 1, 2]
    node |= {"columns": {"20": ["evaluate.knn.k=20"], "1": ["evaluate.knn.k=1"]}}
    node |= {"rows": {loss: {"set": [f"loss={loss}"]} for loss in LOSSES}}
    Path("own.yaml").write_text(json.dumps({"paper": "own", "cite": "me", "tables": {"t": node}}))
    (own,) = tables.find("own.yaml")
    results = Results(Path("outputs"), own.cells)
    for cell in own.cells:
        of_cell = [n for n in truth(1) if (n.metric, n.loss, str(n.k)) == ("knn/top1", cell.row, cell.column)]
        assert results.values(cell) == pytest.approx({n.seed: 100 * n.value for n in of_cell})


def card(numbers: list[Number], capfd: Capture) -> None:
    for run in runs_table.finished(select.chosen([]))["run"]:
        of_run = [number for number in numbers if number.folder == str(run.folder)]
        out = Path("cards") / f"{len(list(Path('cards').glob('*')))}"
        if "plugins" in run.config:  # whose source is there no more
            capfd.readouterr()
            quietly(export.main, str(run.folder), "--format", "card", "--out", str(out), code=2)
            assert "plugins=[edited]" in capfd.readouterr().err
            continue
        quietly(export.main, str(run.folder), "--format", "card", "--out", str(out))
        lines = re.findall(r"^\| `([^`]*)` \| ([\d.]+)%", (out / "README.md").read_text(), re.MULTILINE)
        shown = {kind: float(text) for name, text in lines if (kind := meant(name, of_run))}
        assert shown == pytest.approx({(n.metric, n.k): 100 * n.value for n in of_run}, abs=0.051)


def dashboards(numbers: list[Number], capfd: Capture) -> None:
    """W&B and TensorBoard get the flat metrics: plain names are those of the evaluation of the training."""
    for path in Path("outputs").glob("*/*/results.json"):
        content = json.loads(path.read_text())
        k = content["config"]["evaluate"]["knn"]["k"]
        for number in (number for number in numbers if number.folder == str(path.parent)):
            name = number.metric if number.k == k else number.metric.replace("knn", f"knn[k={number.k}]")
            assert content["metrics"][name] == number.value


READERS: list[Callable[[list[Number], Capture], None]] = [runs_in_python, status_as_csv, status_as_json, report]
READERS += [table_of_means, end_of_a_grid, figure_of_means, comparison, plain_name, papers_cells, card, dashboards]
READERS += [what_matters]


@pytest.mark.parametrize("action", SOME + [pytest.param(action, marks=pytest.mark.slow) for action in OTHERS])
def test_each_reader_shows_a_number_with_what_made_it(action: Callable[[], None], here: None, capfd: Capture) -> None:
    """After an action of this process, which had read the runs before."""
    assert len(ssl_bench.runs()) == 4
    action()
    for read in READERS:
        try:
            read(truth(), capfd)
        except Exception as error:
            error.add_note(f"{read.__name__} after {action.__name__}")
            raise


def test_one_training_with_other_numbers_in_two_folders_is_refused_with_both(here: None, capfd: Capture) -> None:
    first = folders("dcl")[0]
    other = Path("outputs/copies") / first.name
    shutil.copytree(first, other)
    content = json.loads((other / "results.json").read_text())
    (entry,) = [entry for entry in content["evaluations"] if entry["evaluator"] == "knn"]
    entry["metrics"]["knn/top1"] = content["metrics"]["knn/top1"] = 0.99
    del entry["hits"]
    (other / "results.json").write_text(json.dumps(content))
    for command in ("table --rows loss --columns seed loss=dcl,infonce", "compare --by loss"):
        answer = enter(command, capfd)
        assert answer.code == 2 and str(first) in answer.err and str(other) in answer.err, (command, answer)
        assert "knn/top1" in answer.err
