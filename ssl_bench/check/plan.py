"""The section plan: what each table of the papers would take on this machine, from the rates of the section speed."""

from collections.abc import Iterator, Sequence
from functools import partial

from ssl_bench.check.finding import Check, Finding, Setting, Verdict
from ssl_bench.config.compositions import Composition, compositions
from ssl_bench.papers import cost, runs, tables

Priced = dict[str, float]  # hours of each run by its run_id


def section(setting: Setting) -> Iterator[Check]:
    """One check for each table, and one for all of them."""
    parallel = setting.devices if setting.device.type == "cuda" else 1
    rates = cost.Rates("this machine", cost.measured(setting.earlier.get("speed", {}), parallel))
    if not rates.gflop_s:
        yield Check("tables", _no_rates)
        return
    yield Check("rates", partial(_rates, rates, parallel))
    selected = tables.every()
    cells = [cell for table in selected for cell in table.cells if cell.available]
    composed = compositions(map(runs.request, cells))
    every: Priced = {}
    for table in selected:
        priced: Priced = {}
        for cell in table.cells:
            if cell.available:
                priced |= _priced(composed[runs.request(cell)], cell.seeds, rates)
        every |= priced
        yield Check(table.name, partial(price, len(table.cells), priced))
    yield Check("all tables", partial(price, sum(len(table.cells) for table in selected), every))


def _no_rates() -> Finding:
    reason = "the section speed has measured no rate"
    return Finding("", Verdict.SKIPPED, reason, "run it too: ssl-bench check --only speed,plan")


def _rates(rates: cost.Rates, parallel: int) -> Finding:
    """The rates that are used. Runs are independent, so that each device carries out its own."""
    listed = ", ".join(f"{rate / 1e3:,.2f} TFLOP/s as {name}" for name, rate in rates.gflop_s.items())
    where = f" on {parallel} GPUs, a run on each" if parallel > 1 else ""
    return Finding(f"{listed}{where}", values={f"{name} gflop_s": rate for name, rate in rates.gflop_s.items()})


def _priced(composed: object, seeds: Sequence[int], rates: cost.Rates) -> Priced:
    """The runs of a cell; none if it cannot be composed."""
    if not isinstance(composed, Composition):
        return {}
    config = composed.config(seeds[0])
    hours = cost.hours(config, rates) or 0.0 if "epochs" in config else 0.0  # computations without training take none
    return dict.fromkeys(composed.run_ids(seeds).values(), hours)


def price(cells: int, priced: Priced) -> Finding:
    """Hours of pre-training of a table.

    Args:
        cells: numbers in the table.
        priced: its runs; one run may fill several cells.
    """
    hours = sum(priced.values())
    units = (("years", 24 * 365.25), ("days", 24.0), ("h", 1.0))
    unit, size = next((each for each in units if hours >= 2 * each[1]), units[-1])
    runs = "1 run" if len(priced) == 1 else f"{len(priced)} runs"
    figure = f"{hours / size:,.1f} {unit} for {runs} of {cells} cells"
    if not hours:
        figure = f"{runs} without training for {cells} cells" if priced else f"{cells} cells without a run"
    return Finding(figure, values={"hours": round(hours, 4), "runs": len(priced), "cells": cells})
