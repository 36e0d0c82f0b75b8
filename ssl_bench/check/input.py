"""How fast photos are read, decoded and copied to the device, and whether that feeds the measured training.

The section decodes up to some hundred JPEGs: photos of a folder ``<name>/train/<class>/`` under ``paths.data`` or,
where there is none, constructed ones of 500 x 375 pixels. They are copied first, so that the system has them in its
memory and decoding does not wait for a disk. The speed of the files of ``paths.data`` is measured apart.
"""

import itertools
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ssl_bench.check.finding import Check, Finding, Level, Setting, Verdict
from ssl_bench.check.reading import (
    ReadRate,
    all_ranks,
    constructed,
    difference,
    find_photos,
    largest_file,
    read_rate,
    read_through,
    some_jpegs,
)
from ssl_bench.check.timing import seconds_per_call
from ssl_bench.data.folder import Folder
from ssl_bench.data.packed import Packed, pack
from ssl_bench.data.photos import Photos, decode
from ssl_bench.hardware import available_cores

SECONDS = {Level.QUICK: 1.0, Level.DEFAULT: 4.0, Level.FULL: 6.0}  # of each measured rate
COUNT = {Level.QUICK: 64, Level.DEFAULT: 256, Level.FULL: 512}  # photos from paths.data
CONSTRUCTED = 32  # photos that are made where there are none
SIDE = 256  # short side of packed photos, the default of dataset.resize
TRAINING = "resnet50 224px"  # begins the names of the measurements of the section "speed" that train on photos
COMPARED = 16  # photos whose pixels are compared with Pillow's
MEAN_BOUND, BLOCK_BOUND = 1.0, 8.0  # levels of 0 .. 255: mean difference of a photo, and of its worst 8 x 8 pixels
USED = 0.4  # least share of (cores x rate of one core); two threads of a core share it, so that 1 is out of reach
GAIN = 0.8  # least rate of packed photos over folders; photos that are small already gain nothing
MEGA = 10**6
LARGE = {Level.QUICK: 64 * MEGA, Level.DEFAULT: 512 * MEGA, Level.FULL: 2048 * MEGA}  # most bytes of a large file
FASTER = (
    "train on packed photos (`ssl-bench prepare dataset=imagenet dataset.packed=true`, then dataset.packed=true), with "
    "a smaller short side (dataset.resize), on a machine with more cores per GPU, or on arrays in the GPU's memory "
    "(dataset=imagenet64 images_on=device)"
)
MOVE = "move the data to a local disk (paths.data), or pack photos into one file (dataset.packed=true)"


def section(setting: Setting) -> Iterator[Check]:
    """Yield the checks of the input, the decisive ones first."""
    measured = InputChecks(setting)
    seconds = measured.seconds
    yield Check("decoder", measured.decoder, 4)
    yield Check("decode, one core", measured.one_core, seconds)
    yield Check("decode, all cores", measured.all_cores, seconds + (20 if measured.ranks > 1 else 1))
    yield Check("packed against folders", measured.packed, 2 * seconds + 2)
    yield Check("feeding the training", measured.feeding, 0)
    yield Check("small files", measured.small_files, seconds)
    yield Check("large file", measured.large_file, seconds)
    yield Check("copies to the device", measured.copies, 2 if setting.device.type == "cuda" else 0)


