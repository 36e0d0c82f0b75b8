"""Small runs on one device: replayed as a CUDA graph, stopped and resumed."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssl_bench.check.answer import REPORT, Answer, Setting, Verdict
from ssl_bench.check.bounds import WRONG_RESULT, Deviation, answer_of, distance
from ssl_bench.config.compose import load
from ssl_bench.errors import RunError
from ssl_bench.training.engine import Training
from ssl_bench.training.graph import TOLERANCE

RUN_ID = "0123456789"
TINY = ["backbone.width=16", "head.out=16", "batch_size.size=64", "epochs=8", "optimizer=sgd", "optimizer.lr=0.05"]
TINY += ["tracking=off", "evaluate=[]", "evaluate.baselines=[]", "compile_views=false", "images_on=device"]
TINY += ["tf32=false"]
REPLAYED, RESUMED = 12, 4  # steps
# With the rate of TINY, twelve steps make a rounding as large as the whole change of a weight.
SMALL_LR = "optimizer.lr=0.0001"


def tiny(folder: Path, device: torch.device, *overrides: str) -> Training:
    """A run of a small network on the scattered digits, from its checkpoint in ``folder`` if there is one."""
    run = Training(load([*TINY, *overrides]), device)
    run.state.resume(folder, RUN_ID)
    return run


def take_steps(run: Training, steps: int) -> Training:
    """Carry out some steps, as ``ssl-bench train`` does."""
    step = run.stepper()
    for _ in range(steps):
        step(False)
    return run


def weights(run: Training) -> dict[str, Tensor]:
    """Weights and buffers of a run by name, in float64 on the CPU."""
    state: dict[str, Any] = run.state.method.state_dict()
    return {name: value.cpu().double() for name, value in state.items() if isinstance(value, Tensor)}


# ---- replayed steps


def steps(setting: Setting) -> Iterator[Answer]:
    """Weights and buffers after some replayed steps on one device against eager ones."""
    skipped = Answer("replayed steps", "", Verdict.SKIPPED, "only GPUs replay steps as a CUDA graph")
    yield replay_answer(replay(setting.folder, setting.device)) if setting.device.type == "cuda" else skipped


def replay(folder: Path, device: torch.device, *overrides: str) -> list[Deviation] | str:
    """The distance of replayed steps from eager ones, as a share of their change; or why no step can be replayed.

    Replays and eager steps may round sums in another order. The bound is the one by which a run accepts a recording.
    """
    overrides = (SMALL_LR, *overrides)
    start = weights(tiny(folder, device, *overrides))
    eager = weights(take_steps(tiny(folder, device, "precision=fp32", "graph=false", *overrides), REPLAYED))
    try:
        again = weights(take_steps(tiny(folder, device, "precision=fp32", "graph=true", *overrides), REPLAYED))
    except RunError as error:
        return str(error).split(": set graph")[0]
    changes, exact = ({key: end[key] - value for key, value in start.items()} for end in (again, eager))
    least = 1e-3 * math.hypot(*(float(change.norm()) for key, change in exact.items() if not key.endswith("tracked")))
    return [distance(key, changes[key], change, TOLERANCE, least) for key, change in exact.items()]


def replay_answer(deviations: list[Deviation] | str) -> Answer:
    """The answer about replayed steps, of :func:`replay`."""
    name = "replayed steps"
    if isinstance(deviations, str):
        advice = f"runs with graph=auto stay eager, which is slower for small batches; {REPORT}"
        return Answer(name, "not replayed", Verdict.SLOW, deviations, advice)
    return answer_of(name, deviations, "weights and buffers", f"{WRONG_RESULT}; until then set graph=false")


# ---- resume


def resume(setting: Setting) -> Iterator[Answer]:
    """Stop a run in its middle and resume it: the state at once, and the end beside that of an undisturbed run.

    Both must have the same bits. Where two undisturbed runs differ, because their sums on a GPU have no fixed order,
    the end may differ by eight times as much.
    """
    torch.backends.cudnn.deterministic = True
    device, folder, half = setting.device, setting.folder, RESUMED // 2
    overrides = ["precision=fp32", "framework=moco_v2", "negatives.k=192", "head.hidden=16", "graph=false"]
    repeated = range(1 + (device.type == "cuda"))
    whole = [everything(take_steps(tiny(folder, device, *overrides), RESUMED)) for _ in repeated]
    stopped = take_steps(tiny(folder, device, *overrides), half)
    stopped.state.save(folder, RUN_ID, stopped.schedule.lr_at)
    again = tiny(folder, device, *overrides)
    where = f"after a stop at step {half} of {RESUMED}"
    deviations = list(_equal(everything(stopped), everything(again), {}, f"restored {where}"))
    if all(deviation.share <= 1 for deviation in deviations):
        noise = {name: float((whole[-1][name] - value).norm()) for name, value in whole[0].items()}
        end = everything(take_steps(again, RESUMED - half))
        deviations += _equal(whole[0], end, noise, f"at the end of a run resumed {where}")
    advice = "a stopped run does not go on as it would have: start it again from the beginning, and " + REPORT
    yield answer_of("stopped and resumed", deviations, "tensors", advice)


def everything(run: Training) -> dict[str, Tensor]:
    """Weights, buffers and moments of a run."""
    state = weights(run)
    for name, parameter in run.state.method.named_parameters():
        for kind, value in run.state.optimizer.state.get(parameter, {}).items():
            state[f"{kind} of {name}"] = torch.as_tensor(value).cpu().double()
    return state


def _equal(
    expected: Mapping[str, Tensor], state: Mapping[str, Tensor], noise: Mapping[str, float], where: str
) -> Iterator[Deviation]:
    """Compare all tensors, each with eight times its ``noise`` as the bound, 0 where there is none."""
    for name, value in expected.items():
        result = state.get(name, torch.full_like(value, math.nan))
        yield Deviation(f"{name} {where}", float((result - value).norm()), 8 * noise.get(name, 0.0))
