"""Is this machine right: every check passes on the CPU, and planted faults are found and named."""

import dataclasses
import functools
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench import distributed
from ssl_bench.check import exact, exact_features, exact_ranks, exact_steps, exact_views, kernels
from ssl_bench.check.bounds import Difference, NumberFormat, computing, difference, formats, judged
from ssl_bench.check.finding import Finding, Level, Setting, Verdict, findings
from ssl_bench.data import resample
from ssl_bench.data.batch import Step
from ssl_bench.launch import ranks
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.objective import sampling
from ssl_bench.objective.losses import DCL
from ssl_bench.precision import bf16_is_slow
from ssl_bench.training.state import TrainingState
from tests.operations import Operations
from tests.ranks import PRELOADED, free_port
from tests.training.test_graph import views_at_once

multiprocessing.set_forkserver_preload(PRELOADED)
CPU = torch.device("cpu")


class Faulty(TorchDispatchMode):
    """A machine on which one kernel computes wrongly in single precision: one row of its result is off."""

    def __init__(self, kernel: str, change: Callable[[Tensor], Any], output: int = 0) -> None:
        super().__init__()
        self.kernel, self.change, self.output = kernel, change, output

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name == f"aten::{self.kernel}":
            result = (out if isinstance(out, tuple | list) else [out])[self.output]
            if isinstance(result, Tensor) and result.dtype in (torch.float32, torch.int64) and result.numel() > 40:
                self.change(result)
        return out


