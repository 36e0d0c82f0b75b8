"""Honest runs, each trained once, and the editing of their files: what ``forged.py`` makes its runs of."""

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from ssl_bench.commands.train import main as train
from ssl_bench.config.identity import run_id
from ssl_bench.record import checkpoint, evaluations
from tests.conftest import SMALL, no_pictures, only_run

SHORT = [*SMALL, "threads=1", "epochs=40", "max_steps=24", "evaluate=[knn]"]
GROWS = "optimizer.schedule=constant max_steps=null"  # its length is no part of its identity
Content = dict[str, Any]
Change = Callable[[Content], None]


class Runs:
    """Honest runs, each trained once; a test is given copies."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trained, self.copies = folder, dict[str, Path](), itertools.count()

    def __call__(self, typed: str = "") -> Path:
        """A copy of the run with some overrides, in the working directory."""
        if typed not in self.trained:
            place = self.folder / str(len(self.trained))
            with no_pictures():
                assert train([*SHORT, *typed.split(), f"paths.outputs={place}"]) == 0
            self.trained[typed] = only_run(place)
        run, copy = self.trained[typed], Path("outputs", str(next(self.copies)), self.trained[typed].name)
        shutil.copytree(run, copy)
        return copy

    def images(self, seed: int) -> Path:
        """A folder of random images in two classes."""
        folder, generator = self.folder / f"images{seed}", np.random.default_rng(seed)
        for number in range(0 if folder.exists() else 200):
            path = folder / str(number % 2) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
        return folder

    def own(self, seed: int) -> Path:
        """A copy of a run on such a folder."""
        images = f"dataset=folder dataset.root={self.images(seed)} dataset.size=16 dataset.test_share=0.5"
        return self(f"{images} backbone=resnet_digits batch_size.size=64 max_steps=4")


# ---- editing


def edit(path: Path, change: Change) -> None:
    """Change the content of a file of a run."""
    if path.suffix == ".pt":
        state = checkpoint.read(path)
        change(state)
        torch.save(state, path)
    elif path.suffix == ".jsonl":
        rows = read_rows(path.parent)
        for row in rows:
            change(row)
        write_rows(path.parent, rows)
    else:
        content = yaml.safe_load(path.read_text())
        change(content)
        path.write_text(json.dumps(content))


def read_rows(run: Path) -> list[Content]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def write_rows(run: Path, rows: Sequence[Content]) -> Path:
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def configured(run: Path, change: Change) -> Path:
    """Change the configuration wherever it stands."""
    edit(run / "config.yaml", change)
    edit(run / "results.json", lambda content: change(content["config"]))
    return run


def named(run: Path, config: Content) -> Path:
    """Give a run the name that a configuration has."""
    name = run_id(config)
    for path in (run / "config.yaml", run / "results.json", *run.glob("checkpoints/*")):
        edit(path, lambda content: content.update({"run_id": name} if "run_id" in content else {}))
    return run.rename(run.parent / name)


def presented(run: Path, other: Path) -> Path:
    """Present a run as another one."""
    shutil.copy(other / "config.yaml", run / "config.yaml")
    theirs = json.loads((other / "results.json").read_text())
    claims = {key: theirs[key] for key in ("config", "facts")}
    edit(run / "results.json", lambda content: content.update(claims))
    for path in run.glob("checkpoints/*"):
        groups = checkpoint.read(other / "checkpoints" / path.name)["optimizer"]["param_groups"]
        edit(path, lambda state, groups=groups: state["optimizer"].update(param_groups=groups))  # type: ignore[misc]
    return named(run, theirs["config"])


def state_of(run: Path, name: str = "last.pt") -> Content:
    return checkpoint.read(run / "checkpoints" / name)


def with_last(run: Path, change: Callable[[str, Any], Any]) -> Path:
    """Change the weights of the last checkpoint, given by their names."""
    method = {name: change(name, value) for name, value in state_of(run)["method"].items()}
    edit(run / "checkpoints" / "last.pt", lambda state: state.update(method=method))
    return run


def with_weights(run: Path, method: Content) -> Path:
    edit(run / "checkpoints" / "last.pt", lambda state: state.update(method=method))
    return run


def evaluated(run: Path, change: Callable[[list[Content]], list[Content]]) -> Path:
    """Change the entries of the evaluations, and the metrics with them."""

    def both(content: Content) -> None:
        content["evaluations"] = change(content["evaluations"])
        content["metrics"] = evaluations.flat(content["evaluations"], content["config"]["epochs"])

    edit(run / "results.json", both)
    return run


def each_entry(run: Path, change: Callable[[Content], Content]) -> Path:
    return evaluated(run, lambda entries: [change(entry) for entry in entries])
