"""Successive halving of a grid (Jamieson and Talwalkar 2016, arXiv 1502.07943): stop early what is hopeless.

All runs halt after the first of some numbers of epochs. The best share of them goes on to the next, and so on to the
end. ``halt_at`` is no part of a run: what goes on to the end is the ordinary run, bit for bit, and a sweep that was
interrupted goes on by the same command.
"""

import math
from collections.abc import Mapping

from ssl_bench.commands.search import Search
from ssl_bench.launch.plan import Plan, Strategy
from ssl_bench.launch.run import Run


def halving(plan: Plan) -> Strategy:
    """Train the runs of a grid from halt to halt, fewer each time; the share that goes on is rounded up."""
    search = Search(plan)
    alive = plan.every(search.check)
    for epoch in [*search.epochs[:-1], None]:
        values = yield from search.values_at(epoch, alive)
        alive = _best(search, alive, values, epoch) if epoch else alive
    search.conclude()


def _best(search: Search, runs: list[Run], values: Mapping[int, float | None], epoch: int) -> list[Run]:
    """The runs that go on; one without a value has failed or diverged and does not."""
    kept = list[Run]()
    for name, members in search.groups(runs).items():
        measured = {run: value for run in members if (value := values[run.number]) is not None}
        best = sorted(measured, key=lambda run: -measured[run])[: max(1, math.ceil(search.keep * len(members)))]
        kept += best
        text = f", the best with {search.metric} {measured[best[0]]:.4g}: {' '.join(best[0].overrides)}" if best else ""
        print(f"after epoch {epoch}: {len(best)} of {len(members)} {name}".rstrip() + f" go on{text}", flush=True)
    return sorted(kept, key=lambda run: run.number)
