"""Section ``speed``: figures, verdicts and planted faults, with networks that are small."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.check import speed, step_speeds, steps, timing, together
from ssl_bench.check.finding import Check, Finding, Level, Setting, Verdict, findings
from ssl_bench.check.floors import COSTS, DeviceRates, floor_images
from ssl_bench.check.step_speeds import StepSpeeds
from ssl_bench.check.steps import Workload
from ssl_bench.data.batch import Step
from ssl_bench.distributed import all_sum, parallel
from ssl_bench.training.graph import EAGER_STEPS, GraphedStepper
from ssl_bench.training.step import Stepper
from tests.operations import Operations
from tests.training.test_graph import views_at_once

CPU = torch.device("cpu")
NETWORK = "resnet18 32px"
SMALL = ["dataset=scattered_digits", "backbone.width=4", "head.out=16"]


@pytest.fixture(autouse=True)
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A very small network of 20 pixels in place of each network, measured for a tenth of a second."""
    for name in steps.NETWORKS:
        monkeypatch.setitem(steps.NETWORKS, name, (SMALL, 20))
    monkeypatch.setattr(timing, "SECONDS", 0.1)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(CPU, 2, Level.QUICK, tmp_path, tmp_path, time.monotonic() + 1000)


def speeds_with_floor(setting: Setting, images_s: float) -> StepSpeeds:
    """The speeds of a device whose floor of ``NETWORK`` in fp32 is at ``images_s``."""
    speeds = StepSpeeds(setting)
    speeds.tflops, speeds.gigabytes = {"fp32": 2 * COSTS[NETWORK].gflop * images_s / 1e3}, 1e9
    assert speeds.share(Workload(NETWORK, 8, "fp32"), images_s) == pytest.approx(1, rel=1e-3)
    return speeds


def slow_steps(seconds: float) -> Callable[..., Any]:
    """``Stepper.compute`` that takes longer."""
    compute = Stepper.compute

    def slow(*arguments: Any) -> Any:
        time.sleep(seconds)
        return compute(*arguments)

    return slow


# ---- steps


def test_a_step_is_that_of_a_run(setting: Setting) -> None:
    training = Workload(NETWORK, 16, "bf16").training(setting.folder, CPU)
    before = [p.clone() for p in training.state.method.parameters()]
    step = training.stepper()
    for _ in range(2):
        step(False)
    assert training.state.step == 2 and training.precision.autocast == torch.bfloat16
    assert any(not torch.equal(a, b) for a, b in zip(before, training.state.method.parameters(), strict=True))
    assert list(setting.folder.iterdir()) == []


def test_the_images_are_random_and_repeat() -> None:
    images = steps.RepeatedImages(1000, 3, 8)
    taken = images.take(torch.tensor([0, 1, steps.DISTINCT]))
    assert isinstance(taken, Tensor) and taken.shape == (3, 3, 8, 8) and taken.dtype == torch.uint8
    assert torch.equal(taken[0], taken[2]) and not torch.equal(taken[0], taken[1])
    assert len(images) == 1000 and images.to(CPU).take(torch.tensor([7])).shape == (1, 3, 8, 8)  # type: ignore[union-attr]


def test_a_step_can_be_recorded(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "batch", views_at_once)
    training = Workload(NETWORK, 16, "fp32").training(setting.folder, CPU)
    stepper = Stepper(training.state.method, training.state, training.schedule, training.precision, None)
    graphed = GraphedStepper(stepper, training.loader, True, Operations())  # raises an error if a replay differs
    for _ in range(steps.warm_up("graph")):
        graphed(False)
    assert training.state.step == steps.warm_up("graph") > EAGER_STEPS


