"""The numbers of two dozen short runs, bit for bit as recorded: a change of structure must not change a result.

After a change that is meant to change results, record anew (``python -m tests.golden --record``) and mark the change
**results** in CHANGELOG.md. Refusals are tested by exit code and by the words that a user needs: keys, values, options.
"""

import re
from typing import Any

import pytest

from tests import golden
from tests.conftest import SMALL, only_run
from tests.ranks import train_on_two_ranks


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return golden.read()


TWO_RANKS = [name for name in golden.RUNS if name.endswith("2ranks")]
# The default run takes a minute. The ranks of a run with devices=2 import torch again.
# The other runs of SimCLR differ in their loss, which tests/objective compares with its formula.
QUICK = ("simclr-infonce", "simclr-dcl-cross_view", "simclr-macl_w-memory_bank", "simclr-dclw-multicrop")
LONG = {name: [pytest.mark.exhaustive] for name in golden.RUNS if name.startswith("simclr-") and name not in QUICK}
# The losses of these are compared with formulas in tests/methods.
LONG |= {name: [pytest.mark.exhaustive] for name in ("relic", "exemplar", "inv_spread", "moco_cld", "npid_cld")}
LONG[TWO_RANKS[0]] = [pytest.mark.slow]
LONG |= {name: [pytest.mark.exhaustive] for name in TWO_RANKS[1:]}
LONG["default"] = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG.get(name, [])) for name in golden.RUNS])
def test_a_run_equals_its_record(name: str, recorded: dict[str, Any]) -> None:
    compare(name, recorded, golden.observe(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_RANKS)
def test_ranks_that_were_started_elsewhere_equal_the_record(
    name: str, recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "100")

    def carry_out(command: str, *overrides: str) -> tuple[int, str]:
        assert command == "train"
        return train_on_two_ranks(*(override for override in overrides if override != "devices=2"))

    compare(name, recorded, golden.observe(name, carry_out))


def compare(name: str, recorded: dict[str, Any], observed: golden.Run) -> None:
    level = golden.strictness(recorded["machine"])
    found = golden.differences(name, recorded["runs"][name], observed, level)
    assert not found, f"{len(found)} differences ({level}): {found[:5]}"


# ---- refusals and exit codes; door/test_command_line.py has those of a command line


def missing(words: str, printed: str) -> list[str]:
    """Words that are not in a text."""
    return [word for word in words.split() if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", printed)]


def test_evaluating_a_run_again_and_its_refusals() -> None:
    """0: evaluated. 1: there is no checkpoint. 2: an invalid value, or one that belongs to another run."""
    assert golden.command("train", *SMALL, "max_steps=1")[0] == 0
    folder = only_run()
    refused = {
        "seed=1": "seed=1 evaluate paths.data",
        "evaluate=knnn": "evaluate knnn knn",
        "evaluate=knn evaluate.knn.k=2000": "evaluate.knn.k 2000 1347",
    }
    for typed, words in refused.items():
        code, printed = golden.command("evaluate", str(folder), *typed.split())
        assert code == 2 and not missing(words, printed) and "Traceback" not in printed, printed
    code, printed = golden.command("export", str(folder), "--format", "timm")
    assert code == 2 and not missing("--format backbone=resnet_digits ssl_bench", printed), printed
    assert golden.command("evaluate", str(folder), "evaluate=knn", "evaluate.baselines=[]")[0] == 0
    (folder / "checkpoints" / "last.pt").unlink()
    code, printed = golden.command("evaluate", str(folder), "evaluate=geometry")
    assert code == 1 and not missing(str(folder), printed) and "Traceback" not in printed, printed


def test_the_other_exit_codes() -> None:
    """0: help, done, and done before. 1: a failed run."""
    for arguments in ([], ["--help"], ["evaluate", "--help"], ["table", "--help"], ["reproduce", "--help"]):
        code, printed = golden.command(*arguments)
        assert code == 0 and "usage: ssl-bench" in printed, arguments
    for _ in range(2):
        assert golden.command("train", *SMALL, "max_steps=1")[0] == 0
    code, printed = golden.command("train", *SMALL, "optimizer.lr=1e38", "max_steps=20", "paths.outputs=failed")
    assert code == 1 and not missing("optimizer.lr", printed) and "Traceback" not in printed, printed
