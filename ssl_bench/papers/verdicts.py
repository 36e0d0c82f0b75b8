"""Verdicts on claims, as text: from the runs of a results folder, or else from the committed measurements."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ssl_bench.errors import ConfigError
from ssl_bench.papers import measurements, tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.claims import ClaimVerdict, PaperClaim, Tested, verdict

FORMS = ("rich", "md")  # for readers
HEADINGS = ("claim", "verdict", "runs", "seeds", "minutes", "the paper says")


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict.

    Attributes:
        source: ``ours`` or ``project``: whose runs the findings are from.
    """

    claim: PaperClaim
    findings: list[Tested]
    source: str

    @property
    def verdict(self) -> ClaimVerdict:
        return verdict(self.findings)

    @property
    def was_run(self) -> bool:
        """Whether all of its runs are there."""
        return self.verdict is not ClaimVerdict.NOT_RUN

    def row(self) -> tuple[str, ...]:
        """The entries of a printed row, by HEADINGS."""
        claim, seeds = self.claim, min(len(finding.numbers) for finding in self.findings)
        source = self.source if self.was_run else ""
        return claim.name, self.verdict.value, source, str(seeds), f"{claim.minutes:g}", f"{claim.says} ({claim.where})"

    def lines(self) -> list[str]:
        """The sentence of the paper, each criterion with its numbers, and the verdict."""
        claim = self.claim
        head = f"{claim.where}: {claim.says}"
        source = f" ({self.source})" if self.was_run else ""
        return [
            head,
            *(f"- {_sentence(each)}" for each in self.findings),
            f"Verdict: {self.verdict.value}{source}",
        ]

    def record(self) -> dict[str, Any]:
        """The verdict as plain data."""
        claim = self.claim
        criteria = [
            {
                "says": each.criterion.says,
                "above" if each.criterion.above else "below": each.criterion.threshold,
                "numbers": each.numbers,
                "interval": [None if math.isnan(end) else end for end in (each.low, each.high)],
                "verdict": each.verdict.value,
            }
            for each in self.findings
        ]
        told = {"claim": claim.name, "says": claim.says, "where": claim.where, "minutes": claim.minutes}
        return told | {"verdict": self.verdict.value, "runs": self.source, "criteria": criteria}


def judge(claim: PaperClaim, results: Results) -> Judged:
    """Judge a claim by the runs of a results folder if they are complete, and else by the committed ones."""
    own = claim.findings(results.values)
    if verdict(own) is ClaimVerdict.NOT_RUN and measurements.read(claim):
        return Judged(claim, claim.findings(lambda cell: measurements.values(claim, cell)), "project")
    return Judged(claim, own, "ours")


def named(names: Sequence[str]) -> list[PaperClaim]:
    """The claims of the named papers, or of all.

    Raises:
        ConfigError: there is no such paper.
    """
    if unknown := sorted(set(names) - set(tables.papers())):
        raise ConfigError(f"--claims: there is no paper {unknown[0]!r}: name {', '.join(tables.papers())}, or none")
    return [claim for paper in names or tables.papers() for claim in tables.claims(paper)]


def _sentence(finding: Tested) -> str:
    criterion = finding.criterion
    limit = f"must be {'above' if criterion.above else 'below'} {criterion.threshold:g}: {finding.verdict.value}"
    if not finding.numbers:
        return f"{criterion.says}: {limit}"
    interval = "" if math.isnan(finding.low) else f", 90% interval {finding.low:.3g} to {finding.high:.3g}"
    return f"{criterion.says}: {finding.mean:.3g}{interval}, n = {len(finding.numbers)}; {limit}"


def formatted(form: str, judged: Sequence[Judged]) -> str:
    """Claims as text: ``rich`` for a terminal, ``md`` or ``json``."""
    if form == "json":
        return json.dumps([each.record() for each in judged], indent=2) + "\n"
    if form == "md":
        rows = [HEADINGS, ("---",) * len(HEADINGS), *(each.row() for each in judged)]
        return "".join(f"| {' | '.join(entry.replace('|', chr(92) + '|') for entry in row)} |\n" for row in rows)
    from rich.console import Console
    from rich.table import Table as Columns
    from rich.text import Text

    columns = Columns(*HEADINGS, box=None, pad_edge=False)
    for each in judged:
        columns.add_row(*(Text(entry) for entry in each.row()))
    file = io.StringIO()
    Console(file=file, highlight=False, width=Console().width).print(columns)
    return file.getvalue()
