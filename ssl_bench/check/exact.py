"""Does this machine compute right? Kernels, views, steps, recordings, resumed runs, ranks and evaluation.

The basic kernels come first: where one of them is wrong, everything after it may be. What depends most on the machine
follows, since the time can be too short for the rest.
"""

import contextlib
import io
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from ssl_bench.check.bounds import WRONG_RESULT, Difference, computing, difference, formats, judged
from ssl_bench.check.exact_features import feature_checks
from ssl_bench.check.exact_ranks import RUN_ID, TINY, as_one, collectives, named_state
from ssl_bench.check.exact_steps import Combinations, step_checks
from ssl_bench.check.exact_views import COMPILER, view_checks
from ssl_bench.check.finding import Check, Finding, Level, Setting, Verdict
from ssl_bench.check.kernels import kernel_checks
from ssl_bench.config.compose import load
from ssl_bench.errors import RunError
from ssl_bench.signals import Interrupt, Interrupted
from ssl_bench.training.engine import Training
from ssl_bench.training.graph import TOLERANCE, CudaRecording, GraphedStepper, Recording
from ssl_bench.training.step import Stepper

REPLAYED, RESUMED, SCALED = 12, 4, 200  # steps
SKIPPED_SHARE = 0.1  # of the steps in fp16: the scale starts at 65,536 and is halved until the gradients fit
SETTLED = 100  # steps at the end that should all count


def section(setting: Setting) -> Iterator[Check]:
    """The checks of exactness, the decisive ones first."""
    device, level, folder = setting.device, setting.level, setting.folder
    cuda = device.type == "cuda"
    yield from kernel_checks(device)
    on_gpu = Finding("", Verdict.SKIPPED, "only GPUs replay steps as a CUDA graph")
    yield Check("graph", lambda: replayed(device, folder / "graph", CudaRecording()) if cuda else on_gpu, 10 * cuda)
    on_gpu_too = Finding("", Verdict.SKIPPED, "fp16 needs a GPU")
    yield Check("fp16 scaling", lambda: scaled(device, folder / "fp16") if cuda else on_gpu_too, 10 * cuda)
    yield Check("collectives", lambda: several(setting, lambda n: collectives(n, folder / "collectives")), 10)
    yield Check("ranks", lambda: several(setting, lambda n: as_one(n, folder / "ranks", device)), 12)
    yield Check("resume", partial(resumed, device, folder / "resume"), 5)
    views = list(view_checks(device, level))
    yield from (check for check in views if check.seconds < 30)
    yield from feature_checks(device, level)
    yield from step_checks(device, level)
    if cuda or level > Level.QUICK:
        yield Check("compiled network", partial(compiled_network, device), 60)
    yield from (check for check in views if check.seconds >= 30)


def several(setting: Setting, check: Callable[[int], Finding]) -> Finding:
    """A check of all ranks, skipped where there is one."""
    if setting.devices < 2:
        return Finding("", Verdict.SKIPPED, "one device: set devices to the number of GPUs, or of processes on a CPU")
    return check(setting.devices)


def tiny(folder: Path, device: torch.device, *overrides: str) -> Training:
    """A run of a few steps of a small network on the scattered digits."""
    folder.mkdir(parents=True, exist_ok=True)
    return Training(load([*TINY, "precision=fp32", "tf32=false", *overrides]), RUN_ID, folder, device)


def stepper(run: Training) -> Stepper:
    """Carries out eager steps of a run."""
    run.state.method.train()
    return Stepper(run.state.method, run.state, run.schedule, run.precision, None)


# ---- compiled, replayed, scaled


def compiled_network(device: torch.device) -> Finding:
    """Loss and gradients of a step with ``compile=true``, with the bounds of an eager step."""
    fp32 = next(form for form in formats(device) if form.name == "fp32")
    combinations = Combinations(Level.QUICK)
    combinations.losses = ["infonce"]
    (reference,) = combinations.steps("simclr")
    torch._dynamo.reset()
    try:
        differences = reference.compare(fp32, device, compiled=True)
    except Exception as error:  # whatever the compiler raises
        reason = f"torch.compile fails ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        return Finding("not compiled", Verdict.SLOW, f"{reason}: a run with compile=true would, too", COMPILER)
    return judged(differences, "losses and gradients", f"{WRONG_RESULT}; until then leave compile=false")


def replayed(device: torch.device, folder: Path, recording: Recording) -> Finding:
    """Weights and buffers after some replayed steps against eager ones, as a share of their change.

    Replays and eager steps may round sums in another order. The bound is the one by which a run accepts a recording.
    """
    with computing(tf32=False):
        overrides = ["images_on=device", f"max_steps={REPLAYED}"]
        eager, run = (tiny(folder / name, device, *overrides) for name in ("eager", "replayed"))
        start = named_state(eager.state.method.state_dict())
        step, graphed = stepper(eager), GraphedStepper(stepper(run), run.loader, True, recording)
        for images in eager.loader.steps(0, REPLAYED):
            step(images, False)
        try:
            for _ in range(REPLAYED):
                graphed(False)
        except RunError as error:
            advice = "runs with graph=auto stay eager, which is slower for small batches; report this with check.md"
            return Finding("not replayed", Verdict.SLOW, str(error).split(": set graph")[0], advice)
        expected, found = (named_state(each.state.method.state_dict()) for each in (eager, run))
    differences = []
    for name, value in expected.items():
        change = max(float((value - start[name]).norm()), 1e-12)
        differences.append(Difference(name, float((found[name] - value).norm()) / change, TOLERANCE))
    return judged(differences, "weights and buffers", f"{WRONG_RESULT}; until then set graph=false")


