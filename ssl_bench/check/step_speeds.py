"""Speeds of a device and of training steps of three networks, beside the least possible time."""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from ssl_bench.check.finding import Check, Finding, Level, Setting, Verdict
from ssl_bench.check.floors import (
    COSTS,
    DeviceRates,
    copy_gigabytes,
    floor_images,
    known_rates,
    network_formats,
    product_format,
    product_tflops,
)
from ssl_bench.check.steps import NETWORKS, Workload, warm_up
from ssl_bench.check.timing import DispatchCounter, launches_and_waits, seconds_per_call
from ssl_bench.data.loader import Loader
from ssl_bench.hardware import release_memory
from ssl_bench.launch.ranks import out_of_memory
from ssl_bench.parts import Parts

# Least share of the floor. Ordinary loops reach 56% with ResNet-18 on an A100. On a CPU the floor is less certain: the
# convolutions of its libraries reach between a fifth and all of the rate of a matrix product, and busy cores slow both.
LEAST_SHARE = {"cuda": 0.25, "cpu": 0.1}
LEAST_KNOWN = 0.7  # of the rates in the table of known GPUs
MOST_VIEWS = 0.3  # of a step's time
# Least batch at which a step is judged: below it, a GPU waits for the host.
JUDGED = {"cuda": {"resnet18 32px": 256, "resnet18 96px": 256, "resnet50 224px": 64}, "cpu": dict.fromkeys(NETWORKS, 1)}
# The most telling batch first; level quick has only the first ones, as many as QUICK says.
BATCHES = {
    "cuda": {
        "resnet18 32px": (512, 64, 256, 1024, 128, 32),
        "resnet18 96px": (256, 1024, 64),
        "resnet50 224px": (128, 256, 32),
    },
    "cpu": {"resnet18 32px": (32, 64, 128, 256), "resnet18 96px": (16, 64), "resnet50 224px": (4, 16)},
}
QUICK = {"resnet18 32px": 2, "resnet18 96px": 1, "resnet50 224px": 1}
BUSY = {
    "cuda": "see that no other program uses the GPU, its clock and its temperature (nvidia-smi)",
    "cpu": "see that no other program uses the cores (top), and that OMP_NUM_THREADS is not more than the cores",
}


