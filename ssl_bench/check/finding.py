"""Parts of a section of ``ssl-bench check``: checks, which return findings.

A section is a function that is given a :class:`Setting` and yields its checks one after another:

    def section(setting: Setting) -> Iterator[Check]:
        yield Check("cores", lambda: Finding("8 cores", GOOD))
"""

import enum
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


class Verdict(enum.Enum):
    """Meaning of a figure: ``known`` figures have nothing to be compared with."""

    GOOD = "good"
    SLOW = "slow"
    WRONG = "wrong"
    KNOWN = "known"
    SKIPPED = "skipped"


class Level(enum.IntEnum):
    """How much is measured: about 2, 10 or 25 minutes."""

    QUICK = 0
    DEFAULT = 1
    FULL = 2

    @property
    def seconds(self) -> int:
        """Time of all sections together."""
        return (120, 600, 1500)[self]


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        figure: what was measured, in words: ``1,234 images/s, 61% of the floor``.
        verdict: what it means.
        reason: why the verdict is not good, with the bound that was missed.
        advice: what to do about it.
        values: the numbers behind the figure, by name; they are kept in ``check.json``.
    """

    figure: str
    verdict: Verdict = Verdict.KNOWN
    reason: str = ""
    advice: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A part of a section that can fail or be skipped by itself.

    Attributes:
        name: unique in its section, such as ``simclr dcl bf16``.
        run: measure and return the finding.
        seconds: how long it takes about; a check that does not fit into the time left is skipped.
    """

    name: str
    run: Callable[[], Finding]
    seconds: float = 1


@dataclass(frozen=True)
class Setting:
    """The machine and the user's wishes, as a section is given them.

    Attributes:
        device: that the checks run on: the first GPU or the CPU.
        devices: number of processes for checks of several ranks.
        level: how much is measured.
        folder: an empty folder that the section may write to; it is deleted afterwards.
        data: the user's ``paths.data``.
        until: ``time.monotonic()`` at which the section's time is up.
        earlier: values of sections that have already ended: ``earlier["speed"]["resnet18 32px B=256"]["images_s"]``.
    """

    device: torch.device
    devices: int
    level: Level
    folder: Path
    data: Path
    until: float
    earlier: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def seconds_left(self) -> float:
        """Time that the section still has."""
        return self.until - time.monotonic()


Section = Callable[[Setting], Iterator[Check]]


def findings(section: Section, setting: Setting) -> Iterator[tuple[str, Finding, float]]:
    """Run a section's checks: name, finding, seconds. A check that raises is wrong and stops no other one."""
    for check in section(setting):
        start = time.monotonic()
        if check.seconds > max(0.0, setting.seconds_left()):  # a check that takes no time always fits
            yield check.name, Finding("", Verdict.SKIPPED, f"no time left for its {check.seconds:.0f} s"), 0.0
            continue
        try:
            found = check.run()
        except Exception as error:  # whatever a check raises: the others go on
            sentence = " ".join(f"{type(error).__name__}: {error}".split())
            found = Finding("", Verdict.WRONG, sentence[:400], "report this finding with check.md")
        yield check.name, found, time.monotonic() - start
