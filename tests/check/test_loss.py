"""``ssl-bench check --loss``: losses of no known formula that are right, faults that are found, and what is refused."""

from pathlib import Path

import pytest

from tests.check import planted
from tests.ranks import Command

RANKS = {"ranks 2", "ranks 4"}
NAMES = ["ranks 1", "chunks", "bf16", "resume", "extremes", "ranks 2", "ranks 4"]
FAULTS = {
    "contrastive": set[str](),
    "contrastive fault=own": RANKS,
    "contrastive fault=detached": RANKS,
    "contrastive fault=standardised": RANKS,
    "contrastive fault=sum": RANKS,
    "contrastive fault=overflow": {"extremes"},
    "contrastive fault=overflow tau=1.0": set(),  # the temperature is the user's
    "MoCo": set(),
    "MoCo saved=false": {"resume"},
}


def checked(line: str) -> tuple[int | None, dict[str, str]]:
    """The exit code of a check in a process of its own, and the verdict of each property."""
    command = Command("check", "--loss", *line.split())
    words = [line.split() for line in command.wait(120).splitlines() if line.startswith("loss ")]
    return command.code, {" ".join(w[1:3]) if w[1] == "ranks" else w[1]: w[-1] for w in words}


DEFAULT = "MoCo saved=false"  # a check of a loss starts seven processes


@pytest.mark.parametrize("line", [pytest.param(f, marks=() if f == DEFAULT else pytest.mark.slow) for f in FAULTS])
def test_a_planted_fault_is_found_in_its_property(line: str) -> None:
    code, verdicts = checked(f"{Path(planted.__file__)}:{line}")
    assert list(verdicts) == NAMES and code == bool(FAULTS[line])
    assert {name for name, verdict in verdicts.items() if verdict == "wrong"} == FAULTS[line]


LOSSES = """
import torch
from torch import nn
from torch.nn.functional import normalize

from ssl_bench.distributed import gather, rank
from ssl_bench.objective.loss import Loss


class Softened(nn.Module):
    '''Cross-entropy of the other view, whose logits are cubes of cosines: of no paper.'''

    def __init__(self, scale=8.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, z1, z2):
        print("seen")
        with torch.autocast("cpu", enabled=False):
            z1, z2 = (normalize(z if z.dtype == torch.float64 else z.float(), dim=-1) for z in (z1, z2))
            logits = self.scale * (z1 @ gather(z2).T) ** 3
            own = torch.arange(len(z1)) + rank() * len(z1)
            return nn.functional.cross_entropy(logits, own)


class Mine(Loss):
    needs = frozenset({"negatives", "labels"})

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = weight

    def forward(self, contrast, tau):
        return self.weight * contrast.lse(tau) - contrast.pos / tau


def each(z1, z2):
    return (z1 * z2).sum(1)
"""


@pytest.fixture
def file() -> str:
    Path("mine.py").write_text(LOSSES)
    return "mine.py"


@pytest.mark.slow
def test_a_loss_of_no_known_formula_is_held_to_each_property(file: str) -> None:
    assert checked(f"{file}:Softened scale=6") == (0, dict.fromkeys(NAMES, "good"))
    assert checked(f"{file}:Mine weight=2 temperature=0.2")[0] == 0  # a Loss, as in a training
    assert checked("sogclr instances=16 temperature=0.3")[0] == 0  # a name of conf/


def test_a_loss_that_fails_is_wrong(file: str) -> None:
    assert checked(f"{file}:each") == (1, {"ranks 1": "wrong"})