def one_row(result: Tensor) -> None:
    result[len(result) // 2] *= 1 + 1e-3


def swapped(result: Tensor) -> None:
    result[-1, [0, 1]] = result[-1, [1, 0]]


def kernel(name: str, fault: TorchDispatchMode | None = None) -> Finding:
    (check,) = (check for check in kernels.kernel_checks(CPU) if check.name == name)
    if fault is None:
        return check.run()
    with fault:
        return check.run()


# ---- bounds


def test_a_difference_names_the_element_that_is_furthest_beyond_its_bound() -> None:
    exact, found = torch.ones(3, 4), torch.ones(3, 4)
    found[0, 1], found[2, 3] = 1.5, 1.1
    bound = torch.full((3, 4), 0.01)
    bound[0, 1] = 1.0
    worst = difference("x", found, exact, bound)
    assert worst.error == pytest.approx(0.1) and worst.share == pytest.approx(10)
    assert worst.place == "element [2, 3] is 1.10000002 in place of 1, 1 of 12 are wrong"
    found[1, 0] = torch.nan
    assert difference("x", found, exact, bound).share == float("inf")
    assert difference("x", exact, exact).share == 0 and difference("x", exact, exact[:2]).share == float("inf")
    finding = judged([worst, Difference("y", 1.0, 2.0)], "things", "buy another")
    assert finding.verdict is Verdict.WRONG and finding.advice == "buy another"
    assert finding.reason.endswith("are wrong: the error 0.1 is above the bound 0.01")
    assert finding.values == {"worst": "x", "error": pytest.approx(0.1), "bound": pytest.approx(0.01), "compared": 2}
    assert judged([Difference("y", 1.0, 2.0)], "things").verdict is Verdict.GOOD


def test_formats_hold_their_numbers_exactly(tf32: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    fp32, *more = formats(CPU)
    assert fp32.name == "fp32"
    assert [(form.name, form.dtype) for form in more] == [("bf16", torch.bfloat16)] * (not bf16_is_slow())
    rounded = NumberFormat("tf32", fp32.precision).rounded(x)
    assert 2**-12 < ((x - rounded) / x).abs().max() <= 2**-10 and rounded.mul(2**20).frac().abs().max() < 2**-20 * 2**20
    exact = (rounded[:500, None].double() * rounded[None, 500:].double()).float()
    assert torch.equal(rounded[:500, None] * rounded[None, 500:], exact)  # 22 bits
    tf32(False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    with computing(tf32=True):
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.benchmark
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.benchmark


# ---- kernels


def test_every_kernel_of_this_machine_is_right() -> None:
    for check in kernels.kernel_checks(CPU):
        finding = check.run()
        assert finding.verdict is Verdict.GOOD, finding


@pytest.mark.parametrize(
    ("name", "fault", "named"),
    [
        ("matrix product", Faulty("mm", one_row), "fp32 product [64, 64] x [64, 64]: element [32, "),
        (
            "convolution",
            Faulty("convolution", one_row),
            "fp32 convolution [5, 32, 9, 9] x [16, 32, 1, 1] stride 1, output: element [2, ",
        ),
        ("convolution", Faulty("convolution_backward", one_row, 1), "stride 1, gradient of the weight: element [32, "),
        ("batch norm", Faulty("native_batch_norm", one_row), "batch norm of [3, 5, 7, 11], output: element [1, "),
        ("softmax", Faulty("_softmax", one_row), "softmax of [9, 1023]: element [4, "),
        ("sort and topk", Faulty("topk", swapped), "topk of [3, 31] float32: element [2, "),
        ("scatter and index", Faulty("index_add_", one_row), "index_add of [37, 13]: element [18, "),
        ("random numbers", Faulty("randperm", lambda x: x[:2].fill_(7)), "randperm(1000): element ["),
    ],
)
def test_a_wrong_kernel_is_named(name: str, fault: Faulty, named: str) -> None:
    finding = kernel(name, fault)
    assert finding.verdict is Verdict.WRONG and finding.advice
    assert named in finding.reason, finding.reason


# ---- steps


@functools.cache
def simclr(loss: str) -> exact_steps.Step64:
    combinations = exact_steps.Combinations(Level.QUICK)
    combinations.losses = [loss]
    (step,) = combinations.steps("simclr")
    return step


def compared(loss: str, form: NumberFormat) -> Finding:
    return judged(simclr(loss).compare(form, CPU), "losses and gradients")


def test_a_step_is_within_its_bound_in_every_format() -> None:
    for form, most in zip(formats(CPU), (1e-4, 0.4), strict=False):  # bf16 not on every processor
        differences = simclr("dcl").compare(form, CPU)
        assert {"dcl, the loss", "dcl, the gradient of framework.encoder.backbone.layers.0.weight"} <= {
            d.name for d in differences
        }
        assert all(each.share < 0.6 for each in differences)
        weights = [each for each in differences if each.name.endswith("weight")]
        assert all(form.unit < each.bound < most for each in weights), weights


def test_a_wrong_backward_of_a_loss_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = DCL.forward

    def wrong(self: DCL, c: Any, tau: Tensor) -> Tensor:
        loss = forward(self, c, tau)
        if loss.dtype == torch.float32:
            loss.register_hook(lambda gradient: gradient * 1.001)
        return loss

    right = simclr("dcl")
    monkeypatch.setattr(DCL, "forward", wrong)
    finding = judged(right.compare(formats(CPU)[0], CPU), "losses and gradients")
    assert finding.verdict is Verdict.WRONG and "dcl, the gradient of framework.encoder." in finding.reason
    assert finding.values["error"] == pytest.approx(1e-3, rel=0.1) and finding.values["bound"] < 1e-3


@pytest.mark.slow
def test_a_wrong_convolution_shows_in_a_step() -> None:
    with Faulty("convolution_backward", one_row, 1):
        finding = compared("infonce", formats(CPU)[0])
    assert finding.verdict is Verdict.WRONG and "infonce, the gradient of framework.encoder.backbone." in finding.reason


def test_draws_are_equal_on_every_device_and_in_every_format() -> None:
    def drawn(dtype: torch.dtype) -> list[Tensor]:
        generator = torch.Generator().manual_seed(3)
        with exact_steps.DrawsOfCPU():
            made = [
                torch.rand(5, generator=generator, dtype=dtype),
                torch.empty(5, dtype=dtype).normal_(generator=generator),
            ]
            return [*made, torch.randint(9, (5,), generator=generator), torch.rand(5, generator=generator, dtype=dtype)]

    for single, double in zip(drawn(torch.float32), drawn(torch.float64), strict=True):
        torch.testing.assert_close(single.double(), double.double())
    assert not torch.equal(drawn(torch.float32)[0], drawn(torch.float32)[3])


def test_frameworks_that_cluster_are_compared_in_single_precision_only() -> None:
    names = [check.name for check in exact_steps.step_checks(CPU, Level.DEFAULT)]
    precisions = ["fp32"] if bf16_is_slow() else ["fp32", "bf16"]
    assert names[: 2 * len(precisions)] == [
        f"step {name} {each}" for name in ("simclr", "moco_v2") for each in precisions
    ]
    assert "step npid_cld fp32" in names and "step npid_cld bf16" not in names
    assert len(list(exact_steps.step_checks(CPU, Level.QUICK))) == 3 * len(precisions)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_every_framework_and_loss_is_within_its_bound() -> None:
    for check in exact_steps.step_checks(CPU, Level.FULL):
        finding = check.run()
        assert finding.verdict is Verdict.GOOD, (check.name, finding)


# ---- views


@pytest.mark.parametrize("name", exact_views.SETS)
def test_views_are_within_their_bound(name: str) -> None:
    finding = exact_views.views_of(name, CPU)
    assert finding.verdict is Verdict.GOOD and finding.values["error"] < 1e-4, finding


def test_a_crop_that_is_off_by_one_pixel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    resize_matrix = resample.resize_matrix

    def shifted(start: Tensor, length: Tensor, flip: Any, side: int, *to: Any) -> Tensor:
        off = start if to[-1] == torch.float64 else (start - 1).clamp(min=0)
        return resize_matrix(off, length, flip, side, *to)

    monkeypatch.setattr("ssl_bench.data.views.resize_matrix", shifted)
    finding = exact_views.views_of("digits", CPU)
    assert finding.verdict is Verdict.WRONG and finding.reason.startswith("pixels of view 0 in fp32: element [")
    assert finding.values["error"] > 0.1 and "in place of" in finding.reason


def test_boxes_may_be_rounded_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = exact_views.makers("digits")[0][0].draw(24, 20, 20, torch.Generator().manual_seed(0))

    def moved(images: int) -> Finding:
        top = expected.top.clone()
        top[:images] += 1
        return judged(exact_views._parameters(dataclasses.replace(expected, top=top), expected, "view 0"), "parameters")

    assert moved(1).verdict is Verdict.GOOD
    assert moved(2).verdict is Verdict.WRONG
    assert moved(2).reason.startswith("boxes of view 0: 2 of 24 boxes are off by one pixel")


# ---- kNN and linear probe


def test_evaluation_is_right() -> None:
    found = exact_features.knn(CPU, 251, 1003)
    assert found.verdict is Verdict.GOOD and found.figure == "neighbours and classes of 251 queries equal, 0 ties"
    found = exact_features.probe(CPU, 603)
    assert found.verdict is Verdict.GOOD and 0 < found.values["error"] < found.values["bound"] < 1e-2


def test_a_wrong_neighbour_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nearest = exact_features.nearest

    def wrong(queries: Tensor, bank: Tensor, k: int) -> Tensor:
        keys = nearest(queries, bank, k + 1)
        keys[17, k - 1] = keys[17, k]
        return keys[:, :k]

    monkeypatch.setattr(exact_features, "nearest", wrong)
    finding = exact_features.knn(CPU, 251, 1003)
    assert finding.verdict is Verdict.WRONG
    assert "neighbours: query 17 has the neighbours [" in finding.reason and "1 of 251 queries" in finding.reason


def test_a_probe_with_another_gradient_is_found() -> None:
    with Faulty("addmm", one_row):
        finding = exact_features.probe(CPU, 603)
    assert finding.verdict is Verdict.WRONG and finding.reason.startswith(("logits: element", "accuracies: element"))


# ---- resumed, scaled and replayed runs


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    finding = exact.resumed(CPU, tmp_path)
    assert finding.verdict is Verdict.GOOD and finding.values["error"] == 0
    assert finding.values["compared"] > 100


def test_a_buffer_that_a_resume_forgets_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restore = TrainingState._restore

    def forgetful(self: TrainingState, state: dict[str, Any]) -> None:
        keys: Any = self.method.negatives.keys.clone()  # type: ignore[union-attr, operator]
        restore(self, state)
        self.method.negatives.keys.copy_(keys)  # type: ignore[union-attr, operator]

    monkeypatch.setattr(TrainingState, "_restore", forgetful)
    finding = exact.resumed(CPU, tmp_path)
    assert finding.verdict is Verdict.WRONG
    assert finding.reason.startswith("negatives.keys restored after a stop at step 2 of 4: element ["), finding.reason


def test_the_verdict_on_the_scale_of_fp16() -> None:
    settled = [65536.0, 32768.0, 16384.0, *[16384.0] * 198]
    assert exact.scale_verdict(settled, []).figure == "scale 16,384 after 200 steps, 2 skipped"
    assert exact.scale_verdict(settled, []).verdict is Verdict.GOOD
    sentences = {
        "stem.0.weight is not finite after 200 steps in fp16": (settled, ["stem.0.weight"]),
        "the scale has not settled: step 199 of 200 was skipped": ([*settled[:-1], 8192.0], []),
        "23 of 200 steps were skipped, more than 10%": ([2.0 ** max(40 - i, 17) for i in range(201)], []),
        "the scale of the loss fell to 0.5, below 1: gradients overflow all the time": ([65536.0, 0.5], []),
    }
    for sentence, (scales, broken) in sentences.items():
        finding = exact.scale_verdict(scales, broken)
        assert (finding.verdict, finding.reason) == (Verdict.WRONG, sentence)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views and draws in operations of torch, so that a list of them can take the place of a CUDA graph."""
    monkeypatch.setattr(Step, "batch", views_at_once)
    monkeypatch.setattr(sampling, "_sort", lambda x: x.sort(-1).values)
    monkeypatch.setattr(sampling, "_smallest", lambda x, k: x.topk(k, largest=False, sorted=False).values)


@pytest.mark.slow
def test_replayed_steps_are_compared_with_eager_ones(as_on_a_gpu: None, tmp_path: Path) -> None:
    finding = exact.replayed(CPU, tmp_path / "right", Operations())
    assert finding.verdict is Verdict.GOOD and finding.values["error"] < 1e-6

    class Drifting(Operations):
        """Replays that are wrong from the eighth on, after a run has compared the first ones."""

        replays = 0

        def replay(self) -> None:
            super().replay()
            self.replays += 1
            if self.replays > 7:
                weights = (x for _, args, _, _ in self.calls for x in args if isinstance(x, torch.nn.Parameter))
                next(weights).data.mul_(1.5)

    finding = exact.replayed(CPU, tmp_path / "drifting", Drifting())
    assert finding.verdict is Verdict.WRONG and "framework.encoder." in finding.reason


def test_steps_that_cannot_be_replayed_are_slow(
    as_on_a_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Operations):
        def record(self, compute: Callable[[], Any], generators: Any) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(exact, "REPLAYED", 4)
    finding = exact.replayed(CPU, tmp_path, Refusing())
    assert finding.verdict is Verdict.SLOW and "operation not permitted" in finding.reason


# ---- ranks


def answers(world: int) -> list[exact_ranks.Answers]:
    return [{"all_gather": [0.0] * world, "all_reduce": [0.0] * world} for _ in range(world)]


def test_the_rank_that_sent_or_received_wrong_numbers_is_named() -> None:
    assert exact_ranks.verdict(answers(4)).figure == "2 collectives right on 4 ranks"
    sent, received = answers(4), answers(4)
    for rank in range(4):
        sent[rank]["all_reduce"][2] = 1e-3
    received[3]["all_gather"][1] = 0.5
    assert exact_ranks.verdict(sent).reason.startswith("all_reduce: what rank 2 sent is wrong on every rank, relative")
    assert exact_ranks.verdict(received).reason.startswith(
        "all_gather: rank 3 received wrong numbers, relative error 0.5"
    )


def _scaled(rank: int, world: int, device: torch.device) -> exact_ranks.Answers:
    """Rank 1 computes another mean: what it adds to a sum is a thousandth too large."""
    reduce = dist.all_reduce

    def wrong(x: Tensor, *options: Any) -> None:
        reduce(x.mul_(1.001 if rank == 1 else 1), *options)

    with patch.object(dist, "all_reduce", wrong):
        return exact_ranks.exchange(rank, world, device)


def _silent(rank: int, world: int, device: torch.device) -> exact_ranks.Answers:
    if rank == 1:
        time.sleep(600)
    return exact_ranks.exchange(rank, world, device)


@pytest.mark.slow
def test_collectives_of_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert exact_ranks.collectives(2, tmp_path / "right", method="forkserver").verdict is Verdict.GOOD
    finding = exact_ranks.collectives(2, tmp_path / "scaled", _scaled, "forkserver")
    assert finding.reason.startswith("all_reduce: what rank 1 sent is wrong on every rank, relative error 0.001")
    monkeypatch.setattr(exact_ranks, "SECONDS", 5)
    finding = exact_ranks.collectives(2, tmp_path / "silent", _silent, "forkserver")
    assert finding.reason == "ranks 0, 1 did not answer within 5 s"


def _rank_of_a_run(rank: int, config: dict[str, Any], run_id: str, folder: Path, port: int, fault: bool) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    parallel = distributed.parallel

    def wrong(module: Any, device: torch.device) -> Any:
        if rank == 1:
            for p in filter(lambda p: p.requires_grad, module.parameters()):
                p.register_hook(lambda gradient: gradient * 1.01)
        return parallel(module, device)

    with patch("ssl_bench.training.engine.parallel", wrong if fault else parallel):
        ranks.join(config, run_id, folder, quiet=True)


def start(fault: bool, config: dict[str, Any], run_id: str, folder: Path) -> Outcome:
    """Two ranks of a run; the gradient of rank 1 is a hundredth too large if ``fault``."""
    context, port = multiprocessing.get_context("forkserver"), free_port()
    arguments = (config, run_id, folder, port, fault)
    processes = [context.Process(target=_rank_of_a_run, args=(rank, *arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    return Outcome(State.DONE) if not any(p.exitcode for p in processes) else Outcome.failed("a rank failed")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [False, True])
def test_a_rank_with_another_gradient_is_found(fault: bool, tmp_path: Path) -> None:
    finding = exact_ranks.as_one(2, tmp_path, CPU, functools.partial(start, fault))
    assert finding.verdict is (Verdict.WRONG if fault else Verdict.GOOD), finding
    if fault:
        assert finding.values["error"] > 1e-5 and "on 2 ranks" in finding.reason


# ---- the section


def setting(folder: Path, devices: int = 1) -> Setting:
    return Setting(CPU, devices, Level.QUICK, folder, folder, time.monotonic() + 600)


def test_the_section_names_every_check_once_and_the_decisive_ones_first(tmp_path: Path) -> None:
    checks = list(exact.section(setting(tmp_path)))
    names = [check.name for check in checks]
    assert names[0] == "matrix product" and len(set(names)) == len(names) == (20 if bf16_is_slow() else 23)
    place = names.index("graph")
    assert names[place : place + 5] == ["graph", "fp16 scaling", "collectives", "ranks", "resume"]
    assert all(not name.startswith(("step ", "views ")) for name in names[:place])
    found = {
        check.name: check.run() for check in checks if check.name in ("collectives", "ranks", "graph", "fp16 scaling")
    }
    assert {finding.verdict for finding in found.values()} == {Verdict.SKIPPED}
    assert found["graph"].reason == "only GPUs replay steps as a CUDA graph"
    assert found["ranks"].reason.startswith("one device: set devices")


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_whole_section_on_two_ranks(tmp_path: Path) -> None:
    found = {name: finding for name, finding, _ in findings(exact.section, setting(tmp_path, 2))}
    verdicts = {name: finding.verdict for name, finding in found.items()}
    assert set(verdicts.values()) == {Verdict.GOOD, Verdict.SKIPPED}, found
    assert verdicts["collectives"] is verdicts["ranks"] is Verdict.GOOD


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_compiled_step_and_compiled_views_are_within_their_bounds() -> None:
    assert exact.compiled_network(CPU).verdict is Verdict.GOOD
    assert exact_views.compiled("digits", CPU).verdict is Verdict.GOOD
