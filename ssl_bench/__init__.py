"""Contrastive self-supervised learning with loss, negatives, batch size and temperature as independent axes.

``train`` trains runs and grids, and ``show_views`` draws what a network sees. For training loops of one's own:
``PairLoss``, ``knn``, ``linear_probe``, ``alignment_uniformity``, ``views``, ``chunked``, ``load_weights`` and
``embed``. For the results of runs: ``runs``, ``compare``, ``table``, ``figure``, ``curves`` and ``load``. Each is
imported when it is first used, so that ``import ssl_bench`` takes no time. ``PairLoss`` needs no package but torch.
Which loss and which negatives: `ssl_bench.objective`. How the losses follow from each other:
`ssl_bench.objective.losses`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.chunked import chunked
    from .api.embed import embed
    from .api.features import alignment_uniformity, knn, linear_probe, load_weights
    from .api.pair_loss import PairLoss
    from .api.reading import compare, curves, figure, load, runs, table
    from .api.views import show_views, views
    from .train import train

__version__ = "0.5.0"
__all__ = ["PairLoss", "alignment_uniformity", "chunked", "compare", "curves", "embed", "figure", "knn", "linear_probe"]
__all__ += ["load", "load_weights", "runs", "show_views", "table", "train", "views"]

_MODULES = {"chunked": "chunked", "embed": "embed", "PairLoss": "pair_loss", "show_views": "views", "views": "views"}
_MODULES |= dict.fromkeys(("alignment_uniformity", "knn", "linear_probe", "load_weights"), "features")
_MODULES |= dict.fromkeys(("compare", "curves", "figure", "load", "runs", "table"), "reading")


def __getattr__(name: str) -> Any:
    if name == "train":  # a module that can be called
        return importlib.import_module(f"{__name__}.train")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.api.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return ["__version__", *__all__]
