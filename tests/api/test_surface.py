"""Names that ``import ssl_bench`` gives, and that they cost nothing until they are used."""

import subprocess
import sys
import typing
from typing import Any

import pytest
from matplotlib.figure import Figure
from pandas import DataFrame
from PIL.Image import Image
from torch import nn

import ssl_bench
from ssl_bench.api.reading import WhatMatters
from ssl_bench.networks.weights import Which
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


@pytest.mark.slow
def test_the_import_loads_nothing_and_the_losses_load_no_hydra() -> None:
    heavy = "('torch', 'numpy', 'torch._dynamo', 'hydra', 'wandb', 'sklearn', 'matplotlib', 'pandas')"
    code = f"""import sys, ssl_bench
before = [m for m in {heavy} if m in sys.modules]
ssl_bench.runs
before += [m for m in {heavy} if m in sys.modules]
ssl_bench.PairLoss
print(before, [m for m in {heavy} if m in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] ['torch', 'numpy']"


def test_no_room_but_that_of_the_entry_imports_this_one() -> None:
    assert [room for room, others in graph().items() if "api" in others] == ["check", "commands", "train"]
