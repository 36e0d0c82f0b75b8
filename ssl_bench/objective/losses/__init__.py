"""The losses, one file each: ``loss(contrast, tau) -> [V, B]``, a value per anchor, unreduced.

s is the cosine of an anchor and its positive, s_k those of its K negatives, l = log sum_k exp(s_k / tau) and
u = l - s / tau the log-odds against the positive; sg stops the gradient.

Every subclass of Loss in a file of this folder can be imported from here, without being listed.

.. include:: README.md
"""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ssl_bench.objective.loss import Loss


def _losses() -> Iterator[type[Loss]]:
    for file in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{file.name}")
        for member in vars(module).values():
            if isinstance(member, type) and issubclass(member, Loss) and member.__module__ == module.__name__:
                yield member


LOSSES = {loss.__name__: loss for loss in _losses()}
globals().update(LOSSES)
__all__ = list(LOSSES)
_ROWS = "".join(f"| `{name}` | {loss.equation} | {loss.gradient} | {loss.code} |\n" for name, loss in LOSSES.items())
__doc__ = f"{__doc__}\n| loss | value per anchor | gradient per anchor | public code |\n|---|---|---|---|\n{_ROWS}"

if TYPE_CHECKING:  # type checkers do not see what the update adds

    def __getattr__(name: str) -> Any: ...
