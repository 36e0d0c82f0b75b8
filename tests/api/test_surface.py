"""Names that ``import ssl_bench`` gives, which cost nothing until they are used, and what they show in a notebook."""

import base64
import io
import os
import re
import subprocess
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from PIL.Image import Image
from torch import nn

import ssl_bench
from ssl_bench.api import options
from ssl_bench.api.reading import WhatMatters
from ssl_bench.api.views import views
from ssl_bench.config.compose import load
from ssl_bench.networks.weights import Which
from ssl_bench.training import build
from tests.conftest import SMALL
from tests.data.photos import photos
from tests.door.door import refused
from tests.test_layout import graph

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import build_docs

NAMES = ["PairLoss", "alignment_uniformity", "chunked", "curves", "knn", "linear_probe", "load", "runs", "views"]
NAMES += ["compare", "embed", "figure", "load_weights", "show_views", "table"]


def test_every_name_is_listed_and_documented() -> None:
    assert dir(ssl_bench) == sorted(["__version__", "train", *NAMES])
    assert ssl_bench.train.__name__ == "ssl_bench.train" and "Args:" in ssl_bench.train.train.__doc__  # type: ignore[attr-defined]
    for name in NAMES:
        value = getattr(ssl_bench, name)
        assert value.__name__ == name and value.__module__.startswith("ssl_bench.api.") and "Args:" in value.__doc__
        assert getattr(ssl_bench, name) is value
    with pytest.raises(AttributeError, match="TripletLoss"):
        _ = ssl_bench.TripletLoss  # type: ignore[attr-defined]


def test_every_function_says_what_it_returns() -> None:
    """A type, not Any."""
    functions = [getattr(ssl_bench, name) for name in NAMES if name != "PairLoss"] + [ssl_bench.train.train]  # type: ignore[attr-defined]
    names = {"DataFrame": DataFrame, "Figure": Figure, "Image": Image, "nn": nn, "Which": Which}
    returned = {f.__name__: typing.get_type_hints(f, localns=names).get("return", Any) for f in functions}
    assert [name for name, kind in returned.items() if Any in (kind, *typing.get_args(kind))] == []
    assert sorted(n for n, kind in returned.items() if kind is DataFrame) == ["curves", "runs", "table", "train"]
    assert returned["compare"] == DataFrame | WhatMatters and returned["figure"] is Figure


def test_no_room_but_that_of_the_entry_imports_this_one() -> None:
    assert [room for room, others in graph().items() if "api" in others] == ["check", "commands", "train"]


ALONE = """
import sys
sys.modules["numpy"] = None
import torch
class Others:
    def find_spec(self, name, *more):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "torch", "ssl_bench"}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Others())
from ssl_bench import PairLoss
for words in ({}, {"negatives": "random_k", "k": 8}, {"negatives": "queue", "k": 64, "temperature": "learned"}):
    z = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = PairLoss("dcl", **words)(*z)
    value.backward()
    print(value.item(), bool(z.grad.isfinite().all()))
"""


def test_a_loss_needs_torch_alone() -> None:
    """No package can be imported after torch, and numpy not at all."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ALONE], capture_output=True, text=True, check=True)
    values = [line.split() for line in done.stdout.splitlines()]
    z = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(0))
    assert float(values[0][0]) == pytest.approx(ssl_bench.PairLoss("dcl")(*z).item())
    assert [finite for _, finite in values] == ["True"] * 3


# ---- the tutorial as a notebook, run by a kernel: what its cells show of tables and of figures


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")  # of the client of notebooks
def test_the_tutorial_is_a_notebook_that_shows_tables_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer steps, runs and photos than those of the reader, and with three further cells."""
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))  # of the extra dev
    page = (Path(build_docs.__file__).parent / "examples" / "tutorial.md").read_text()
    page = re.sub(r"epochs=20(?! evaluate)", "epochs=20 evaluate=knn", page)
    page = page.replace("epochs=20", "max_steps=1 tracking=off").replace("seed=0,1,2,3,4", "seed=0,1")
    page = page.replace("optimizer.lr=0.03,0.1,0.3", "optimizer.lr=0.1")
    book = build_docs.notebook(page)
    cells = [f"ssl_bench.train({[*SMALL, 'max_steps=1', 'evaluate=knn', 'seed=0,1']}, name='mine', jobs=2)"]
    cells += ["ssl_bench.compare('grid', where={'optimizer.lr': 0.1}).figure()", "ssl_bench.show_views(['seed=1'])"]
    book.cells += map(nbformat.v4.new_code_cell, cells)
    photos(tmp_path / "photos", "cats", "dogs", count=60)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=place).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "2 runs: 2 trained" in printed and "report.html: " in printed and "export/card/README.md" in printed
    means, text, lines, table, bars, views = [o["data"] for o in outputs if o["output_type"] == "execute_result"]
    assert "<th>mean</th>" in means["text/html"] and "largest difference" in text["text/plain"]
    assert table["text/html"].count("<td>finished</td>") == 2 and table["text/html"].count("<th>knn/top1</th>") == 1
    for drawn in map(picture, (lines, bars)):
        assert min(drawn.size) > 300 and len(set(drawn.getdata())) > 20
    assert picture(views).tobytes() == ssl_bench.show_views(["seed=1"]).tobytes()


def picture(shown: Mapping[str, str]) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(base64.b64decode(shown["image/png"]))).convert("RGB")


# ---- views by name against the views of a run


IMAGES = torch.randint(256, (6, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", options.names("augment"))
def test_an_option_makes_the_views_of_a_run(name: str) -> None:
    """Bit for bit, with each image's draws from one generator."""
    run = build.build(load([f"augment={name}", "dataset=cifar10", "framework=simclr"]))
    colours = {key: run.config["dataset"][key] for key in ("mean", "std")}
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    found = views(name, size=32, **colours)(IMAGES, generators[0])
    expected = [make(IMAGES, generators[1]) for make in run.views]
    assert len(found) == len(expected) == (8 if "multicrop" in name else 2)
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)


def test_options_count_and_the_global_generator() -> None:
    make = views("simclr", size=16, count=3, grayscale=1.0)
    torch.manual_seed(0)
    first = make(IMAGES)
    assert [list(x.shape) for x in first] == [[6, 3, 16, 16]] * 3
    assert all(torch.allclose(x[:, 0], x[:, 1]) for x in first) and not torch.equal(first[0], first[1])
    torch.manual_seed(0)
    assert all(torch.equal(x, y) for x, y in zip(first, make(IMAGES), strict=True))


def test_images_are_bytes() -> None:
    for images in (IMAGES / 255, IMAGES.movedim(1, 3), IMAGES[:0], IMAGES[0]):
        kind = f"{images.dtype} {[*images.shape]}"
        with refused(f"images={kind} uint8 [B, C, H, W] 1 3"):
            views("simclr", size=8)(images)


def test_images_of_numpy_in_any_order_and_a_generator() -> None:
    make = views("simclr", size=8)
    expected = make(IMAGES, torch.Generator().manual_seed(1))
    last = IMAGES.movedim(1, 3).contiguous()
    for images in (IMAGES.numpy(), last.movedim(3, 1), last.numpy().transpose(0, 3, 1, 2)):
        with torch.autocast("cpu", torch.bfloat16):
            found = make(images, torch.Generator().manual_seed(1))
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
