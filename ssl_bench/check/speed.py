"""Images per second of training steps, beside the least possible times, and of the decoding of photos.

    arithmetic floor               of a view = FLOP / rate
    arithmetic and memory floor    of a view = FLOP / rate + bytes / bandwidth

The rate is the best that this device has just reached in matrix products and convolutions, the bandwidth the best of
copies. The two add up because convolutions and batch norms run one after another. FLOP are 3 times those of the forward
pass. Bytes are those of fused kernels: a convolution reads and writes its tensors once in each of its three passes, a
batch norm reads its input for the statistics, reads and writes it to normalise, and reads four tensors and writes one
in the backward pass.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from timeit import Timer
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate

from ssl_bench.check.answer import Answer, Setting, Verdict
from ssl_bench.config.compose import load
from ssl_bench.data.dataset import Dataset
from ssl_bench.data.packed import encode
from ssl_bench.data.photos import decode
from ssl_bench.data.source import Images
from ssl_bench.hardware import available_cores, local_device, release_memory
from ssl_bench.launch.ranks import out_of_memory
from ssl_bench.training.engine import Training
from ssl_bench.training.precision import Precision


class Network(NamedTuple):
    """A network that is timed.

    Attributes:
        options: of the configuration.
        side: of the stored images.
        gflop, megabytes: of a view, forward and backward; the bytes in a format of 16 bits.
        largest: numbers of a view in the largest tensor.
        batches: images of a step on a GPU, and on a CPU in a quick check and in a whole one.
    """

    options: list[str]
    side: int
    gflop: float
    megabytes: float
    largest: int
    batches: tuple[int, int, int]


# ResNet-18 with the CIFAR stem, ResNet-18 and ResNet-50 with the ImageNet stem.
NETWORKS = {
    "resnet18 32px": Network(["dataset=cifar10"], 32, 3.33, 17.5, 64 * 32**2, (512, 16, 64)),
    "resnet18 96px": Network(["dataset=stl10"], 96, 1.96, 12.4, 64 * 48**2, (256, 16, 64)),
    "resnet50 224px": Network(["dataset=imagenet"], 256, 24.30, 308, 64 * 112**2, (128, 2, 16)),
}
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ARITHMETIC, WITH_MEMORY = "arithmetic floor", "arithmetic and memory floor"
# Least share of the second one. Ordinary loops reach 56% with ResNet-18 on an A100. On a CPU it is less certain: the
# convolutions of its libraries reach between a fifth and all of the rate of a matrix product, and busy cores slow both.
LEAST_SHARE = {"cuda": 0.25, "cpu": 0.1}
SECONDS = 0.5  # that a call is repeated
PHOTOS, HEIGHT, WIDTH = 32, 375, 500


def section(setting: Setting) -> Iterator[Answer]:
    """Rates of copies and of arithmetic, steps of three networks with their default settings, and photos."""
    device = local_device(0)
    cuda = device.type == "cuda"
    precision = Precision.of("auto", cuda)
    gigabytes = copy_gigabytes(device)
    yield Answer("copy", f"{gigabytes:,.3g} GB/s", values={"bytes_s": gigabytes * 1e9})
    tflops = {name: best_tflops(device, name) for name in dict.fromkeys(["fp32", precision.name])}
    for name, rate in tflops.items():
        yield Answer(f"arithmetic {name}", f"{rate:,.3g} TFLOP/s", values={"tflops": rate})
    images_s = 0.0
    for name, network in NETWORKS.items():
        batch = network.batches[0 if cuda else 2 - setting.quick]
        least = floors(network, batch, precision, device, tflops[precision.name], gigabytes)
        answer = step_answer(name, batch, least, setting)
        images_s = answer.values.get("images_s", 0.0)  # of the last network, whose images are photos
        yield answer
    yield photos(images_s if cuda else 0.0, setting.devices)


def floors(
    network: Network, batch: int, precision: Precision, device: torch.device, tflops: float, gigabytes: float
) -> dict[str, float]:
    """The least seconds of a step of ``batch`` images, of two views each, at measured rates.

    Args:
        gigabytes: of copies that no cache holds. Copies as large as the largest tensor count if they are faster.
    """
    views, size = 2 * batch, 4 if precision.autocast is None else 2  # bytes of a number
    gigabytes = max(gigabytes, copy_gigabytes(device, views * network.largest * size))
    arithmetic = views * network.gflop / 1e3 / tflops
    memory = views * network.megabytes * size / 2 / 1e3 / gigabytes
    return {ARITHMETIC: arithmetic, WITH_MEMORY: arithmetic + memory}


def seconds_of_calls(call: Callable[[], object]) -> list[float]:
    """Measure a call for ``SECONDS`` or once, after one that does not count."""
    from torch.utils.benchmark import Timer  # which logs that a machine has no CUDA

    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return [*timer.blocked_autorange(min_run_time=SECONDS).times]


def copy_gigabytes(device: torch.device, count: int | None = None) -> float:
    """Measure a copy of ``count`` bytes, or of so many that no cache holds them: 10^9 bytes a second, both ways."""
    count = count or (2**30 if device.type == "cuda" else 2**27)
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * count / min(seconds_of_calls(lambda: target.copy_(source))) / 1e9


def best_tflops(device: torch.device, number_format: str) -> float:
    """Measure square matrix products and a ResNet's convolutions, as a run computes them: the best 10^12 FLOP/s."""

    def numbers(*shape: int) -> Tensor:
        x = torch.randn(shape, device=device).to(FORMATS[number_format])
        return x if x.ndim == 2 else x.contiguous(memory_format=torch.channels_last)

    sides, images = ((4096, 8192), 1024) if device.type == "cuda" else ((1024, 2048), 32)
    rates = []
    for side in sides:
        product = partial(torch.mm, numbers(side, side), numbers(side, side))
        rates.append(2 * side**3 / min(seconds_of_calls(product)))
    for channels, side in ((64, 32), (128, 16), (256, 8)):
        x, weights = numbers(images, channels, side, side), numbers(channels, channels, 3, 3)
        flop = 2 * 3 * 3 * images * (side * channels) ** 2
        rates.append(flop / min(seconds_of_calls(partial(conv2d, x, weights, padding=1))))
    return max(rates) / 1e12


