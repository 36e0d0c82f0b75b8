"""Successive halving of a grid (Jamieson and Talwalkar 2016, arXiv 1502.07943): stop early what is hopeless.

All runs halt after the first of some numbers of epochs. The best share of the settings goes on to the next, with all
their seeds, and so on to the end. ``halt_at`` is no part of a run: what goes on to the end is the ordinary run, bit for
bit, and a sweep that was interrupted goes on by the same command.
"""

import math
from collections.abc import Iterable

from ssl_bench.commands.search import Search
from ssl_bench.launch.plan import Plan, Strategy
from ssl_bench.launch.run import Run


def halving(plan: Plan) -> Strategy:
    """Train the runs of a grid from halt to halt, fewer each time; the share of settings that goes on is rounded up."""
    search = Search(plan)
    alive = plan.every(search.check)
    for epoch in [*search.epochs[:-1], None]:
        yield from search.train(alive, epoch)
        alive = _going_on(search, alive, epoch) if epoch else alive
    search.conclude()


def _going_on(search: Search, runs: Iterable[Run], epoch: int) -> list[Run]:
    """The runs that go on: all seeds of the best settings, and of those that have no value because they are past it."""
    kept = list[Run]()
    for name, members in search.settings(runs).items():
        standings = [search.standing(of_setting, epoch) for of_setting in members]
        past = [s for s in standings if s.mean is None and not s.failed]
        means = {place: search.sign * s.mean for place, s in enumerate(standings) if s.mean is not None}
        count = max(1, math.ceil(search.keep * (len(standings) - len(past))))
        best = [standings[place] for place in sorted(means, key=lambda place: -means[place])[:count]]
        kept += [run for s in [*best, *past] for run in s.runs]
        text = f"after epoch {epoch}: {len(best)} of {len(members) - len(past)} {name}".rstrip() + " go on"
        if best:
            text += f", the best with {search.metric} {best[0].text}: {search.words(best[0])}"
        print(text, flush=True)
        for s in past:
            why = f"it was trained without a number of this evaluation after epoch {epoch}"
            print(f"{search.words(s)} goes on without a place: {why}", flush=True)
        for sentence in filter(None, map(search.left_out, standings)):
            print(sentence, flush=True)
    return sorted(kept, key=lambda run: run.number)