def scaled(device: torch.device, folder: Path) -> Finding:
    """Train for a while in fp16 and watch the scale of the loss."""
    run = tiny(folder, device, "precision=fp16", "epochs=10", f"max_steps={SCALED}")
    step, scales = stepper(run), [run.state.scaler.get_scale()]
    for images in run.loader.steps(0, SCALED):
        step(images, False)
        scales.append(run.state.scaler.get_scale())
    broken = [n for n, t in run.state.method.state_dict().items() if isinstance(t, Tensor) and not t.isfinite().all()]
    return scale_verdict(scales, broken)


def scale_verdict(scales: Sequence[float], broken: Sequence[str]) -> Finding:
    """The finding about a training in fp16.

    Args:
        scales: of the loss before the first step and after each one; it is halved after a step that is skipped.
        broken: names of weights and buffers that are not finite at the end.
    """
    skipped = [step for step, (before, after) in enumerate(pairwise(scales)) if after < before]
    steps = len(scales) - 1
    values = {"steps": steps, "skipped": len(skipped), "share_skipped": len(skipped) / steps, "scale": scales[-1]}
    figure = f"scale {scales[-1]:,.0f} after {steps} steps, {len(skipped)} skipped"
    advice = "train with precision=fp32 (or bf16) on this device, and report this finding with check.md"
    reason = ""
    if broken:
        reason = f"{broken[0]} is not finite after {steps} steps in fp16"
    elif not math.isfinite(scales[-1]) or scales[-1] < 1:
        reason = f"the scale of the loss fell to {scales[-1]:g}, below 1: gradients overflow all the time"
    elif len(skipped) > SKIPPED_SHARE * steps:
        reason = f"{len(skipped)} of {steps} steps were skipped, more than {SKIPPED_SHARE:.0%}"
    elif any(step >= steps - SETTLED for step in skipped):
        reason = f"the scale has not settled: step {skipped[-1]} of {steps} was skipped"
    return Finding(figure, Verdict.WRONG if reason else Verdict.GOOD, reason, advice if reason else "", values)


# ---- resume


class StopAfter(Interrupt):
    """Asks a run to stop after some steps, as a signal would."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def agreed(self) -> int:
        self.steps -= 1
        return int(signal.SIGTERM) if self.steps == 0 else 0


def everything(run: Training) -> dict[str, Tensor]:
    """All numbers that a checkpoint has to restore, by name, in float64 on the CPU."""
    state = run.state
    found = named_state(state.method.state_dict())
    for name, module in state.method.named_modules():
        if isinstance(getattr(module, "step", None), int):
            found[f"step of {name}"] = torch.tensor(float(module.step))  # type: ignore[arg-type]
    for name, parameter in state.method.named_parameters():
        moments = state.optimizer.state.get(parameter, {})
        found |= named_state({f"{kind} of {name}": value for kind, value in moments.items()})
    return found | {"step": torch.tensor(float(state.step)), "meter": torch.tensor(state.meter.summary())}


def resumed(device: torch.device, folder: Path) -> Finding:
    """Stop a run in its middle and resume it: the state at once, and the end beside that of an undisturbed run.

    Both must have the same bits. Where two undisturbed runs differ, because their sums on a GPU have no fixed order,
    the end may differ by eight times as much.
    """
    overrides = ["framework=moco_v2", "negatives.k=192", f"max_steps={RESUMED}", "head.hidden=16"]
    cudnn = torch.backends.cudnn
    kept, cudnn.deterministic = cudnn.deterministic, True
    try:
        with computing(tf32=False), contextlib.redirect_stdout(io.StringIO()):
            ends = []
            for name in ("whole", "twin")[: 2 if device.type == "cuda" else 1]:
                run = tiny(folder / name, device, *overrides)
                run.loop(Interrupt(), None)
                ends.append(everything(run))
            stopped = tiny(folder / "stopped", device, *overrides)
            with contextlib.suppress(Interrupted):
                stopped.loop(StopAfter(RESUMED // 2), None)
            again = tiny(folder / "stopped", device, *overrides)
            again.state.resume(folder / "stopped", RUN_ID)
            where = f"after a stop at step {RESUMED // 2} of {RESUMED}"
            differences = _differences(everything(stopped), everything(again), {}, f"restored {where}")
            if all(each.share <= 1 for each in differences):
                again.loop(Interrupt(), None)
                noise = {name: float((ends[-1][name] - value).norm()) for name, value in ends[0].items()}
                differences += _differences(ends[0], everything(again), noise, f"at the end of a run resumed {where}")
    finally:
        cudnn.deterministic = kept
    return judged(
        differences,
        "tensors of a resumed run",
        "a stopped run does not go on as it would have: start it \
again from the beginning, and report this finding with check.md",
    )


def _differences(
    expected: dict[str, Tensor], found: dict[str, Tensor], noise: dict[str, float], where: str
) -> list[Difference]:
    """Differences of all tensors, each with eight times its ``noise`` as the bound, 0 where there is none."""
    missing = [Difference(f"{name} is not there {where}", math.inf, 0.0) for name in expected.keys() - found.keys()]
    differences = []
    for name in sorted(expected.keys() & found.keys()):
        a, b = found[name], expected[name]
        same = difference(f"{name} {where}", a, b)
        if noise.get(name):
            same = Difference(same.name, float((a - b).norm()), 8 * noise[name])
        differences.append(same)
    return missing + differences