# ---- steps


class RandomDataset(Dataset):
    """A dataset without files.

    Args:
        side: of the stored images; ``size`` is that of the views.
        count: number of images.
    """

    def __init__(self, side: int, count: int, **common: Any) -> None:
        super().__init__(**common)
        self.side, self.count = side, count

    def check(self) -> int:
        return self.count

    def pretrain(self) -> Images:
        shape = self.count, self.side, self.side, self.channels
        pixels = torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return Images([pixels.permute(0, 3, 1, 2)], torch.zeros(self.count, dtype=torch.int64))


def training(name: str, batch: int, folder: Path, device: torch.device, *overrides: str) -> Training:
    """A run of SimCLR with a network of ``NETWORKS`` on random images in memory; nothing is written to ``folder``."""
    network = NETWORKS[name]
    others = ["tracking=off", "evaluate=[]", "evaluate.baselines=[]", "images_on=device", "batch_size.chunk=null"]
    config = load([*network.options, f"batch_size.size={batch}", "epochs=1000", *others, *overrides])
    return on_random_images(config, network.side, folder, device)


def on_random_images(config: dict[str, Any], side: int, folder: Path, device: torch.device) -> Training:
    """A run with random images of ``side`` pixels in memory in place of its own."""
    kept = ("size", "channels", "num_classes", "mean", "std")
    target = f"{RandomDataset.__module__}.{RandomDataset.__name__}"
    dataset = {"_target_": target, "side": side, "count": 4 * config["batch_size"]["size"]}
    dataset |= {key: value for key, value in config["dataset"].items() if key in kept}
    changed = {"dataset": dataset, "images_on": "device", "max_steps": None}  # which may be fewer than are timed
    run = Training(config | changed, "check", folder, device)
    run.state.method.train()
    return run


def seconds_of_a_step(config: dict[str, Any], folder: Path) -> float:
    """The fastest of three steps of a run on the cores of this machine, without its decoding and logging."""
    threads = torch.get_num_threads()
    torch.set_num_threads(config["threads"] or available_cores())
    try:
        step = on_random_images(config, config["dataset"]["size"], folder, torch.device("cpu")).stepper()
        step(False)  # allocates
        return min(Timer("step(False)", globals={"step": step}, timer=time.perf_counter).repeat(3, 1))
    finally:
        torch.set_num_threads(threads)


