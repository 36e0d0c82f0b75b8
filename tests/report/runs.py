"""Results folders that are made by hand: a grid of 24 runs, and runs with hostile names and values."""

import json
import math
from pathlib import Path
from typing import Any

from tests.evaluated import with_evaluations
from tests.results.folders import OUTPUTS, finish, make, make_grid

HOSTILE = "</script><script>window.hacked=1</script>"
FACTS = {"negatives_per_anchor": 0, "steps": 20}
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501012718e366"
    "0000000049454e44ae426082"
)


def curve(count: int, start: float) -> list[dict[str, Any]]:
    """Rows of a training: ten steps are an epoch."""
    return [
        {
            "step": n,
            "epoch": n / 10,
            "loss": start * math.exp(-n / count),
            "images_per_second": 100.0,
            "seconds": 1.0 * n,
        }
        for n in range(1, count + 1)
    ]


def run(
    name: str, command: str, accuracy: float | None, loss: str, size: int, tau: float, seed: int, data: str = "mnist"
) -> Path:
    """A run of a loss, a batch size, a temperature and a seed; finished if it has an accuracy."""
    choices = {"dataset": data, "loss": loss, "batch_size": f"b{size}"}
    settings = {"choices": choices, "seed": seed, "temperature": {"tau": tau}, "batch_size": {"size": size}}
    settings["loss"] = {"of": loss}
    folder = make(name, curve(20, 3 + tau), epochs=2, **settings)
    (folder / "command.txt").write_text(command + "\n")
    if accuracy is not None:
        finish(folder, 20.0, knn_top1=accuracy)
        add(folder, facts=FACTS | {"negatives_per_anchor": 2 * size - 2}, environment={"ranks": 1, "device": "a CPU"})
    return folder


def add(folder: Path, **parts: Any) -> None:
    """Add parts to ``results.json``, with the evaluations of another configuration and other metrics."""
    path = folder / "results.json"
    content = json.loads(path.read_text()) | parts
    other = any(isinstance(parts.get(name), dict) for name in ("config", "metrics"))
    path.write_text(json.dumps(with_evaluations(content) if other else content))


def grid() -> list[Path]:
    """A grid of 24 runs under ``outputs`` of the working directory; the last one has failed, one has a picture."""
    folders, words = list[Path](), list[str]()
    for loss in ("dcl", "infonce"):
        for size in (64, 128, 256):
            for tau in (0.1, 0.4):
                for seed in (0, 1):
                    word = f"name=grid loss={loss} batch_size=b{size} temperature.tau={tau} seed={seed}"
                    last = len(folders) == 23
                    accuracy = None if last else 0.5 + 0.1 * (loss == "dcl") + tau / 10 + size / 10000 + seed / 100
                    folders.append(run("grid/", f"ssl-bench train {word}", accuracy, loss, size, tau, seed))
                    words.append(word)
    (folders[-1] / "failed.json").write_text(
        json.dumps({"reason": "the loss is not finite: set optimizer.lr to a smaller value"})
    )
    (folders[0] / "figures").mkdir()
    (folders[0] / "figures" / "npc.png").write_bytes(PNG)
    make_grid("1", words, dict(enumerate(folders)))
    return folders


def hostile() -> Path:
    """A finished run whose every text tries to be more than a text; it has a log and a picture."""
    name = '"><img src=x onerror=window.hacked=2>/'
    folder = run(name, f"ssl-bench train 'loss={HOSTILE}'", 0.9, HOSTILE, 64, 0.1, 0)
    add(folder, metrics={"knn/top1": 0.9, f"<b>{HOSTILE.replace('/', '')}/top1": 0.1}, environment={"torch": HOSTILE})
    (folder / "train.log").write_text(f"{HOSTILE}\n<b>bold</b> \x1b[31m ../../etc/passwd\n")
    (folder / "figures").mkdir()
    (folder / "figures" / "'<img src=x>.png").write_bytes(PNG)
    assert OUTPUTS in folder.parents
    return folder
