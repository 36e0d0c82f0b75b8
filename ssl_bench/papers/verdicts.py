"""Verdicts on claims: from the runs of a results folder, or else from the committed measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssl_bench.errors import ConfigError
from ssl_bench.papers import measurements, tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.claims import ClaimVerdict, PaperClaim, Tested, failed, verdict
from ssl_bench.record.printing import Sheet, SheetEntry

DROPPED = "dropped"  # in place of a verdict
HEADINGS = ("claim", "verdict", "measured [interval], must be", "control run", "seeds", "hours")


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict.

    Attributes:
        source: ``ours`` or ``project``: whose runs the findings are from.
    """

    claim: PaperClaim
    findings: list[Tested]
    source: str
    verdict: ClaimVerdict

    @property
    def was_run(self) -> bool:
        """Whether all of its runs are there."""
        return self.verdict is not ClaimVerdict.NOT_RUN

    @property
    def words(self) -> str:
        """The verdict in words."""
        return self.claim.contradicted if self.verdict is ClaimVerdict.CONTRADICTED else self.verdict.value

    @property
    def main(self) -> Tested:
        """The finding of a printed row: a control that failed, or the first criterion with the claim's verdict."""
        others = [finding for finding in self.findings if not finding.criterion.control]
        return [*failed(self.findings), *(finding for finding in others if finding.verdict is verdict(others))][0]

    @property
    def numbers(self) -> str:
        """The numbers of that finding, and what was asked of them; empty without runs."""
        mean, criterion = _mean(self.main), self.main.criterion
        return f"{'control: ' * criterion.control}{mean} {criterion.limit}" if mean else ""

    def row(self, brief: bool = False) -> tuple[str, ...]:
        """The entries of a printed row, by HEADINGS; in brief, without what the words say."""
        claim, controls = self.claim, [finding for finding in self.findings if finding.criterion.control]
        passed = "failed" if failed(controls) else "passed" if self.was_run else "not run"
        ran = self.was_run and self.source == "project"
        hours = measurements.read(claim)["seconds"] / 3600 if ran else claim.minutes / 60
        last = passed if controls else "none", str(len(self.main.numbers)), f"{hours:.1f}"
        if brief:
            return claim.name, self.verdict.value, self.numbers, *last
        return f"{claim.name}: {claim.says} ({claim.where})", self.words, sentence(self.main), *last

    def lines(self) -> list[str]:
        """The sentence, each finding with its numbers, the verdict, and why these seeds."""
        made = f", commit {measurements.read(self.claim)['commit']}" if self.source == "project" else ""
        sentences = [
            f"- {sentence(one)}: {one.verdict.value} ({100 - 200 * one.error:.3g}%, n = {len(one.numbers)})"
            for one in self.findings
        ]
        return [
            f"{self.claim.where}: {self.claim.says}",
            *sentences,
            f"Verdict: {self.words}{f' ({self.source}{made})' * self.was_run}",
            f"Seeds: {self.claim.seeds_because}",
        ]

    def record(self) -> dict[str, Any]:
        """The verdict as plain data."""
        criteria = [
            {key: getattr(finding.criterion, key) for key in ("says", "control", "limit")}
            | {"numbers": finding.numbers, "confidence": 1 - 2 * finding.error, "verdict": finding.verdict.value}
            | {"interval": [None if math.isnan(end) else end for end in (finding.low, finding.high)]}
            for finding in self.findings
        ]
        texts = {key: getattr(self.claim, key) for key in ("says", "ours", "where", "kind", "seeds_because", "minutes")}
        verdict = {"verdict": self.verdict.value, "words": self.words, "runs": self.source}
        return {"claim": self.claim.name, **texts, **verdict, "criteria": criteria}


def judge(claim: PaperClaim, results: Results) -> Judged:
    """Judge a claim by the runs of a results folder if they are complete, and else by the committed ones."""
    findings, source = claim.findings(results.values), "ours"
    if verdict(findings) is ClaimVerdict.NOT_RUN and measurements.read(claim):
        findings, source = claim.findings(lambda cell: measurements.values(claim, cell)), "project"
    return Judged(claim, findings, source, verdict(findings))


def claims_of(names: Sequence[str]) -> list[PaperClaim]:
    """The claims of the named papers and files, or of all papers.

    Raises:
        ConfigError: there is no such paper.
    """
    if part := [name for name in names if tables.path_of(name)[1]]:
        raise ConfigError(f"--claims: {part[0]}: name a paper, {', '.join(tables.paths())}, or a file, or none")
    return [claim for paper in names or tables.paths() for claim in tables.read(tables.path_of(paper)[0])[1]]


def _mean(finding: Tested) -> str:
    """The mean with its interval; empty without runs."""
    low, high = finding.low, finding.high
    return f"{finding.mean:.3g}{f' [{low:.3g}, {high:.3g}]' * (finding.p < 1)}" if finding.numbers else ""


def sentence(finding: Tested) -> str:
    """A finding, such as ``control: accuracy: 93 [92, 94], must be above 90``."""
    mean, criterion = _mean(finding), finding.criterion
    return f"{'control: ' * criterion.control}{criterion.says}: {mean and f'{mean}, '}must be {criterion.limit}"


def sheet(judged: Sequence[Judged], brief: bool, dropped: Mapping[str, str]) -> Sheet:
    """Claims as rows with their sentences; in brief, rows of numbers over the sentences; then those ``dropped``."""
    rows = [[SheetEntry(text) for text in judgement.row(brief)] for judgement in judged]
    about = ["The claims, and the effect that is printed; ssl-bench table CLAIM prints what was measured:"]
    for one in judged:
        about.append(f"{one.claim.name}: {one.claim.says} ({one.claim.where}) Effect: {one.main.criterion.says}")
    gone = ["Dropped:", *(f"{name}: {why}" for name, why in dropped.items())]
    records = [judgement.record() for judgement in judged]
    records += [{"claim": name, "verdict": DROPPED, "reason": why} for name, why in dropped.items()]
    below = ["\n".join(about)] * brief + ["\n".join(gone)] * bool(dropped)
    return Sheet([*HEADINGS], rows, left=len(HEADINGS), below=below, data=records)
