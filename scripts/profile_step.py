"""Where the time of a training step goes: phases of the step, and the operations of torch in each.

    python scripts/profile_step.py                                        # the default run
    python scripts/profile_step.py dataset=cifar10 batch_size=b64 precision=bf16
    python scripts/profile_step.py dataset=randbit_mnist --steps 20

The arguments are those of `ssl-bench train`. Times are torch.profiler's, on CPUs, of the thread that trains; the
profiler itself makes small operations a little slower. Operations with less than 1% of the step are summed.
"""

import argparse
import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from timing import environment
from torch.profiler import ProfilerActivity, profile, record_function

from ssl_bench.config.compose import load
from ssl_bench.data.batch import Step
from ssl_bench.data.loader import Loader
from ssl_bench.data.views import Views
from ssl_bench.hardware import local_device
from ssl_bench.training.engine import Training
from ssl_bench.training.state import TrainingState

PHASES = ("draws", "views", "forward", "momentum", "loss", "backward", "optimiser", "after_step", "meter", "rest")
WARM_UP = 3  # steps
Milliseconds = dict[str, Counter[str]]  # of the operations by phase


@contextlib.contextmanager
def phases(state: TrainingState) -> Iterator[None]:
    """Name the parts of the steps of a training inside the block for the profiler, and "rest" around all."""
    method = state.method
    parts: list[tuple[str, Any, str]] = [
        ("draws", Loader, "uniform"),
        ("draws", Views, "parameters"),
        ("views", Step, "batch"),
        ("forward", method, "trained_outputs"),
        ("momentum", method, "momentum_outputs"),
        ("loss", method, "objective"),
        ("backward", torch.autograd, "backward"),
        ("optimiser", state.optimizer, "zero_grad"),
        ("optimiser", state.scaler, "step"),
        ("optimiser", state.scaler, "update"),
        ("after_step", method, "remember"),
        ("after_step", method, "advance"),
        ("meter", state.meter, "add"),
        ("meter", state.meter, "advance"),
    ]

    def within(name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            with record_function(name):
                return function(*arguments, **options)

        return call

    with contextlib.ExitStack() as stack:
        stack.enter_context(record_function("rest"))
        for name, owner, function in parts:
            stack.enter_context(patch.object(owner, function, within(name, getattr(owner, function))))
        yield


def measure(config: dict[str, Any], steps: int) -> Milliseconds:
    """The time of each phase's operations in a step of a run, the mean of some steps."""
    with TemporaryDirectory() as folder:
        training = Training(config, "profile", Path(folder), local_device(0))
        training.state.method.train()
        step = training.stepper()
        for _ in range(WARM_UP):
            step(False)
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            for _ in range(steps):
                with phases(training.state):
                    step(False)
    spent: Milliseconds = defaultdict(Counter)
    for event in trace.events() or []:
        inner = event
        while inner.name not in PHASES and inner.cpu_parent is not None:
            inner = inner.cpu_parent
        if inner.name in PHASES:
            name = "Python" if event is inner else event.name.removeprefix("aten::")
            spent[inner.name][name] += event.self_cpu_time_total / 1e3 / steps
    return spent


def print_phases(spent: Milliseconds) -> None:
    """Print a row per phase, in Markdown."""
    total = sum(each.total() for each in spent.values())
    print("| phase | ms | share | operations |\n|---|---|---|---|")
    for phase in PHASES:
        if phase not in spent:
            continue
        found, all_of_it = spent[phase], spent[phase].total()
        large = [(name, ms) for name, ms in found.most_common() if ms >= total / 100]
        words = [f"{name} {ms / total:.0%}" for name, ms in large]
        rest = (all_of_it - sum(ms for _, ms in large)) / total
        words += [f"others {rest:.0%}"] if words and rest >= 0.005 else []
        print(f"| {phase} | {all_of_it:.2f} | {all_of_it / total:.0%} | {', '.join(words)} |")
    print(f"| all | {total:.2f} | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of ssl-bench train")
    parser.add_argument("--steps", type=int, default=10, help="profiled steps")
    arguments = parser.parse_args()

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    config = load([*arguments.overrides, "tracking=off", "evaluate=[]", "evaluate.baselines=[]"])
    print(environment(["torchvision"]))
    print_phases(measure(config, arguments.steps))


if __name__ == "__main__":
    main()
