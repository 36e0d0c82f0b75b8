"""Where the time of a training step goes: phases of the step, and the operations of torch in each.

    python scripts/profile_step.py                                        # the default run
    python scripts/profile_step.py dataset=cifar10 batch_size=b64 precision=bf16
    python scripts/profile_step.py dataset=randbit_mnist --steps 20

The arguments are those of `ssl-bench train`. Times are torch.profiler's, on CPUs, of the thread that trains; the
profiler itself makes small operations a little slower. Operations with less than 1% of the step are summed.
"""

import argparse
import os
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from phases import PHASES, phases
from timing import environment
from torch.profiler import ProfilerActivity, profile, record_function

from ssl_bench.config.compose import load
from ssl_bench.hardware import local_device
from ssl_bench.training.engine import Training

WARM_UP = 3  # steps
Milliseconds = dict[str, Counter[str]]  # of the operations by phase


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
                with phases(training.state, record_function):
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