class StepSpeeds:
    """The speeds that this section has found so far.

    Attributes:
        formats: values of the key ``precision`` to be measured, the usual one first.
        tflops, gigabytes: measured rates of products, by number format, and of copies.
        found: images/s of the settings of each network.
        too_large: the smallest batch that does not fit, by network, precision and mode.
        left_out: how many settings of each network were not measured, for lack of time.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting, self.device, self.kind = setting, setting.device, setting.device.type
        self.formats = network_formats(setting.device)
        self.tflops: dict[str, float] = {}
        self.gigabytes = 0.0
        self.found: dict[str, dict[Workload, float]] = {network: {} for network in NETWORKS}
        self.too_large: dict[tuple[str, str, str], int] = {}
        self.left_out = dict.fromkeys(NETWORKS, 0)
        self._name = torch.cuda.get_device_name(setting.device) if self.kind == "cuda" else ""

    # ---- the device

    def device_checks(self) -> Iterator[Check]:
        """Rates of copies and of matrix products in each format."""
        yield Check("copy", self._copy, 2)
        formats = dict.fromkeys([*(product_format(f, self.device) for f in self.formats), "fp32"])
        yield from (Check(f"matrix product {f}", partial(self._product, f), 2) for f in formats)

    def _product(self, number_format: str) -> Finding:
        rate = self.tflops[number_format] = product_tflops(self.device, number_format)
        known = known_rates(self._name, number_format)
        return self._beside_known(rate, known.tflops if known else None, "TFLOP/s", {"tflops": rate})

    def _copy(self) -> Finding:
        rate = self.gigabytes = copy_gigabytes(self.device)
        known = known_rates(self._name, "fp32")
        return self._beside_known(rate, known.gigabytes if known else None, "GB/s", {"bytes_s": rate * 1e9})

    def _beside_known(self, rate: float, known: float | None, unit: str, values: Mapping[str, Any]) -> Finding:
        figure = f"{rate:,.3g} {unit}"
        if known is None:
            return Finding(figure, values=values)
        figure += f", {rate / known:.0%} of the {known:,.0f} of this GPU"
        if rate >= LEAST_KNOWN * known:
            return Finding(figure, Verdict.GOOD, values=values)
        reason = f"{rate:,.3g} {unit} is less than {LEAST_KNOWN:.0%} of {known:,.0f}"
        return Finding(figure, Verdict.SLOW, reason, BUSY[self.kind], values)

    def rates(self, number_format: str) -> DeviceRates | None:
        """Rates of the table of known GPUs, else those measured; None if there are none."""
        known = known_rates(self._name, number_format)
        if known is None and number_format in self.tflops and self.gigabytes:
            return DeviceRates(self.tflops[number_format], self.gigabytes)
        return known

    def share(self, workload: Workload, images_s: float) -> float | None:
        """Share of the floor."""
        number_format = product_format(workload.precision, self.device)
        rates = self.rates(number_format)
        if rates is None:
            return None
        return images_s / floor_images(COSTS[workload.network], rates, number_format)

    # ---- steps of a network

    def network_checks(self, network: str, until: float) -> Iterator[Check]:
        """One check for each setting of the network that can end until then, and in any case for the first one."""
        for workload in self.workloads(network):
            keys = [(network, workload.precision, mode) for mode in {"eager", workload.mode}]
            seconds = self._seconds(workload)
            if any(self.too_large.get(key, workload.batch + 1) <= workload.batch for key in keys):
                continue
            if self.found[network] and time.monotonic() + seconds > until:
                self.left_out[network] += 1
            else:
                yield Check(str(workload), partial(self.step_finding, workload), seconds)

    def workloads(self, network: str) -> Iterator[Workload]:
        """The settings of a network at this level, the most important ones first."""
        batches, level = BATCHES[self.kind][network], self.setting.level
        if level is Level.QUICK:
            batches = batches[: QUICK[network]]
        usual = self.formats[0]
        if network != "resnet18 32px" and (best := self.best("resnet18 32px")):
            usual = best[0].precision
        others = [f for f in self.formats if f != usual]
        modes = ("eager", "graph") if self.kind == "cuda" else ("eager",)
        for place, batch in enumerate(batches):
            yield from (Workload(network, batch, usual, mode) for mode in modes)
            if self.kind == "cpu":  # where it is the first network that tells the best precision
                compared = network == "resnet18 32px"
            else:
                compared = level is Level.FULL or (level is Level.DEFAULT and place == 0)
            if compared:
                yield from (Workload(network, batch, other, modes[-1]) for other in others)
        if level is Level.FULL or (level is Level.DEFAULT and self.kind == "cuda" and network == "resnet18 32px"):
            yield Workload(network, batches[0], usual, "compiled graph" if self.kind == "cuda" else "compiled")
        if level is Level.FULL and self.kind == "cuda":
            yield Workload(network, batches[0], usual, "compiled")

    def _seconds(self, workload: Workload) -> float:
        """Estimate how long it takes to measure a setting, from the fastest one so far or the rate of products."""
        reached = [s * 2 * COSTS[w.network].gflop / 1e3 for each in self.found.values() for w, s in each.items()]
        rates = self.rates(product_format(workload.precision, self.device))
        products = rates.tflops if rates else (20 if self.kind == "cuda" else 0.1)
        step = 2 * COSTS[workload.network].gflop * workload.batch / 1e3 / max(reached, default=0.4 * products)
        start = (2 if self.kind == "cuda" else 1) + (45 if "compiled" in workload.mode else 0)
        return start + 1 + step * (1 + warm_up(workload.mode) if self.kind == "cuda" else 2)

    def step_finding(self, workload: Workload) -> Finding:
        """Measure whole steps of one setting."""
        try:
            images_s, memory = self._measure(workload)
        except Exception as error:
            if not out_of_memory(error) and "OutOfMemoryError" not in str(
                error
            ):  # the latter while a graph is recorded
                raise
            images_s, memory = 0.0, None
        finally:
            release_memory(self.device)
        if not images_s:
            return self._too_large(workload)
        self.found[workload.network][workload] = images_s
        share = self.share(workload, images_s)
        figure = f"{images_s:,.0f} images/s" if images_s >= 10 else f"{images_s:.2f} images/s"
        values: dict[str, Any] = {"images_s": images_s, "batch": workload.batch}
        values |= {} if memory is None else {"bytes": memory}
        if share is None:
            return Finding(figure, values=values)
        values["share_of_floor"] = share
        figure += f", {share:.0%} of the floor"
        if workload.batch < JUDGED[self.kind][workload.network]:
            return Finding(figure, values=values)
        return self._judged(figure, share, values, "")

    def _judged(self, figure: str, share: float, values: Mapping[str, Any], advice: str) -> Finding:
        bound = LEAST_SHARE[self.kind]
        if share >= bound:
            return Finding(figure, Verdict.GOOD, advice=advice, values=values)
        reason = f"{share:.1%} of the floor is less than {bound:.0%}"
        return Finding(figure, Verdict.SLOW, reason, "; ".join(filter(None, [BUSY[self.kind], advice])), values)

    def _measure(self, workload: Workload) -> tuple[float, int | None]:
        """Images/s of a setting, and on a GPU the most memory that it takes."""
        cuda = self.kind == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        step = workload.step(self.setting.folder, self.device)
        seconds = seconds_per_call(step, self.device, warm_up(workload.mode) if cuda else 1)
        return workload.batch / seconds, torch.cuda.max_memory_allocated(self.device) if cuda else None

    def _too_large(self, workload: Workload) -> Finding:
        """A batch that does not fit, and the largest of the measured ones that does."""
        network, batch = workload.network, workload.batch
        key = network, workload.precision, workload.mode
        self.too_large[key] = min(batch, self.too_large.get(key, batch))
        fits = self._largest(network, workload.precision)
        reason = f"the memory of the device is too small for a step of {batch} images"
        advice = f"set batch_size.chunk to {fits or batch // 2} or less for larger batches, or more devices"
        figure = f"does not fit; B={fits} does" if fits else "does not fit"
        return Finding(figure, Verdict.KNOWN, reason, advice, {"batch": batch, "largest_batch": fits})

    def _largest(self, network: str, precision: str) -> int:
        """The largest batch that was measured in a precision; 0: none."""
        return max((w.batch for w in self.found[network] if w.precision == precision), default=0)

    def best(self, network: str) -> tuple[Workload, float] | None:
        """The fastest setting of a network that was measured, and its images/s."""
        return max(self.found[network].items(), key=lambda item: item[1], default=None)

    def best_finding(self, network: str) -> Finding:
        """Summarise a network: its fastest setting."""
        best = self.best(network)
        if best is None:
            return Finding("", Verdict.SKIPPED, "no step of this network was measured")
        workload, images_s = best
        values = {
            "images_s": images_s,
            "gflop_per_image": 2 * COSTS[network].gflop,
            "batch": workload.batch,
            "precision": workload.precision,
            "mode": workload.mode,
        }
        share = self.share(workload, images_s)
        figure = f"at best {images_s:,.1f} images/s: B={workload.batch} {workload.precision} {workload.mode}"
        for (name, precision, mode), batch in self.too_large.items():
            fits = f"B={batch} does not fit in {precision} {mode}, B={self._largest(name, precision)} does"
            figure += f"; {fits}" if name == network else ""
        if self.left_out[network]:
            figure += f"; {self.left_out[network]} settings were not measured for lack of time"
        settings = f"batch_size.size={workload.batch} precision={workload.precision}"
        settings += f" compile={'true' if 'compiled' in workload.mode else 'false'}"
        settings += f" graph={'auto' if 'graph' in workload.mode else 'false'}" if self.kind == "cuda" else ""
        if share is None:
            return Finding(figure, advice=f"fastest with {settings}", values=values)
        return self._judged(f"{figure}; {share:.0%} of the floor", share, values, f"fastest with {settings}")

    # ---- parts of a step

    def operations_check(self) -> Check:
        """Count what one step gives to the device."""
        if self.kind == "cuda":
            return Check("kernels and waits per step", self._kernels, 8)
        return Check("operations per step", self._operations, 5)

    def _operations(self) -> Finding:
        step = Workload("resnet18 32px", 8, "fp32").step(self.setting.folder, self.device)
        step()
        with DispatchCounter() as counter:
            step()
        figure = f"{counter.count} operations of torch in a step of resnet18 32px B=8"
        return Finding(figure, values={"operations": counter.count})

    def _kernels(self) -> Finding:
        counts = {}
        for mode in ("eager", "graph"):
            step = Workload("resnet18 32px", 128, self.formats[0], mode).step(self.setting.folder, self.device)
            for _ in range(warm_up(mode)):
                step()
            counts[mode] = launches_and_waits(step, self.device)
        names = ("kernels", "launches", "waits")
        values = {f"{name}_{mode}": n for mode in counts for name, n in zip(names, counts[mode], strict=True)}
        each = (f"{mode}: {k:.0f} kernels, {n:.0f} launches, {w:.0f} waits" for mode, (k, n, w) in counts.items())
        figure = f"a step of resnet18 32px B=128, {'; '.join(each)}"
        waiting = [mode for mode, (_, _, waits) in counts.items() if waits >= 1]
        if waiting:
            reason = f"the host waits for the GPU in every step ({' and '.join(waiting)}), where 0 waits are needed"
            return Finding(figure, Verdict.SLOW, reason, "report this finding with check.md", values)
        return Finding(figure, Verdict.GOOD, values=values)

    def views_check(self, network: str) -> Check:
        """Measure how fast views are made, without a network."""
        size = network.rpartition(" ")[2]
        compiled = self.kind == "cuda" and self.setting.level is Level.FULL
        return Check(f"views {size}", partial(self.views_finding, network, compiled), 62 if compiled else 2)

    def views_finding(self, network: str, compiled: bool) -> Finding:
        """Both views of a batch; their share of the time of the network's fastest step."""
        batch = BATCHES[self.kind][network][0]
        parts = Parts(Workload(network, batch, "fp32").config())
        images = parts.dataset.pretrain().to(self.device)
        sample = Loader(images, parts.views, batch, self.device, 0, torch.float32).sample(batch)

        def make() -> object:
            return dataclasses.replace(sample).batch()  # without the parameters that the sample keeps

        images_s = batch / seconds_per_call(make, self.device)
        values: dict[str, Any] = {"images_s": images_s}
        figure = f"{images_s:,.0f} images/s, two views each"
        if compiled:
            for views in dict.fromkeys(parts.views):
                views.compile()
            values["images_s_compiled"] = batch / seconds_per_call(make, self.device)
            figure += f", {values['images_s_compiled']:,.0f} compiled"
        best = self.best(network)
        if best is None:
            return Finding(figure, values=values)
        share = values["share_of_step"] = best[1] / max(images_s, values.get("images_s_compiled", 0))
        figure += f": {share:.0%} of the time of a step"
        if share <= MOST_VIEWS:
            return Finding(figure, Verdict.GOOD, values=values)
        reason = f"views take {share:.0%} of the time of the fastest step, more than {MOST_VIEWS:.0%}"
        return Finding(figure, Verdict.SLOW, reason, f"set compile_views=true on a GPU; {BUSY[self.kind]}", values)
