"""Results folders that are made by hand: a grid of 24 runs, and runs with hostile names and values."""

import math
from pathlib import Path
from typing import Any

from tests.results import folders
from tests.results.folders import OUTPUTS, add, fail, make_grid

HOSTILE = "</script><script>window.hacked=1</script>"
FACTS = {"negatives_per_anchor": 0, "steps": 20}
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501012718e366"
    "0000000049454e44ae426082"
)


def curve(count: int, start: float) -> list[dict[str, Any]]:
    """Rows of a training: ten steps are an epoch."""
    return [
        {"step": n, "epoch": n / 10, "loss": start * math.exp(-n / count), "images_per_second": 100.0, "seconds": n / 1}
        for n in range(1, count + 1)
    ]


def run(
    name: str,
    accuracy: float | None,
    loss: str,
    size: int,
    tau: float,
    seed: int,
    command: str | None = None,
    **more: Any,
) -> Path:
    """A run with its curve and, if it is finished, its facts."""
    settings = {"loss": loss, "batch_size": size, "temperature__tau": tau, "seed": seed, **more}
    folder = folders.run(name, accuracy, curve(20, 3 + tau), command, **settings, epochs=2)
    if accuracy is not None:
        add(folder, facts=FACTS | {"negatives_per_anchor": 2 * size - 2}, environment={"ranks": 1, "device": "a CPU"})
    return folder


def grid() -> list[Path]:
    """A grid of 24 runs under ``outputs`` of the working directory; the last one has failed, one has a picture."""
    made, words = list[Path](), list[str]()
    for loss in ("dcl", "infonce"):
        for size in (64, 128, 256):
            for tau in (0.1, 0.4):
                for seed in (0, 1):
                    word = f"name=grid loss={loss} batch_size=b{size} temperature.tau={tau} seed={seed}"
                    last = len(made) == 23
                    accuracy = None if last else 0.5 + 0.1 * (loss == "dcl") + tau / 10 + size / 10000 + seed / 100
                    made.append(run("grid/", accuracy, loss, size, tau, seed, word))
                    words.append(word)
    fail(made[-1])
    (made[0] / "figures").mkdir()
    (made[0] / "figures" / "npc.png").write_bytes(PNG)
    make_grid("1", words, dict(enumerate(made)))
    return made


def hostile() -> Path:
    """A finished run whose every text tries to be more than a text; it has a log and a picture."""
    name = '"><img src=x onerror=window.hacked=2>/'
    folder = run(name, 0.9, HOSTILE, 64, 0.1, 0, f"'loss={HOSTILE}'")
    add(folder, metrics={"knn/top1": 0.9, f"<b>{HOSTILE.replace('/', '')}/top1": 0.1}, environment={"torch": HOSTILE})
    (folder / "train.log").write_text(f"{HOSTILE}\n<b>bold</b> \x1b[31m ../../etc/passwd\n")
    (folder / "figures").mkdir()
    (folder / "figures" / "'<img src=x>.png").write_bytes(PNG)
    assert OUTPUTS in folder.parents
    return folder
