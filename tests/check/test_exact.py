"""``ssl-bench check`` asks what the package computes: its sections pass on this CPU, and name planted faults."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ssl_bench import distributed
from ssl_bench.api.options import names
from ssl_bench.check import methods, ranks, runs
from ssl_bench.check.answer import Answer, Setting, Verdict
from ssl_bench.check.bounds import Deviation, NumberFormat, answer_of, distance, formats
from ssl_bench.objective.losses import DCL
from ssl_bench.training.precision import Precision, bf16_is_slow
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


def test_gradients_that_overflow_in_fp16_are_computed_with_a_smaller_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    step, stepped, scales = simclr_step(), methods.stepped, list[float]()

    def overflowing(method: Any, batch: Any, dtype: torch.dtype, autocast: Any, scale: float) -> Any:
        scales.append(scale)
        loss, gradients = stepped(method, batch, dtype)
        return loss, {name: g * torch.inf for name, g in gradients.items()} if scale > limit else gradients

    monkeypatch.setattr(methods, "stepped", overflowing)
    fp16, limit = NumberFormat("fp16", Precision.of("fp16", True)), 2.0**5
    assert max(deviation.share for deviation in step.deviations(fp16, CPU)) < 0.1 and scales == [2.0**10, 2.0**5]
    limit = 0.0  # finite with no scale
    assert max(deviation.share for deviation in step.deviations(fp16, CPU)) == torch.inf and scales[2:] == [
        2.0**10,
        2.0**5,
        1.0,
    ]


def test_draws_are_equal_on_every_device_and_in_every_format() -> None:
    def drawn(dtype: torch.dtype) -> list[Tensor]:
        generator = torch.Generator().manual_seed(3)
        options: Any = {"generator": generator, "dtype": dtype}
        with methods.DrawsOfCPU():
            made = [torch.rand(5, **options), torch.empty(5, dtype=dtype).normal_(generator=generator)]
            return [*made, torch.randint(9, (5,), generator=generator), torch.rand(5, **options)]

    for single, double in zip(drawn(torch.float32), drawn(torch.float64), strict=True):
        torch.testing.assert_close(single.double(), double.double())
    assert not torch.equal(drawn(torch.float32)[0], drawn(torch.float32)[3])


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_every_framework_and_loss_is_within_its_bound(setting: Setting) -> None:
    answers = list(methods.section(setting))
    assert [answer for answer in answers if answer.verdict is not Verdict.GOOD] == []
    assert [answer.name for answer in answers] == (["fp32"] if bf16_is_slow() else ["fp32", "bf16"])
    named = {words[0] for words in methods.cases()}
    assert {f"loss={name}" for name in names("loss")} | {"framework=moco_v2", "framework=vae"} <= named


# ---- small runs


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


def _sum_of_exponentials(rank: int) -> float:
    return float(torch.zeros(2_000_000).exp().sum())  # many times what torch splits among threads


@pytest.mark.timeout(60)
def test_a_rank_computes_after_this_process_has_computed_with_several_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _sum_of_exponentials(0)
        assert ranks.on_ranks(_sum_of_exponentials, 1, tmp_path) == [2e6]
    finally:
        torch.set_num_threads(before)


def test_one_device_has_no_ranks(setting: Setting) -> None:
    answers: list[Answer] = [*ranks.section(dataclasses.replace(setting, devices=1))]
    assert {answer.verdict for answer in answers} == {Verdict.SKIPPED}