class InputChecks:
    """The checks of this section, with what later ones use of earlier ones."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.seconds = setting, SECONDS[setting.level]
        self.gpus = setting.devices if setting.device.type == "cuda" else 1  # devices that the machine trains on
        self.ranks = 1 if setting.level is Level.QUICK else self.gpus  # processes take long to start
        self.one_core_images_s: float | None = None
        self.folders: ReadRate | None = None  # of all cores
        self.packed_gain = 1.0  # rate of packed photos over that of the same photos in folders

    # ---- photos

    @cached_property
    def found(self) -> Folder | None:
        """Photos of some classes of the first folder of photos under ``paths.data``."""
        return find_photos(self.setting.data)

    @cached_property
    def _jpegs(self) -> list[bytes]:
        return some_jpegs(self.found, COUNT[self.setting.level], 2 * self.seconds) if self.found else []

    @cached_property
    def photos(self) -> Folder:
        """Photos that are in the system's memory."""
        folder = self.setting.folder / "photos"
        content = self._jpegs or [constructed(seed) for seed in range(CONSTRUCTED)]
        for number, data in enumerate(content):
            path = folder / "all" / f"{number:04}.jpeg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return Folder(folder, ["all"], None)

    @cached_property
    def shapes(self) -> Tensor:
        """Height and width of up to 32 photos, [n, 2]."""
        decoded = self.photos.take(torch.arange(min(32, len(self.photos))))
        return torch.tensor([image.shape[1:] for image in decoded], dtype=torch.float64)

    @cached_property
    def photo_bytes(self) -> float:
        """Mean size of a photo's file."""
        return sum(self.photos.encoded(i).numel() for i in range(len(self.photos))) / len(self.photos)

    @property
    def kind(self) -> str:
        """The photos in words."""
        height, width = self.shapes.median(0).values.int().tolist()
        origin = "constructed photos"
        if self.found and self._jpegs:
            origin = f"photos of {self.found.folder.parent.relative_to(self.setting.data)}"
        return f"{len(self.photos)} {origin}, {width} x {height} pixels, {self.photo_bytes / 1000:.0f} kB"

    # ---- decoding

    def decoder(self) -> Finding:
        """Compare photos as training reads them, decoded by threads, with Pillow's."""
        ids = torch.arange(min(COMPARED, len(self.photos)))
        worst_mean = worst_block = 0.0
        for i, image in zip(ids.tolist(), self.photos.take(ids), strict=True):
            mean, block = difference(image, self.photos.encoded(i))
            worst_mean, worst_block = max(worst_mean, mean), max(worst_block, block)
        values = {"photos": len(ids), "mean_levels": worst_mean, "block_levels": worst_block}
        figure = f"{len(ids)} photos differ from Pillow's by {worst_mean:.2g} levels, 8 x 8 pixels by {worst_block:.2g}"
        if worst_mean <= MEAN_BOUND and worst_block <= BLOCK_BOUND:
            return Finding(f"{figure} at most; {self.kind}", Verdict.GOOD, values=values)
        return Finding(
            figure,
            Verdict.WRONG,
            f"the decoder returns other pixels than Pillow: {worst_mean:.2g} levels in the mean of a photo (bound "
            f"{MEAN_BOUND:g}), {worst_block:.2g} in its worst 8 x 8 pixels (bound {BLOCK_BOUND:g})",
            "install torchvision and Pillow again, in versions that belong to this torch",
            values,
        )

    def one_core(self) -> Finding:
        """Decode photos in this thread and count its CPU time only."""
        data = [self.photos.encoded(i) for i in range(len(self.photos))]
        pixels = sum(decode(each)[0].numel() for each in data) / len(data)
        start, count = time.thread_time(), 0
        for each in itertools.cycle(data):
            decode(each)
            count += 1
            if time.thread_time() - start >= self.seconds / 2:
                break
        self.one_core_images_s = rate = count / (time.thread_time() - start)
        values = {"images_s": rate, "megapixels_s": rate * pixels / MEGA, "photo_bytes": self.photo_bytes}
        return Finding(f"{rate:,.0f} images/s, {rate * pixels / MEGA:.0f} megapixels/s", values=values)

    def all_cores(self) -> Finding:
        """Read batches as training does: a process for each GPU, and in a quick check one for all."""
        setting, cores = self.setting, available_cores()
        self.folders = rate = all_ranks(self.photos, setting.device, self.ranks, self.seconds)
        busy = rate.images_s * rate.cpu_seconds
        values = {"images_s": rate.images_s, "cores": cores, "busy_cores": busy, "processes": self.ranks}
        figure = f"{rate.images_s:,.0f} images/s on {cores} cores, in the time of {busy:.1f} of them"
        if self.one_core_images_s is None:
            return Finding(figure, values=values)
        share = rate.images_s / (cores * self.one_core_images_s)
        values["share_of_cores"] = share
        if share >= USED:
            return Finding(f"{figure}, {share:.0%} of {cores} x one core", Verdict.GOOD, values=values)
        return Finding(
            figure,
            Verdict.SLOW,
            f"{rate.images_s:,.0f} images/s are {share:.0%} of {cores} times the {self.one_core_images_s:,.0f} of one "
            f"core (bound {USED:.0%}): the threads had the time of {busy:.1f} of {cores} cores",
            "look for other processes, and for a limit of the container that is below its number of cores; set "
            "dataset.workers to the cores that are free, divided by the GPUs",
            values,
        )

    def packed(self) -> Finding:
        """Compare photos in one packed file, with a short side of ``SIDE``, with the same photos in folders."""
        path = self.setting.folder / "packed" / "train"
        pack(self.photos, path, SIDE, lambda chunks: chunks)
        packed = Packed(path, None)
        contenders: dict[str, Photos] = {"folders": self.photos, "packed": packed}
        found: dict[str, list[ReadRate]] = {name: [] for name in contenders}
        for _, name in itertools.product(range(2), contenders):  # in turns, so that a busy machine slows both
            found[name].append(read_rate(contenders[name], self.setting.device, self.seconds / 2))
        images_s = {name: max(rate.images_s for rate in rates) for name, rates in found.items()}
        of_core = {name: 1 / min(rate.cpu_seconds for rate in rates) for name, rates in found.items()}
        size = int(packed.offsets[-1]) / len(packed)
        # Judged by the time of the cores, which other processes change less than the clock.
        self.packed_gain = gain = of_core["packed"] / of_core["folders"]
        values: dict[str, Any] = {f"{name}_images_s": rate for name, rate in images_s.items()}
        values |= {f"{name}_images_s_per_core": rate for name, rate in of_core.items()}
        values |= {"gain": gain, "packed_photo_bytes": size}
        figure = f"{images_s['packed']:,.0f} images/s packed, {images_s['folders']:,.0f} from folders; "
        figure += f"{of_core['packed']:,.0f} and {of_core['folders']:,.0f} per core: {gain:.2f} times"
        if gain >= GAIN:
            return Finding(figure, Verdict.GOOD, values=values)
        reason = f"a core reads packed photos at {gain:.2f} times the rate of the same photos in folders (bound {GAIN})"
        return Finding(figure, Verdict.SLOW, reason, "train on the folders: dataset.packed=false", values)

    # ---- what training needs

    @cached_property
    def trained_images_s(self) -> float | None:
        """Measured rate of training on photos on one device, the fastest one."""
        speed = self.setting.earlier.get("speed", {})
        rates = [values.get("images_s") for name, values in speed.items() if name.startswith(TRAINING)]
        return max((float(rate) for rate in rates if rate), default=None)

    @property
    def needed_images_s(self) -> float | None:
        """Images that the training on all devices reads per second."""
        if self.trained_images_s is None:
            return None
        return self.trained_images_s * self.gpus

    def feeding(self) -> Finding:
        """Compare the decoding of all cores with the measured rate of training."""
        if self.folders is None:
            return Finding("", Verdict.SKIPPED, "the rate of all cores was not measured")
        rate, needed, cores = self.folders.images_s, self.needed_images_s, available_cores()
        if needed is None:
            figure = f"feeds trainings of up to {rate:,.0f} images/s; no training on photos was measured to compare"
            return Finding(figure, values={"images_s": rate})
        for_training = needed * self.folders.cpu_seconds
        values = {"images_s": rate, "needed_images_s": needed, "needed_cores": for_training, "cores": cores}
        figure = f"{needed:,.0f} images/s of {TRAINING} need {for_training:.1f} of {cores} cores"
        if rate >= needed:
            return Finding(f"{figure}, which feed {rate:,.0f}", Verdict.GOOD, values=values)
        enough = self.packed_gain * rate >= needed
        return Finding(
            figure,
            Verdict.SLOW,
            f"the cores decode {rate:,.0f} images/s and the training takes {needed:,.0f}: it waits "
            f"{1 - rate / needed:.0%} of the time; packed photos come at {self.packed_gain * rate:,.0f} images/s",
            f"{'packed photos are enough: ' if enough else ''}{FASTER}",
            values,
        )

    def _wanted_images_s(self) -> float | None:
        """Images per second that a disk must give: what is decoded, or less if training takes less."""
        rates = [self.folders.images_s] if self.folders else []
        rates += [self.needed_images_s] if self.needed_images_s else []
        return min(rates, default=None)

    # ---- files and copies

    def small_files(self) -> Finding:
        """Read files of photos in a random order, in as many threads as decode."""
        found = self.found
        if found is None:
            return Finding("", Verdict.SKIPPED, f"no folder <name>/train/<class>/ with photos in {self.setting.data}")
        order, sizes, workers = random.sample(range(len(found)), len(found)), list[int](), found.workers
        start = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            for first in range(0, len(order), 4 * workers):
                sizes += pool.map(lambda i: found.encoded(i).numel(), order[first : first + 4 * workers])
                if time.perf_counter() - start >= self.seconds:
                    break
        spent = time.perf_counter() - start
        speed, rate = sum(sizes) / spent / MEGA, len(sizes) / spent
        what = f"{len(sizes)} photos of {found.folder}, {workers} at a time"
        values = {"megabytes_s": speed, "files_s": rate, "files": len(sizes)}
        figure = f"{speed:,.0f} MB/s, {rate:,.0f} files/s: {what} (partly from memory, if they were read before)"
        return self._disk(figure, rate, "files/s", f"{speed:,.1f} MB/s", what, values)

    def large_file(self) -> Finding:
        """Read a part of the largest file from one end to the other."""
        path = largest_file(self.setting.data)
        if path is None:
            return Finding("", Verdict.SKIPPED, f"no file of 1 MB or more in {self.setting.data}")
        speed, count = read_through(path, LARGE[self.setting.level], self.seconds)
        what = f"{count / MEGA:,.0f} MB of {path}"
        values = {"megabytes_s": speed / MEGA, "bytes": count}
        figure = f"{speed / MEGA:,.0f} MB/s: {what} (partly from memory, if it was read before)"
        return self._disk(figure, speed / self.photo_bytes, "photos/s", f"{speed / MEGA:,.1f} MB/s", what, values)

    def _disk(self, figure: str, rate: float, unit: str, speed: str, what: str, values: dict[str, float]) -> Finding:
        """Judge the speed of a disk in photos per second."""
        wanted = self._wanted_images_s()
        if wanted is None:
            return Finding(figure, values=values)
        values["wanted_images_s"] = wanted
        if rate >= wanted:
            return Finding(figure, Verdict.GOOD, values=values)
        reason = f"{what} came at {speed}, {rate:,.0f} {unit}; decoding and training take {wanted:,.0f} photos/s"
        return Finding(figure, Verdict.SLOW, reason, MOVE, values)

    def copies(self) -> Finding:
        """Measure copies from the host's memory to the GPU."""
        device = self.setting.device
        if device.type != "cuda":
            return Finding("", Verdict.SKIPPED, "there is no GPU: images stay in the memory of the host")
        host = torch.ones(2**28, dtype=torch.uint8)
        sources = {"pinned": host.pin_memory(), "unpinned": host}
        target = torch.empty_like(host, device=device)
        values = {}
        for name, source in sources.items():
            seconds = seconds_per_call(partial(target.copy_, source, non_blocking=True), device)
            values[f"{name}_gigabytes_s"] = len(host) / seconds / 1e9
        return self.judged_copies(values)

    def judged_copies(self, values: dict[str, float]) -> Finding:
        """Compare the measured rates of copies with the photos that training takes on one GPU."""
        pinned = values["pinned_gigabytes_s"]
        figure = f"{pinned:.1f} GB/s pinned, {values['unpinned_gigabytes_s']:.1f} GB/s unpinned"
        if self.trained_images_s is None:
            return Finding(figure, values=values)
        decoded_bytes = 3 * float(self.shapes.prod(1).mean())
        values["needed_gigabytes_s"] = needed = self.trained_images_s * decoded_bytes / 1e9
        if pinned >= 2 * needed:
            return Finding(f"{figure}; training needs {needed:.1f}", Verdict.GOOD, values=values)
        reason = f"copies reach {pinned:.1f} GB/s, and the photos of a training are {needed:.1f} GB/s (bound: twice)"
        advice = "see with `nvidia-smi topo -m` and `lspci` whether the GPU has all its PCIe lanes; pack smaller photos"
        return Finding(figure, Verdict.SLOW, reason, advice, values)
