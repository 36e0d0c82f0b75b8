"""Section ``speed``: how fast this device trains, and which share of the least possible time that is."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.check import together
from ssl_bench.check.finding import Check, Finding, Level, Setting, Verdict
from ssl_bench.check.floors import DeviceRates
from ssl_bench.check.step_speeds import BUSY, StepSpeeds
from ssl_bench.check.steps import NETWORKS, Workload
from ssl_bench.check.timing import extra_bytes, seconds_per_call
from ssl_bench.evaluate.knn import knn_predict
from ssl_bench.evaluate.linear import fit_linear
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.losses import InfoNCE
from ssl_bench.objective.negatives import InBatch

# Share of the section's time at whose end no further setting of a network is begun.
UNTIL = {"resnet18 32px": 0.45, "resnet18 96px": 0.52, "resnet50 224px": 0.65}
LEAST_LOSS, JUDGED_LOSS = 0.1, 4096  # of the rate of matrix products, from so many images on


def section(setting: Setting) -> Iterator[Check]:
    """Yield the checks: rates of the device, steps of three networks, their parts, evaluation, several processes."""
    begin, total = time.monotonic(), setting.seconds_left()
    steps = StepSpeeds(setting)
    yield from steps.device_checks()
    for network, part in UNTIL.items():
        yield from steps.network_checks(network, begin + part * total)
        yield Check(network, partial(steps.best_finding, network), 0)
    yield steps.operations_check()
    yield from (steps.views_check(network) for network in NETWORKS)
    yield from loss_checks(setting, steps.rates)
    yield from evaluation_checks(setting)
    yield from process_checks(setting, steps.formats[0])


# ---- loss, evaluation


def loss_checks(setting: Setting, rates: Callable[[str], DeviceRates | None]) -> Iterator[Check]:
    """InfoNCE of N images with all 2N - 2 negatives, forward and backward."""
    sizes: Sequence[int] = (4096, 16384, 65536) if setting.device.type == "cuda" else (1024, 4096, 8192)
    for images in sizes[: 2 if setting.level is Level.QUICK else 3]:
        seconds = 3 if setting.device.type == "cuda" else 1 + 4 * (images / 4096) ** 2
        yield Check(f"loss N={images}", partial(loss_finding, setting.device, images, rates), seconds)


def loss_finding(device: torch.device, images: int, rates: Callable[[str], DeviceRates | None]) -> Finding:
    """Time and memory of the loss, and the share of its six matrix products (two forward, four backward)."""
    width = 128
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(2, images, width, generator=generator).to(device).requires_grad_()
    ids, tau = torch.arange(images, device=device), torch.tensor(0.1, device=device)

    def call() -> None:
        q: Tensor = F.normalize(raw, dim=2)  # [2, N, 128]
        e, negatives = Embedded(q=q, p=q.flip(0), raw=q, ids=ids), InBatch()
        contrast = negatives.select(Contrast.of(e, negatives.bank(e), None))
        InfoNCE()(contrast, tau).mean().backward()

    extra = extra_bytes(call, device)
    seconds = seconds_per_call(call, device, 0)
    figure = f"{seconds * 1e3:,.1f} ms" + (f", {extra / 1e6:,.0f} MB" if extra is not None else "")
    values: dict[str, Any] = {"seconds": seconds} | ({} if extra is None else {"bytes": extra})
    known = rates("fp32")
    if known is None:
        return Finding(figure, values=values)
    share = values["share_of_floor"] = 6 * (2 * images) ** 2 * width / (known.tflops * 1e12) / seconds
    figure += f", {share:.0%} of the rate of matrix products"
    if share >= LEAST_LOSS or images < JUDGED_LOSS:
        return Finding(figure, Verdict.GOOD if images >= JUDGED_LOSS else Verdict.KNOWN, values=values)
    reason = f"{share:.1%} of the rate of matrix products is less than {LEAST_LOSS:.0%}"
    return Finding(figure, Verdict.SLOW, reason, BUSY[device.type], values)


@dataclasses.dataclass(frozen=True)
class FeatureSize:
    """Features of a dataset: images to train on and to test on, dimensions, classes."""

    name: str
    train: int
    test: int
    width: int
    classes: int


FEATURES = (FeatureSize("CIFAR-10", 50_000, 10_000, 512, 10), FeatureSize("ImageNet", 1_281_167, 50_000, 2048, 1000))
# Part of the images that is measured at each of the two sizes by kNN (train and test images) and by the probe; times
# are extrapolated.
MEASURED = {"cuda": ((1.0, 0.1), (1.0, 0.1)), "cpu": ((0.2, 0.01), (0.2, 0.002))}


def evaluation_checks(setting: Setting) -> Iterator[Check]:
    """KNN and linear probe on features of the sizes of CIFAR-10 and ImageNet, or on a part of them."""
    for size, *parts in zip(FEATURES, *MEASURED[setting.device.type], strict=True):
        yield Check(f"kNN {size.name}", partial(knn_finding, setting.device, size, parts[0]), 3)
        yield Check(f"linear probe {size.name}", partial(probe_finding, setting.device, size, parts[1]), 4)


def knn_finding(device: torch.device, size: FeatureSize, part: float) -> Finding:
    """Time of the kNN classifier with k = 200."""
    features, labels = _features(device, size, part)
    queries = features[: round(part * size.test)]
    options: Any = {"k": 200, "temperature": 0.1, "num_classes": size.classes}
    seconds = seconds_per_call(lambda: knn_predict(queries, features, labels, **options), device) / part**2
    return _evaluation(size, part, seconds, f"{size.test:,} queries in {size.train:,} x {size.width}")


def probe_finding(device: torch.device, size: FeatureSize, part: float) -> Finding:
    """Time of the linear probe with 8 learning rates over 100 epochs, from one epoch over a part of the images."""
    features, labels = _features(device, size, part)
    rates = [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
    options: Any = {"num_classes": size.classes, "epochs": 1, "batch_size": 512, "momentum": 0.9, "weight_decay": 0.0}
    fitted = torch.arange(len(features), device=device)

    def fit(rows: Tensor) -> object:
        return fit_linear(features, labels, rates, generator=torch.Generator().manual_seed(0), fitted=rows, **options)

    fit(fitted[:512])
    seconds = 100 * seconds_per_call(lambda: fit(fitted), device, 0) / part
    return _evaluation(size, part, seconds, f"8 learning rates, 100 epochs, {size.train:,} x {size.width}", epochs=True)


def _features(device: torch.device, size: FeatureSize, part: float) -> tuple[Tensor, Tensor]:
    count, generator = round(part * size.train), torch.Generator(device).manual_seed(0)
    features = torch.randn(count, size.width, device=device, generator=generator)
    return features, torch.randint(size.classes, (count,), device=device, generator=generator)


def _evaluation(size: FeatureSize, part: float, seconds: float, work: str, epochs: bool = False) -> Finding:
    measured = ([] if part == 1 else [f"{100 * part:g}% of the images"]) + (["one epoch"] if epochs else [])
    how = f" (extrapolated from {' and '.join(measured)})" if measured else ""
    return Finding(f"{seconds:,.1f} s for {work}{how}", values={"seconds": seconds, "part_measured": part})


# ---- several processes


def process_checks(setting: Setting, precision: str) -> Iterator[Check]:
    """Ranks that train together, and runs that share the device."""
    cuda = setting.device.type == "cuda"
    start = 15 if cuda else 12  # seconds until new processes have imported torch and made their first steps
    counts = [count for count in (8, 4, 2) if count <= setting.devices]
    for count in counts[:1] if setting.level is Level.QUICK else counts:
        yield Check(f"training on {count} ranks", partial(ranks_finding, setting, count, precision), start + 8)
    most = {Level.QUICK: 2, Level.DEFAULT: 4, Level.FULL: 8}[setting.level] if cuda else 2
    runs = [count for count in (1, 2, 4, 8) if count <= most]
    yield Check("runs sharing the device", partial(sharing_finding, setting, runs, precision), len(runs) * start)


def ranks_finding(
    setting: Setting, count: int, precision: str, work: together.Work = together.train_as_rank
) -> Finding:
    """Efficiency of training on several ranks, and the bandwidth of their all-reduce."""
    kind = setting.device.type
    network, share = ("resnet50 224px", 64) if kind == "cuda" else ("resnet18 32px", 8)
    folder, limit = setting.folder / f"ranks{count}", max(120.0, setting.seconds_left())
    reports = together.in_processes(work, count, folder, limit, kind, network, share, precision)
    return together.judge_ranks(reports, kind)


def sharing_finding(setting: Setting, runs: Sequence[int], precision: str) -> Finding:
    """Images/s of several small runs at once on one device."""
    kind = setting.device.type
    workload = Workload("resnet18 32px", *((64, precision, "graph") if kind == "cuda" else (8, precision, "eager")))
    totals = {}
    for count in runs:
        folder, limit = setting.folder / f"sharing{count}", max(120.0, setting.seconds_left())
        reports = together.in_processes(together.train_beside_others, count, folder, limit, kind, workload, 3.0)
        totals[count] = sum(report["images_s"] for report in reports)
    return together.judge_sharing(totals, workload, kind)