def test_a_slow_step_is_named_with_its_share_of_the_floor(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, sleep = Workload(NETWORK, 16, "fp32"), 0.25
    speeds = speeds_with_floor(setting, 16 / sleep / 0.08)
    good = speeds.step_finding(workload)
    assert good.verdict is Verdict.GOOD and good.values["share_of_floor"] > 0.1
    monkeypatch.setattr(Stepper, "compute", slow_steps(sleep))
    slow = speeds.step_finding(workload)
    assert slow.verdict is Verdict.SLOW and 0.03 < slow.values["share_of_floor"] <= 0.08
    assert slow.values["images_s"] == pytest.approx(speeds.found[NETWORK][workload]) and slow.values["images_s"] <= 64
    assert slow.reason == f"{slow.values['share_of_floor']:.1%} of the floor is less than 10%"
    assert "top" in slow.advice


def test_the_fastest_setting_is_summarised(setting: Setting) -> None:
    speeds = speeds_with_floor(setting, 1000)
    assert speeds.best_finding(NETWORK).verdict is Verdict.SKIPPED
    speeds.found[NETWORK] = {Workload(NETWORK, 32, "fp32"): 300.0, Workload(NETWORK, 64, "fp32", "compiled"): 400.0}
    found = speeds.best_finding(NETWORK)
    named = {"images_s": 400.0, "gflop_per_image": 6.66, "batch": 64, "precision": "fp32", "mode": "compiled"}
    assert found.values == named and found.verdict is Verdict.GOOD
    assert found.figure == "at best 400.0 images/s: B=64 fp32 compiled; 40% of the floor"
    assert found.advice == "fastest with batch_size.size=64 precision=fp32 compile=true"
    speeds.found[NETWORK] = {Workload(NETWORK, 32, "fp32"): 90.0}
    slow = speeds.best_finding(NETWORK)
    assert slow.verdict is Verdict.SLOW and slow.reason == "9.0% of the floor is less than 10%"


def test_without_a_yardstick_a_speed_is_known(setting: Setting) -> None:
    found = StepSpeeds(setting).step_finding(Workload(NETWORK, 16, "fp32"))
    assert found.verdict is Verdict.KNOWN and found.values["images_s"] > 0 and "share_of_floor" not in found.values


class SmallDevice(TorchDispatchMode):
    """A device that refuses tensors of more than ``limit`` bytes."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit, self.largest = limit, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.nbytes)
        if self.largest > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return result


def test_a_batch_that_does_not_fit_names_the_largest_that_does(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepSpeeds, "workloads", lambda self, n: (Workload(n, b, "fp32") for b in (16, 32, 64, 128)))
    with SmallDevice(float("inf")) as unlimited:
        Workload(NETWORK, 32, "fp32").step(setting.folder, CPU)()
    speeds = speeds_with_floor(setting, 1000)
    with SmallDevice(unlimited.largest):
        found = {
            name: x
            for name, x, _ in findings(lambda _: speeds.network_checks(NETWORK, time.monotonic() + 999), setting)
        }
    assert [*found] == [f"{NETWORK} B={batch} fp32 eager" for batch in (16, 32, 64)]  # 128 is not tried
    finding = found[f"{NETWORK} B=64 fp32 eager"]
    assert finding.verdict is Verdict.KNOWN and finding.values == {"batch": 64, "largest_batch": 32}
    assert finding.figure == "does not fit; B=32 does" and "too small for a step of 64 images" in finding.reason
    assert finding.advice == "set batch_size.chunk to 32 or less for larger batches, or more devices"
    assert "B=64 does not fit in fp32 eager, B=32 does" in speeds.best_finding(NETWORK).figure


def test_another_error_is_no_lack_of_memory(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(Stepper, "compute", broken)
    check = Check("step", lambda: StepSpeeds(setting).step_finding(Workload(NETWORK, 16, "fp32")))
    ((_, found, _),) = findings(lambda _: iter([check]), setting)
    assert found.verdict is Verdict.WRONG and "illegal memory access" in found.reason


def test_settings_are_left_out_and_counted_when_time_is_short(setting: Setting) -> None:
    speeds = speeds_with_floor(setting, 1000)
    names = [name for name, _, _ in findings(lambda _: speeds.network_checks(NETWORK, time.monotonic()), setting)]
    assert names == [f"{NETWORK} B=32 fp32 eager"]
    assert "3 settings were not measured for lack of time" in speeds.best_finding(NETWORK).figure


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("level", Level)
def test_the_settings_of_each_level(setting: Setting, kind: str, level: Level) -> None:
    speeds = StepSpeeds(replace(setting, level=level))
    speeds.kind, speeds.formats = kind, ["fp32", "bf16"] if kind == "cpu" else ["bf16", "fp16", "fp32"]
    for network, batches in step_speeds.BATCHES[kind].items():
        settings = list(speeds.workloads(network))
        assert len(set(settings)) == len(settings)
        count = step_speeds.QUICK[network] if level is Level.QUICK else None
        assert list(dict.fromkeys(w.batch for w in settings)) == list(batches[:count])
        assert settings[0].precision == speeds.formats[0]
        compiled = level is Level.FULL or (level is Level.DEFAULT and kind == "cuda" and network == NETWORK)
        assert any("compiled" in w.mode for w in settings) is compiled
        assert any("graph" in w.mode for w in settings) is (kind == "cuda")


# ---- rates of the device


def test_a_known_gpu_that_is_slow_is_named(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = StepSpeeds(setting)
    speeds._name = "NVIDIA H200"
    monkeypatch.setattr(step_speeds, "product_tflops", lambda *_: 395.0)
    found = speeds._product("bf16")
    assert found.verdict is Verdict.SLOW and found.reason == "395 TFLOP/s is less than 70% of 790"
    assert found.figure == "395 TFLOP/s, 50% of the 790 of this GPU" and found.advice
    monkeypatch.setattr(step_speeds, "copy_gigabytes", lambda *_: 4200.0)
    assert speeds._copy().verdict is Verdict.GOOD
    assert speeds.rates("bf16") == DeviceRates(790, 4300)  # the floor is that of the table


# ---- parts


def test_views_that_take_long_are_named(setting: Setting) -> None:
    speeds = StepSpeeds(setting)
    known = speeds.views_finding(NETWORK, False)
    assert known.verdict is Verdict.KNOWN and known.values["images_s"] > 100
    for images_s, verdict in ((1.0, Verdict.GOOD), (known.values["images_s"], Verdict.SLOW)):
        speeds.found[NETWORK][Workload(NETWORK, 32, "fp32")] = images_s
        found = speeds.views_finding(NETWORK, False)
        assert found.verdict is verdict
    assert "of the time of the fastest step, more than 30%" in found.reason


def test_the_operations_of_a_step_are_counted(setting: Setting) -> None:
    found = StepSpeeds(setting)._operations()
    assert 100 < found.values["operations"] < 3000
    x = torch.ones(3)
    with timing.DispatchCounter() as counter:
        (x + 1).mul_(2)
    assert counter.count == 2


def test_a_slow_loss_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "JUDGED_LOSS", 256)
    found = speed.loss_finding(CPU, 256, lambda _: DeviceRates(1e-4, 10))
    assert found.verdict is Verdict.GOOD and found.values["seconds"] > 0
    slow = speed.loss_finding(CPU, 256, lambda _: DeviceRates(1e3, 10))
    assert slow.verdict is Verdict.SLOW and slow.reason.endswith("of the rate of matrix products is less than 10%")
    expected = 6 * 512**2 * 128 / 1e15 / slow.values["seconds"]
    assert slow.values["share_of_floor"] == pytest.approx(expected)


def test_the_memory_of_a_call_is_measured() -> None:
    found = timing.extra_bytes(lambda: torch.ones(2**24), CPU)  # 64 MiB
    assert found is not None and 0.9 * 2**26 < found < 1.5 * 2**26


def test_times_of_evaluation_are_extrapolated_and_say_so() -> None:
    size = speed.FeatureSize("few", 1600, 400, 8, 10)
    for finding in (speed.knn_finding, speed.probe_finding):
        whole, part = finding(CPU, size, 1.0), finding(CPU, size, 0.25)
        assert "25% of the images" in part.figure and "% of the images" not in whole.figure
        assert part.values["part_measured"] == 0.25 and part.values["seconds"] > whole.values["seconds"] / 20
    assert "one epoch" in part.figure


# ---- several processes

ALIKE = {"images_s_alone": 100.0, "gradient_bytes": 45e6, "exchange_bytes_s": 4.5e9, "step_seconds": 0.1}


def test_a_slow_rank_is_named() -> None:
    reports = [ALIKE | {"images_s": 380.0} for _ in range(4)]
    good = together.judge_ranks(reports, "cuda")
    assert good.verdict is Verdict.GOOD and good.values["efficiency"] == pytest.approx(0.95)
    assert good.values["all_reduce_bytes_s"] == pytest.approx(4.5e9 * 1.5)
    reports[2] = reports[2] | {"images_s_alone": 40.0}
    slow = together.judge_ranks(reports, "cuda")
    assert slow.verdict is Verdict.SLOW
    assert slow.reason == "rank 2 alone trains 40 images/s, 40% of the others' 100 (bound 60%)"


def test_a_slow_exchange_is_named() -> None:
    reports = [ALIKE | {"images_s": 200.0, "exchange_bytes_s": 45e7, "step_seconds": 0.2} for _ in range(4)]
    slow = together.judge_ranks(reports, "cuda")
    assert slow.verdict is Verdict.SLOW
    assert slow.reason.startswith(
        "4 ranks together reach 50% of 4 times the slowest alone, less than 75%; averaging 45 MB"
    )
    assert "takes 50% of a step at 0.675 GB/s" in slow.reason and "nvidia-smi topo -m" in slow.advice


def test_runs_that_disturb_each_other_are_named() -> None:
    workload = Workload(NETWORK, 64, "fp32")
    good = together.judge_sharing({1: 100.0, 2: 150.0, 4: 180.0}, workload, "cuda")
    assert good.verdict is Verdict.GOOD and good.values["best"] == 4 and good.values["gain"] == pytest.approx(1.8)
    slow = together.judge_sharing({1: 100.0, 2: 60.0}, workload, "cuda")
    assert slow.verdict is Verdict.SLOW
    assert slow.reason == "2 runs at once reach 60% of the images/s of one, less than 80%"
    assert slow.advice == "for grids of small runs, set runs_per_gpu=1"


def small_rank(number: int, count: int, barrier: Any, folder: Path, *arguments: Any) -> Mapping[str, float]:
    """A rank with the small network."""
    steps.NETWORKS[NETWORK] = (SMALL, 20)
    return together.train_as_rank(number, count, barrier, folder, *arguments)


def slow_rank(number: int, *arguments: Any) -> Mapping[str, float]:
    """Rank 1 takes longer for every step."""
    with patch.object(Stepper, "compute", slow_steps(0.3 * number)):
        return small_rank(number, *arguments)


def slow_exchange_rank(number: int, *arguments: Any) -> Mapping[str, float]:
    """Every exchange of gradients takes longer."""

    def slow_sum(x: Tensor) -> Tensor:
        time.sleep(0.3)
        return all_sum(x)

    def slow_parallel(module: nn.Module, device: torch.device) -> nn.Module:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
            time.sleep(0.3)
            return allreduce_hook(state, bucket)

        ranks: Any = parallel(module, device)
        if ranks is not module:
            ranks.register_comm_hook(None, hook)
        return ranks  # type: ignore[no-any-return]

    with patch.object(together, "all_sum", slow_sum), patch("ssl_bench.training.engine.parallel", slow_parallel):
        return small_rank(number, *arguments)


@pytest.fixture
def import_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """New processes can import the tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("import_tests")
@pytest.mark.parametrize(
    ("work", "named"), [(slow_rank, "rank 1 alone trains"), (slow_exchange_rank, "of gradients takes")]
)
def test_two_real_ranks(setting: Setting, work: together.Work, named: str) -> None:
    found = speed.ranks_finding(setting, 2, "fp32", work)
    assert found.values["all_reduce_bytes_s"] > 0 and len(found.values["images_s_alone"]) == 2
    assert found.verdict is Verdict.SLOW and named in found.reason


def failing_rank(number: int, *arguments: Any) -> Mapping[str, float]:
    """Rank 1 fails."""
    if number == 1:
        raise RuntimeError("a planted failure")
    return small_rank(number, *arguments)


@pytest.mark.slow
@pytest.mark.usefixtures("import_tests")
def test_a_rank_that_fails_ends_the_others(setting: Setting) -> None:
    check = Check("ranks", lambda: speed.ranks_finding(setting, 2, "fp32", failing_rank))
    start = time.monotonic()
    ((_, found, _),) = findings(lambda _: iter([check]), setting)
    assert found.verdict is Verdict.WRONG and time.monotonic() - start < 50
    assert found.reason == "RunError: process 1 of 2 failed: RuntimeError: a planted failure"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("import_tests")
def test_the_whole_section(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(speed.MEASURED, "cpu", ((0.02, 0.001), (0.02, 0.0001)))
    found: dict[str, Finding] = {}
    for name, finding, _ in findings(speed.section, replace(setting, until=time.monotonic() + 600)):
        assert name not in found
        assert finding.verdict is not Verdict.WRONG, (name, finding)
        assert finding.reason or finding.verdict in (Verdict.GOOD, Verdict.KNOWN), name
        found[name] = finding
    assert {*steps.NETWORKS, "copy", "loss N=4096", "training on 2 ranks", "runs sharing the device"} < {*found}
    for network in steps.NETWORKS:
        assert {*found[network].values} == {"images_s", "gflop_per_image", "batch", "precision", "mode"}
    rates = DeviceRates(found["matrix product fp32"].values["tflops"], found["copy"].values["bytes_s"] / 1e9)
    step = found[f"{NETWORK} B=32 fp32 eager"].values
    floor = floor_images(COSTS[NETWORK], rates, "fp32")
    assert step["share_of_floor"] == pytest.approx(step["images_s"] / floor)
