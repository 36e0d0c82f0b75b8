"""The class or function of a loss of one's own, from a module or a file."""

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import ssl_bench
from ssl_bench.errors import ConfigError, reason
from ssl_bench.objective.loss import Loss


def imported(target: str) -> Any:
    """The class or function of a loss, which can be called with its temperature, or with it and two views.

    Raises:
        ConfigError: it cannot be imported.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{target}: name a loss as MODULE:NAME or FILE.py:NAME")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except Exception as error:  # whatever the code of the user raises
        remedy = "install it, or name a file as FILE.py:NAME"
        why = f"{type(error).__name__}: {reason(error)}"
        raise ConfigError(f"{target}: {place} cannot be imported ({why}): {remedy}") from error
    adapter = getattr(module, name, None)
    if not callable(adapter):
        raise ConfigError(f"{target}: {place} has no class or function {name}")
    if inspect.isclass(adapter) and issubclass(adapter, Loss):
        return lambda tau: ssl_bench.PairLoss(adapter(), tau)  # as in a loop of one's own
    return adapter
