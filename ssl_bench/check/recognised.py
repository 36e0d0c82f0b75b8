"""Which formula a loss of one's own is, by its value and gradient on one rank."""

import contextlib
import io
import shlex
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ssl_bench.check import formulas
from ssl_bench.check.conformance import (
    SECONDS,
    TAU,
    Subject,
    apply_formula,
    exact,
    is_multiple,
    make_batches,
    measure_here,
)
from ssl_bench.check.imported import imported
from ssl_bench.check.ranks import on_ranks
from ssl_bench.disk import temporary
from ssl_bench.distributed import join_local
from ssl_bench.errors import ConfigError, reason


def formula_of(target: str, options: Mapping[str, Any]) -> str:
    """The formula with these options whose value and gradient a loss has on one rank.

    Raises:
        ConfigError: the loss cannot be imported, or has those of no formula.
    """
    imported(target)
    with temporary.folder() as folder:
        ((formula, is_exact, why),) = on_ranks(partial(_nearest, target, options, folder), 1, folder)
    if not is_exact:
        command = f"ssl-bench conformance {shlex.quote(target)} --as {formula}"
        remedy = f"say which it should have, such as `{command}`; they are {', '.join(formulas.FORMULAS)}"
        raise ConfigError(f"{target} has value and gradient of no formula{why and f' ({why})'}: {remedy}")
    return formula


def _nearest(target: str, options: Mapping[str, Any], folder: Path, number: int) -> tuple[str, bool, str]:
    """A formula, whether the loss has its value and gradient, and what the loss raised if it always did."""
    warnings.simplefilter("ignore")
    join_local(folder / "meeting", number, 1, torch.device("cpu"), SECONDS)
    multiples, raised, count = list[str](), list[str](), 0
    for name in formulas.FORMULAS:
        try:
            right = apply_formula(formulas.make(name, options), make_batches(), TAU)
        except ConfigError:  # it has no such options
            continue
        count += 1
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                measured = measure_here(Subject(target, name, options), torch.float64, TAU, resume=False)
        except Exception as error:  # whatever the loss raises
            raised.append(f"{type(error).__name__}: {reason(error)}")
            continue
        if exact(measured, right):
            return name, True, ""
        if is_multiple(measured[1], right[1]):
            multiples.append(name)
    return (multiples or ["nt_xent"])[0], False, raised[0] if raised and len(raised) == count else ""