def step_answer(name: str, batch: int, least: Mapping[str, float], setting: Setting) -> Answer:
    """Measure whole steps of a network, as ``ssl-bench train`` carries them out without being told otherwise.

    Args:
        least: seconds of a step, by :func:`floors`.
    """
    device = setting.device
    overrides = ["compile_views=false"] if setting.quick else []  # compiling takes a minute
    try:
        run = training(name, batch, setting.folder, device, *overrides)
        step = run.stepper()
        for _ in range(6 if device.type == "cuda" else 0):  # a GPU's libraries choose algorithms, and a graph is made
            step(False)
        seconds = median(seconds_of_calls(lambda: step(False)))
    except Exception as error:  # torch and its libraries have several of too little memory
        if not out_of_memory(error):
            raise
        reason = f"the memory of the device is too small for a step of {batch} images"
        return Answer(name, "does not fit", Verdict.KNOWN, reason, f"set batch_size.chunk to {batch // 2} or less")
    finally:
        release_memory(device)
    images_s, shares = batch / seconds, {floor: of_floor / seconds for floor, of_floor in least.items()}
    values: dict[str, Any] = {"images_s": images_s, "gflop_per_image": 2 * NETWORKS[name].gflop}
    values |= {f"share_of_{floor.replace(' ', '_')}": share for floor, share in shares.items()}
    values |= {"batch": batch, "precision": run.precision.name}
    figure = f"{images_s:,.{0 if images_s >= 10 else 2}f} images/s, {in_words(shares)}"
    figure += f" (batch {batch}, {run.precision.name})"
    if shares[WITH_MEMORY] >= LEAST_SHARE[device.type]:
        return Answer(name, figure, Verdict.GOOD, values=values)
    reason = f"{shares[WITH_MEMORY]:.1%} of the {WITH_MEMORY} is less than {LEAST_SHARE[device.type]:.0%}"
    return Answer(name, figure, Verdict.SLOW, reason, "see what else uses the device (nvidia-smi, top)", values)


def in_words(shares: Mapping[str, float]) -> str:
    """How much of each floor's speed a step has; more than all of it says nothing but that the floor is wrong."""
    return ", ".join(
        f"{share:.0%} of the {floor}" if share <= 1 else f"faster than the {floor}: its rates were measured too low"
        for floor, share in shares.items()
    )


# ---- photos


def photos(images_s: float = 0.0, gpus: int = 1) -> Answer:
    """Photos that all cores decode per second, as the loader does: JPEGs in memory, about as large as photos.

    Args:
        images_s: of a training step on a GPU, for the cores that so many ``gpus`` need; 0: there is no GPU.
    """
    data = [constructed(seed) for seed in range(PHOTOS)]
    cores = available_cores()
    with ThreadPoolExecutor(cores) as pool:
        rate = PHOTOS / median(seconds_of_calls(lambda: [*pool.map(decode, data)]))
    needed, what = cores_needed(rate / cores, images_s, gpus)
    figure = f"{rate:,.0f} photos/s decoded on {cores} cores, {WIDTH} x {HEIGHT} pixels; {what}"
    return Answer("photos", figure, values={"images_s": rate, "cores": cores, "cores_needed": needed})


def cores_needed(rate: float, images_s: float, gpus: int) -> tuple[int, str]:
    """Cores that decode as fast as GPUs train, and that in words; without a GPU those for 1,000 images/s.

    Args:
        rate: photos per second and core. An image is decoded once for all of its views.
        images_s: of a GPU, or 0.
    """
    wanted = gpus * images_s if images_s else 1000.0
    needed = math.ceil(wanted / rate)
    if not images_s:
        return needed, f"a GPU that takes 1,000/s needs {needed} cores"
    return needed, f"for ResNet-50 at {images_s:,.0f}/s on {gpus} GPU{'s' * (gpus > 1)} {needed} cores are needed"


def constructed(seed: int) -> Tensor:
    """The bytes of a JPEG with noise at every scale."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.full((1, 3, HEIGHT, WIDTH), 0.5)
    for cells in (2, 4, 8, 16, 32, 64, 128, 256):
        noise = torch.randn(1, 3, cells, cells, generator=generator) * 0.25 / cells**0.15
        image += interpolate(noise, (HEIGHT, WIDTH), mode="bilinear")
    encoded = encode((image[0].clamp(0, 1) * 255).to(torch.uint8), HEIGHT)[0]
    return torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
