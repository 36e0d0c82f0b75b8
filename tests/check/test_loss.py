"""``ssl-bench check --loss``: losses of no known formula that are right, faults that are found, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ssl_bench.commands.check import main
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


@pytest.mark.parametrize("line", FAULTS)
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


class Whitened(nn.Module):
    '''Right on one rank: the mean and the deviation are those of the rank's images.'''

    def forward(self, z1, z2):
        z1, z2 = ((z - z.mean(0)) / (z.var(0) + 1e-2).sqrt() for z in (z1.float(), z2.float()))
        return (z1 - z2).square().mean()


class Mine(Loss):
    needs = frozenset({"negatives", "labels"})

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = weight

    def forward(self, contrast, tau):
        return self.weight * contrast.lse(tau) - contrast.pos / tau


class Raises(nn.Module):
    def forward(self, z1, z2):
        raise ValueError("not today")


def each(z1, z2):
    return (z1 * z2).sum(1)
"""


@pytest.fixture
def file() -> str:
    Path("mine.py").write_text(LOSSES)
    return "mine.py"


def test_a_loss_of_no_known_formula_is_held_to_each_property(file: str) -> None:
    assert checked(f"{file}:Softened scale=6") == (0, dict.fromkeys(NAMES, "good"))
    assert checked(f"{file}:Mine weight=2 temperature=0.2")[0] == 0  # a Loss, as in a training
    assert checked("sogclr instances=16 temperature=0.3")[0] == 0  # a name of conf/


def test_a_loss_with_statistics_of_its_rank_is_wrong_on_two(file: str) -> None:
    code, verdicts = checked(f"{file}:Whitened")
    assert code == 1 and {name for name, verdict in verdicts.items() if verdict == "wrong"} == RANKS


@pytest.mark.parametrize("name", ["Raises", "each"])
def test_a_loss_that_fails_is_wrong(name: str, file: str) -> None:
    assert checked(f"{file}:{name}") == (1, {"ranks 1": "wrong"})


def test_json_is_all_of_standard_output(file: str) -> None:
    """Whatever the loss prints."""
    command = ["-m", "ssl_bench", "check", "--loss", f"{file}:Softened", "--json"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and [(each["name"], each["verdict"]) for each in found] == [(n, "good") for n in NAMES]


REFUSED = {
    "nope.py:Softened": "nope.py",
    "mine.py:Absent": "Absent",
    "no_such_package:Loss": "no_such_package",
    "mine.py:Softened tau=1": "tau",
    "mine.py:LOSSES": "LOSSES",
    "dlc": "did you mean dcl?",
    "dcl alhpa=3": "alhpa",
    "sogclr": "instances",
    "dcl temperature=1e-3x": "temperature",
    "dcl temperature=0.1,0.2": "temperature",
    "dcl temperature=[": "temperature",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_used_is_refused(line: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--loss", *line.split()]) == 2
    printed = capsys.readouterr()
    assert REFUSED[line] in printed.err and printed.err.count("\n") == 1 and not printed.out
