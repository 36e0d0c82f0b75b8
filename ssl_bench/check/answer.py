"""The setting and the answers of a section of ``ssl-bench check``.

A section is a function that is given a :class:`Setting` and yields an :class:`Answer` as soon as it has one.
"""

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

REPORT = "report it with check.json"


class Verdict(enum.Enum):
    """Meaning of a number; a ``measured`` one has no bound with which it could be compared."""

    GOOD = "good"
    SLOW = "slow"
    WRONG = "wrong"
    MEASURED = "measured"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Answer:
    """Result of one check.

    Attributes:
        name: unique in its section, such as ``simclr bf16``.
        figure: the measured value with its unit: ``18 GB/s``.
        verdict: its meaning.
        reason: why the verdict is not good, with the bound that was missed.
        advice: a remedy.
        values: the numbers behind the figure, by name; they are kept in ``check.json``.
    """

    name: str
    figure: str
    verdict: Verdict = Verdict.MEASURED
    reason: str = ""
    advice: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """The machine and the user's wishes, as a section is given them.

    Attributes:
        device: the first GPU or the CPU.
        devices: number of processes for checks of several ranks.
        folder: an empty folder that the section may write to; it is deleted afterwards.
    """

    device: torch.device
    devices: int
    folder: Path


Section = Callable[[Setting], Iterator[Answer]]
