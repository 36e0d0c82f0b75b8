"""Names that ``import ssl_bench`` gives, which cost nothing until they are used, and what they show in a notebook."""

import base64
import io
import typing
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
from tests.door.door import refused
from tests.test_layout import graph

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


# ---- a notebook, run by a kernel: what its cells show of a training, of tables and of figures

RUN = [*SMALL, "max_steps=1", "evaluate=knn"]
CELLS = {
    "train": f"import ssl_bench\nssl_bench.train({[*RUN, 'loss=infonce,dcl', 'seed=0,1']}, name='mine', jobs=2)",
    "runs": "ssl_bench.runs(where={'state': 'finished'})",
    "compare": "ssl_bench.compare()",
    "table": "ssl_bench.table(rows='loss')",
    "figure": "ssl_bench.figure(lines='loss')",
    "matters": "ssl_bench.compare().figure()",
    "views": "ssl_bench.show_views(['seed=1'])",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of the cells."""
    reason = "notebooks need the extra dev"
    nbformat = pytest.importorskip("nbformat", reason=reason)
    nbclient = pytest.importorskip("nbclient", reason=reason)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS.values()])
    place = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    client = nbclient.NotebookClient(book, timeout=300, kernel_name="python3", allow_errors=True, resources=place)
    client.execute()
    return {name: cell["outputs"] for name, cell in zip(CELLS, book.cells, strict=True)}


def shown(outputs: list[Any]) -> Any:
    """What the last line of a cell shows, by its type."""
    (answer,) = [output for output in outputs if output["output_type"] == "execute_result"]
    return answer["data"]


def picture(outputs: list[Any]) -> PIL.Image.Image:
    content = base64.b64decode(shown(outputs)["image/png"])
    assert content.startswith(b"\x89PNG")
    return PIL.Image.open(io.BytesIO(content)).convert("RGB")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")  # of the client of notebooks
def test_a_notebook_shows_tables_and_pictures(outputs: dict[str, list[Any]]) -> None:
    said = "".join(output.get("text", "") for output in outputs["train"])
    assert "4 of 4  loss=" in said and "4 runs: 4 trained" in said, outputs["train"]
    for name in ("train", "runs"):
        page = shown(outputs[name])["text/html"]
        assert page.count("<td>finished</td>") == 4 and page.count("<th>knn/top1</th>") == 1
    text = shown(outputs["compare"])["text/plain"]
    assert "knn/top1, percent: " in text and "largest difference" in text
    assert "<th>mean</th>" in shown(outputs["table"])["text/html"]
    for name in ("figure", "matters"):
        drawn = picture(outputs[name])
        assert min(drawn.size) > 300 and len(set(drawn.getdata())) > 20
    assert picture(outputs["views"]).tobytes() == ssl_bench.show_views(["seed=1"]).tobytes()


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
