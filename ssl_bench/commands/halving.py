"""Successive halving of a grid (Jamieson and Talwalkar 2016, arXiv 1502.07943): stop early what is hopeless.

All runs halt after the first of some numbers of epochs. The best share of them goes on to the next, and so on to the
end. ``halt_at`` is no part of a run: what goes on to the end is the ordinary run, bit for bit, and a sweep that was
interrupted goes on by the same command.
"""

import math
from collections.abc import Mapping
from typing import Any

from ssl_bench.commands.search import SearchSweeper


class HalvingSweeper(SearchSweeper):
    """Carries out a grid by successive halving; the share of the runs that go on is rounded up."""

    def carry_out(self) -> None:
        """Train the runs from halt to halt, fewer each time."""
        self.check_group()
        self.add_all()
        epochs: Any = self.epochs
        alive = [*range(len(self.numbers))]
        for epoch in [*epochs[:-1], None]:
            values = self.values_at(epoch, alive)
            if values is None:
                return
            alive = self._best(values, epoch) if epoch else alive
        self.conclude()

    def _best(self, values: Mapping[int, float | None], epoch: int) -> list[int]:
        """The runs that go on; one without a value has failed or diverged and does not."""
        kept, runs = list[int](), list(self.numbers)
        for name, members in self.groups(values).items():
            known = {number: value for number in members if (value := values[number]) is not None}
            best = sorted(known, key=lambda number: -known[number])[: max(1, math.ceil(self.keep * len(members)))]
            kept += best
            text = f", the best with {self.metric} {known[best[0]]:.4g}: {' '.join(runs[best[0]])}" if best else ""
            print(f"after epoch {epoch}: {len(best)} of {len(members)} {name}".rstrip() + f" go on{text}", flush=True)
        return sorted(kept)
