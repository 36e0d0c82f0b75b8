"""``ssl-bench check`` asks what the package computes: its sections pass on this CPU, and name planted faults."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ssl_bench import distributed
from ssl_bench.check import methods, ranks, runs
from ssl_bench.check.answer import Setting, Verdict
from ssl_bench.check.bounds import Deviation, answer_of, distance, formats
from ssl_bench.objective.losses import DCL
from ssl_bench.training.state import TrainingState

CPU = torch.device("cpu")


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(CPU, 2, tmp_path)


# ---- bounds


def test_the_worst_difference_is_named() -> None:
    exact, result = torch.ones(3, 4), torch.ones(3, 4)
    result[2, 3] = 1.5
    worst = distance("x", result, exact, 0.01)
    assert worst.error == pytest.approx(0.5 / 12**0.5) and distance("x", result, exact, 0.01, 10).error == 0.05
    answer = answer_of("check", [worst, Deviation("y", 1.0, 2.0)], "things", "buy another")
    assert answer.verdict is Verdict.WRONG and answer.advice == "buy another"
    assert answer.reason == "x: the error 0.14 is above the bound 0.01"
    assert answer_of("check", [Deviation("y", 1.0, 2.0)], "things").verdict is Verdict.GOOD
    assert answer_of("check", [distance("x", exact, exact, 0.0)], "things").figure == "1 things equal"
    result[1, 0] = torch.nan
    assert distance("x", result, exact, 1.0).share == float("inf")


# ---- methods


def simclr_step() -> methods.Step64:
    return methods.reference(["loss=dcl"])


def test_a_wrong_backward_of_a_loss_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, fp32 = DCL.forward, formats(CPU)[0]

    def wrong(self: DCL, c: Any, tau: Tensor) -> Tensor:
        loss = forward(self, c, tau)
        if loss.dtype == torch.float32:
            loss.register_hook(lambda gradient: gradient * 1.001)
        return loss

    right = simclr_step()
    assert answer_of("right", [*right.deviations(fp32, CPU)], "gradients").verdict is Verdict.GOOD
    monkeypatch.setattr(DCL, "forward", wrong)
    answer = answer_of("wrong", [*right.deviations(fp32, CPU)], "gradients")
    assert answer.verdict is Verdict.WRONG and "loss=dcl, the gradient of framework.encoder." in answer.reason
    assert answer.values["error"] == pytest.approx(1e-3, rel=0.1)


# ---- small runs


@pytest.mark.slow
def test_what_rounding_makes_of_twelve_steps_is_within_the_bound_of_replayed_ones(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the replayed run there is an eager one whose weights are rounded otherwise."""
    tiny = runs.tiny

    def rounded(folder: Path, device: torch.device, *overrides: str) -> Any:
        eager = [word.replace("graph=true", "graph=false") for word in overrides]
        run, generator = tiny(folder, device, *eager), torch.Generator().manual_seed(0)
        if "graph=true" in overrides:
            for weight in run.state.method.parameters():
                weight.data *= 1 + 2.0**-21 * torch.randn(weight.shape, generator=generator)
        return run

    monkeypatch.setattr(runs, "tiny", rounded)
    answer = runs.replay_answer(runs.replay(setting.folder, CPU))
    assert answer.verdict is Verdict.GOOD and 1e-5 < answer.values["error"] < 0.3 * answer.values["bound"]
    monkeypatch.setattr(runs, "SMALL_LR", "optimizer.lr=0.05")
    assert runs.replay_answer(runs.replay(setting.folder, CPU)).values["error"] > 0.3


def test_a_resumed_run_has_the_same_bits(setting: Setting) -> None:
    (answer,) = runs.resume(setting)
    assert answer.verdict is Verdict.GOOD and answer.figure.endswith(" tensors equal")
    assert answer.values["compared"] > 100


def test_a_buffer_that_a_resume_forgets_is_named(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    restore = TrainingState._restore

    def forgetful(self: TrainingState, state: dict[str, Any]) -> None:
        keys: Any = self.method.negatives.keys.clone()  # type: ignore[union-attr, operator]
        restore(self, state)
        self.method.negatives.keys.copy_(keys)  # type: ignore[union-attr, operator]

    monkeypatch.setattr(TrainingState, "_restore", forgetful)
    (answer,) = runs.resume(setting)
    assert answer.verdict is Verdict.WRONG
    assert answer.reason.startswith("negatives.keys restored after a stop at step 2 of 4: the error"), answer.reason


# ---- ranks


@pytest.fixture
def another_mean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rank 1 computes another mean of the gradients: what it adds is a hundredth too large."""
    parallel, reduce = distributed.parallel, dist.all_reduce

    def scaled(x: Tensor, *options: Any, **more: Any) -> Any:
        return reduce(x.mul_(1.01) if distributed.rank() == 1 else x, *options, **more)

    def wrong(module: Any, device: torch.device) -> Any:
        for p in module.parameters():
            if p.requires_grad and distributed.rank() == 1:
                p.register_hook(lambda gradient: gradient * 1.01)
        return parallel(module, device)

    monkeypatch.setattr(dist, "all_reduce", scaled)
    monkeypatch.setattr("ssl_bench.training.step.parallel", wrong)
    yield


def test_two_ranks_are_right(setting: Setting) -> None:
    collectives, training = ranks.section(setting)
    assert collectives.verdict is training.verdict is Verdict.GOOD, (collectives, training)
    assert collectives.figure == "8 results equal"  # four of each rank


def test_ranks_with_another_mean_are_found(setting: Setting, another_mean: None) -> None:
    collectives, training = ranks.section(setting)
    assert collectives.reason.startswith("all_reduce on rank 0: the error 0.0089 is above the bound 0")
    assert training.verdict is Verdict.WRONG and " on 2 ranks: the error " in training.reason
    assert training.values["error"] > 1e-5


def test_a_rank_that_fails_is_named(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(rank: int, world: int, device: torch.device) -> list[Deviation]:
        raise ValueError("no link")

    monkeypatch.setattr(ranks, "exchange", failing)
    with pytest.raises(Exception, match=r"^rank [01] of 2: ValueError: no link$"):
        list(ranks.section(setting))
