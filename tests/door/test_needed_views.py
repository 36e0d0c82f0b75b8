"""A framework of a plugin that needs views of its own: PIRL (Misra and van der Maaten 2020, arXiv 1912.01991)."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ssl_bench.config.compose import load
from ssl_bench.training.parts import Parts
from tests.door.door import refuses

VIEWS = """
from dataclasses import dataclass

import torch
from torch import Tensor

from ssl_bench.data.views import ViewParameters, Views
from ssl_bench.errors import require


@dataclass(frozen=True, eq=False)
class Order(ViewParameters):
    tiles: Tensor  # [n, side * side]


class Jigsaw(Views):
    def __init__(self, side: int, **views) -> None:
        super().__init__(**views)
        require(self.size % side == 0, "side", side, f"a divisor of {self.size}")
        self.side = side

    def uniform(self, n, generator):
        more = torch.rand(n, self.side**2, generator=generator, device=generator.device)
        return torch.cat([super().uniform(n, generator), more], 1)

    def parameters(self, uniform, height, width):
        drawn = super().parameters(uniform, height, width)
        return Order(**vars(drawn), tiles=uniform[:, -self.side**2 :].argsort(1))

    def apply(self, images, parameters, dtype=torch.float32, masked=None):
        x = tiles(super().apply(images, parameters, dtype, masked), self.side)  # [n, T, C, s, s]
        order = parameters.tiles[:, :, None, None, None].expand_as(x)
        return whole(x.gather(1, order), self.side)


def tiles(x, side):
    return x.unflatten(3, (side, -1)).unflatten(2, (side, -1)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def whole(x, side):
    return x.unflatten(1, (side, side)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
"""
METHOD = """
from ssl_bench.methods.siamese import Siamese
from pirl.views import Jigsaw


class PIRL(Siamese):
    needs_views = {Jigsaw: "jigsaw"}
"""
PLUGIN = {
    "pirl/__init__.py": '__version__ = "1"\n',
    "pirl/views.py": VIEWS,
    "pirl/method.py": METHOD,
    "pirl/conf/augment/jigsaw.yaml": "defaults: [digits@image, digits@jigsaw]\nimage: {count: 1}\n"
    "jigsaw: {count: 1, _target_: pirl.views.Jigsaw, side: 2}\n",
    "pirl/conf/framework/pirl.yaml": "# @package _global_\ndefaults: [override /negatives: queue]\n"
    "framework: {_target_: pirl.method.PIRL}\n",
}
WORDS = ["framework=pirl", "plugins=[pirl]", "--config-dir", "pirl/conf"]


@pytest.fixture(autouse=True)
def pirl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for path, text in PLUGIN.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "pirl")
    yield
    for module in [module for module in sys.modules if module.partition(".")[0] == "pirl"]:
        del sys.modules[module]


def test_a_framework_is_refused_without_the_views_that_it_needs(capfd: pytest.CaptureFixture[str]) -> None:
    refuses(f"train {shlex.join(WORDS)} tracking=off", "framework=pirl Jigsaw augment=jigsaw", capfd)


def test_as_many_numbers_are_drawn_as_the_argument_of_a_view_asks_for() -> None:
    for side in (2, 4):
        config = load(["framework=pirl", "augment=jigsaw", f"augment.jigsaw.side={side}", "plugins=[pirl]"],
                      folder=Path("pirl/conf"))  # fmt: skip
        image, jigsaw = Parts(config).views
        numbers = [views.uniform(3, torch.Generator().manual_seed(0)) for views in (image, jigsaw)]
        assert [drawn.shape for drawn in numbers] == [(3, 36), (3, 36 + side**2)]
        drawn = jigsaw.parameters(numbers[1], 20, 20)
        pixels = torch.randint(256, (3, 1, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        made, plain = jigsaw.apply(pixels, drawn), image.apply(pixels, drawn)
        assert torch.equal(made.flatten().sort().values, plain.flatten().sort().values)
        s, (row, column) = 20 // side, divmod(int(drawn.tiles[1, 1]), side)  # type: ignore[attr-defined]
        assert torch.equal(made[1, :, :s, s : 2 * s], plain[1, :, row * s :, column * s :][:, :s, :s])
