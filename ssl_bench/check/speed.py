"""Images per second of training steps, and of the decoding of photos."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from timeit import Timer
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ssl_bench.check.answer import Answer, Setting, Verdict
from ssl_bench.config.compose import load
from ssl_bench.data.dataset import Dataset
from ssl_bench.data.photos import decode, encode
from ssl_bench.data.source import Images
from ssl_bench.hardware import available_cores, local_device, release_memory
from ssl_bench.launch.run import out_of_memory
from ssl_bench.training.engine import Training

# ResNet-18 with the CIFAR stem, ResNet-18 and ResNet-50 with the ImageNet stem: options of the configuration, pixels of
# a side of the stored images, images of a step on a GPU and on a CPU.
NETWORKS = {
    "resnet18 32px": (["dataset=cifar10"], 32, (512, 64)),
    "resnet18 96px": (["dataset=stl10"], 96, (256, 64)),
    "resnet50 224px": (["dataset=imagenet"], 256, (128, 16)),
}
SECONDS = 0.5  # that a call is repeated
PHOTOS, HEIGHT, WIDTH = 32, 375, 500


def section(setting: Setting) -> Iterator[Answer]:
    """Steps of three networks with their default settings, and photos."""
    for name in NETWORKS:
        yield step_answer(name, setting)
    yield photos()


def seconds_of_calls(call: Callable[[], object]) -> list[float]:
    """Measure a call for ``SECONDS`` or once, after one that does not count."""
    from torch.utils.benchmark import Timer  # which logs that a machine has no CUDA

    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return [*timer.blocked_autorange(min_run_time=SECONDS).times]


# ---- steps


class RandomDataset(Dataset):
    """A dataset without files.

    Args:
        side: side of the stored images in pixels; ``size`` is the side of the views.
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


def training(name: str, batch: int, device: torch.device, *overrides: str) -> Training:
    """A run of SimCLR with a network of ``NETWORKS`` on random images in memory."""
    options, side, _ = NETWORKS[name]
    others = ["tracking=off", "evaluate=[]", "evaluate.baselines=[]", "images_on=device", "batch_size.chunk=null"]
    config = load([*options, f"batch_size.size={batch}", "epochs=1000", *others, *overrides])
    return on_random_images(config, side, device)


def on_random_images(config: dict[str, Any], side: int, device: torch.device) -> Training:
    """A run with random images of ``side`` pixels in memory in place of its own."""
    copied_keys = ("size", "channels", "num_classes", "mean", "std")
    target = f"{RandomDataset.__module__}.{RandomDataset.__name__}"
    dataset = {"_target_": target, "side": side, "count": 4 * config["batch_size"]["size"]}
    dataset |= {key: value for key, value in config["dataset"].items() if key in copied_keys}
    # max_steps may be fewer than are timed.
    return Training(config | {"dataset": dataset, "images_on": "device", "max_steps": None}, device)


def seconds_of_a_step(config: dict[str, Any]) -> float:
    """The fastest of three steps of a run on ``threads`` cores, without its decoding and logging."""
    threads = torch.get_num_threads()
    torch.set_num_threads(config["threads"])
    try:
        step = on_random_images(config, config["dataset"]["size"], torch.device("cpu")).stepper()
        step(False)  # allocates
        return min(Timer("step(False)", globals={"step": step}, timer=time.perf_counter).repeat(3, 1))
    finally:
        torch.set_num_threads(threads)


def step_answer(name: str, setting: Setting) -> Answer:
    """Measure whole steps of a network, as ``ssl-bench train`` carries them out without being told otherwise."""
    device = local_device(0)
    cuda = device.type == "cuda"
    batch = NETWORKS[name][2][not cuda]
    try:
        run = training(name, batch, device)
        step = run.stepper()
        for _ in range(6 if cuda else 0):  # a GPU's libraries choose algorithms, and a graph is made
            step(False)
        rate = batch / median(seconds_of_calls(lambda: step(False)))
    except Exception as error:  # torch and its libraries have several of too little memory
        if not out_of_memory(error):
            raise
        reason = f"the memory of the device is too small for a step of {batch} images"
        return Answer(name, "does not fit", Verdict.MEASURED, reason, f"set batch_size.chunk to {batch // 2} or less")
    finally:
        release_memory(device)
    figure = f"{rate:,.{0 if rate >= 10 else 2}f} images/s (batch {batch}, {run.precision.name})"
    values = {"images_s": rate, "batch": batch, "precision": run.precision.name}
    return Answer(name, figure, values=values)


# ---- photos


def photos() -> Answer:
    """Photos that all cores decode per second, as the loader does: JPEGs in memory, about as large as photos."""
    data, cores = [constructed(seed) for seed in range(PHOTOS)], available_cores()
    with ThreadPoolExecutor(cores) as pool:
        rate = PHOTOS / median(seconds_of_calls(lambda: [*pool.map(decode, data)]))
    figure = f"{rate:,.0f} photos/s decoded on {cores} cores, {WIDTH} x {HEIGHT} pixels"
    return Answer("photos", figure, values={"images_s": rate, "cores": cores})


def constructed(seed: int) -> Tensor:
    """The bytes of a JPEG with noise at every scale."""
    generator = torch.Generator().manual_seed(seed)
    noise = (torch.randn(1, 3, n, n, generator=generator) * 0.25 / n**0.15 for n in (2, 4, 8, 16, 32, 64, 128, 256))
    scales = torch.stack([interpolate(of_scale, (HEIGHT, WIDTH), mode="bilinear")[0] for of_scale in noise])
    encoded = encode(((0.5 + scales.sum(0)).clamp(0, 1) * 255).to(torch.uint8), HEIGHT)
    return torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
