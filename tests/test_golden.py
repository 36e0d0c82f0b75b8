"""The numbers of two dozen short runs, bit for bit as recorded: a change of structure must not change a result.

After a change that is meant to change results, record anew (``python -m tests.golden --record``) and mark the change
**results** in CHANGELOG.md. Refusals are tested by exit code and by the words that a user needs: keys, values, options.
"""

import re
from pathlib import Path
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


# ---- refusals

# Those of other commands are in tests/door/test_command_line.py and tests/commands.
TRAIN = {
    # unreadable, or with a name that does not exist
    "seeed=1": "seeed seed",
    "temperature.tua=1": "temperature.tua temperature.tau",
    "loss=infonec": "loss infonec infonce dcl",
    "evaluate=knnn": "evaluate knnn knn",
    "seed=[": "seed",
    "-m experiment=a,b": "experiment=a,b",
    # wrong type
    "seed=abc": "seed abc",
    "temperature.tau=abc": "temperature.tau abc",
    "evaluate.every=x": "evaluate.every x",
    # out of range
    "batch_size.size=0": "batch_size.size 0 2",
    "batch_size=b4096": "batch_size.size 4096 1347 scattered_digits",
    "batch_size.chunk=48": "batch_size.chunk 48 batch_size.size=64 null",
    "devices=99": "devices=99",
    "epochs=0": "epochs 0 1",
    "max_steps=0": "max_steps 0 1",
    "precision=fp8": "precision fp8 auto fp32 fp16 bf16 fp64",
    "precision=fp16": "precision=fp16 GPU fp32 bf16",
    "evaluate.baselines=[zero]": "evaluate.baselines zero init raw",
    "evaluate.knn.k=2000": "evaluate.knn.k 2000 1347",
    "name=../x": "name ../x",
    "temperature.tau=-1": "temperature.tau -1",
    "temperature=learned temperature.tau=0.001": "temperature.tau 0.001 minimum",
    "loss=dclw loss.sigma=0": "loss.sigma 0",
    "loss=swd loss.prior=cube": "loss.prior cube hypercube normal hypersphere",
    "negatives=random_k negatives.k=500": "negatives.k 500 126",
    "framework=byol framework.momentum=2": "framework.momentum 2",
    "framework=npid_cld framework.clusters=128": "framework.clusters 128 64",
    "framework=npid framework.tau=0.1": "framework.tau temperature.tau",
    "framework=npid framework.noise=32": "framework.noise loss=nce negatives.k",
    "framework=npid framework.sharded=true": "framework.sharded leave",
    "framework=moco_cld framework.k=96": "framework.k negatives.k",
    "framework=densecl backbone=conv_n dataset.size=28": "backbone=conv_n framework=densecl resnet18",
    "augment.scale=[2,3]": "augment.scale",
    "optimizer.lr=-1": "optimizer.lr -1",
    "optimizer.schedule=cosin": "optimizer.schedule cosin cosine linear step constant",
    "+loss.alpha=2": "loss.alpha",
    "loss._target_=os.system": "loss._target_ os.system ssl_bench",
    # parts that do not fit together
    "loss=relic negatives=in_batch": "loss=relic negatives=cross_view",
    "negatives=none": "loss=infonce negatives none",
    "framework=moco_v2 negatives=in_batch": "negatives=in_batch framework.symmetric=true negatives=cross_view",
    "framework=moco_v2 loss=swd": "loss=swd framework=simclr",
    "framework=byol temperature=learned": "temperature=learned temperature=fixed",
    "framework=supervised loss=infonce": "loss=infonce framework=supervised",
    # missing files
    "dataset=cifar10 paths.data=nowhere": "prepare dataset=cifar10 paths.data=nowhere",
    "paths.outputs=/proc/nowhere": "/proc/nowhere paths.outputs",
}


def missing(words: str, printed: str) -> list[str]:
    """Words that are not in a text."""
    return [word for word in words.split() if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", printed)]


@pytest.mark.parametrize("typed", TRAIN)
def test_an_invalid_run_is_refused(typed: str) -> None:
    code, printed = golden.command("train", *typed.split())
    assert code == 2 and not missing(TRAIN[typed], printed), printed
    assert "Traceback" not in printed
    assert not list(Path().rglob("config.yaml"))


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
