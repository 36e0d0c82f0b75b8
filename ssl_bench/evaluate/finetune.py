"""Fine-tuning: the whole network is trained on the labels, with a linear classifier on its backbone.

The recipe is that of SimCLR (Chen et al., 2020, arXiv:2002.05709), appendix B.5; conf/evaluate/finetune.yaml tells what
is not from there. The network of the target is not changed.

Shapes: N labelled images, B images of a step, n of this rank, D features, C classes.
"""

import contextlib
import copy
import logging
import time
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.config.ranges import Count, Positive, TwoOrMore
from ssl_bench.data.batch import Reader
from ssl_bench.distributed import all_sum, alone, average_gradients, rank, world
from ssl_bench.errors import ConfigError, InvalidValue, require
from ssl_bench.evaluate.target import Target, make_views
from ssl_bench.evaluate.trained import OnImages
from ssl_bench.networks import unpickler
from ssl_bench.networks.encoder import full_precision
from ssl_bench.networks.norm import group_statistics
from ssl_bench.seeding import stream
from ssl_bench.signals import Interrupt, stop_if_asked

log = logging.getLogger("ssl_bench")

SAVE_EVERY = 120.0  # seconds


class Classifier(nn.Module):
    """A trainable copy of a network's backbone with a linear classifier, whose weights start at zero.

    Every BN has the statistics of the images of all ranks, whatever groups the network was trained with.

    Raises:
        ConfigError: the network has a BN of another class, which cannot have them, and there are several ranks.
    """

    def __init__(self, network: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.network = copy.deepcopy(getattr(network, "backbone", network)).requires_grad_()
        self.linear = nn.Linear(width, classes).to(next(self.network.parameters()))
        nn.init.zeros_(self.linear.weight), nn.init.zeros_(self.linear.bias)
        try:
            group_statistics(self.network, 1)
        except InvalidValue as refusal:
            remedy = "`ssl-bench evaluate RUN evaluate=finetune` trains it on one GPU"
            raise ConfigError(f"a BN of this network cannot be that of {world()} GPUs: {remedy}") from refusal

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """[n, channels, H, W] -> ``logits`` [n, C]."""
        features = self.network(x)
        return {"logits": self.linear(features["backbone"] if isinstance(features, dict) else features)}


class FineTune(OnImages, kw_only=True):
    """The network of the last step, trained on random crops and flips: see :class:`ssl_bench.evaluate.trained.Trained`.

    SGD with Nesterov's momentum, a rate that falls to 0 along a cosine, batch statistics of the whole batch. Batches go
    over the ends of epochs, so that all are full; of fewer images than ``batch_size`` each has all of them. Any number
    of ranks trains the same network; if it does not divide the batch, every rank computes the whole batch. Layers with
    random numbers, such as dropout, draw others on another number of ranks.

    The state is saved every two minutes and when the run is stopped; a run that is started again resumes from it.

    Args:
        epochs: passes over the images with labels; None: 60 if these are less than 5% of all images, else 30.
        least_steps: number of steps if the epochs have fewer, for a batch of 256 images; for another size it is
            multiplied by 256 / batch_size.
        batch_size: images of a step, of all ranks together.
        lr: rate for a batch of 256 images; the rate is lr * batch_size / 256.
        momentum, weight_decay: of SGD; the decay is of all weights.
    """

    interpolation: str = "bicubic_tf"
    grayscale: float = field(default=0.0, init=False)
    epochs: Count | None = None  # type: ignore[assignment]
    batch_size: TwoOrMore = 256
    least_steps: Annotated[int, Meta(ge=0)] = 300
    lr: Positive = 0.05
    schedule: Literal["cosine"] = field(default="cosine", init=False)
    nesterov: bool = field(default=True, init=False)
    drop_last: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.epochs, self.nesterov = 30 if self.epochs is None else self.epochs, self.momentum > 0
        super().__post_init__()
        self.least_steps = self.least_steps * 256 // self.batch_size

    def check(self, target: Target) -> None:
        super().check(target)
        if len(target.train) < 2:
            raise ConfigError("one image has a label, and batch statistics need two: set evaluate.labels to more")

    def logits(self, target: Target) -> dict[str, Tensor]:
        saves, batch = rank() == 0, min(self.batch_size, len(target.train))
        gpus = [target.device] if target.device.type == "cuda" else []
        with torch.random.fork_rng(gpus), alone() if batch % world() else contextlib.nullcontext():
            tuned = copy.copy(target)
            tuned.network = self.fitted(target, batch, saves)
            return {"": tuned.outputs(target.test, torch.arange(len(target.test)))["logits"]}

    def fitted(self, target: Target, batch: int, saves: bool = False) -> Classifier:
        """Train the network, from the start or from the saved state, and return it after the last step.

        Args:
            batch: B, at most N.
            saves: whether this process saves the state.
        """
        assert target.network is not None
        device, count, mixed = target.device, len(target.train), target.autocast
        width = target.outputs(target.test, torch.arange(1))["backbone"].shape[1]
        network = Classifier(target.network, width, target.num_classes).train()
        optimizer = self.optimizer_of([*network.parameters()])
        scaler = torch.amp.GradScaler(device.type, enabled=mixed is torch.float16)
        parts: dict[str, Any] = {"network": network, "optimizer": optimizer, "scaler": scaler}
        first = _resumed(target.state_file, parts, device)
        last = max((self.epochs or 0) * count // batch, self.least_steps)
        generators = (_generator("finetune", target.seed, epoch) for epoch in range((last - 1) * batch // count + 2))
        order = torch.cat([torch.randperm(count, generator=generator) for generator in generators])
        shares = [images[rank() :: world()] for images in order.split(batch)[first:last]]
        saved_at = began = time.monotonic()
        for step, (_, images, labels) in enumerate(Reader(target.train, device).batches(shares), first):
            torch.manual_seed(stream("finetune layers", target.seed, step, rank()))
            uniform = self.views.uniform(batch, _generator("finetune views", target.seed, step))[rank() :: world()]
            views = make_views(self.views, uniform, images, network.linear.weight.dtype)
            for group in optimizer.param_groups:
                group["lr"] = self.rate * self.share_of_rate(0, step, last)
            with torch.autocast(device.type, mixed, enabled=mixed is not None):
                logits = network(views)["logits"]
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(full_precision(logits), labels.to(device))).backward()
            average_gradients(network)
            scaler.step(optimizer)
            scaler.update()
            stopped = Interrupt.listening is not None and Interrupt.listening.number
            if saves and target.state_file and (stopped or time.monotonic() - saved_at > SAVE_EVERY):
                minutes = (time.monotonic() - began) / (step + 1 - first) * (last - step - 1) / 60
                said = "fine-tuning: step %d of %d, about %.0f minutes to go; epochs and least_steps set the steps"
                log.info(said, step + 1, last, minutes)
                _save(target.state_file, step + 1, parts)
                saved_at = time.monotonic()
            stop_if_asked()
        finite = all(bool(value.isfinite().all()) for value in network.state_dict().values())
        require(finite, "lr", self.lr, "a lower one: the network's weights are not finite")
        return network


def _save(file: Path, step: int, parts: Mapping[str, Any]) -> None:
    """Write the state after a number of steps."""
    files.make_folder(file.parent)
    states = {name: part.state_dict() for name, part in parts.items()}
    files.write_bytes(file, unpickler.packed({"step": step, **states}))


def _resumed(file: Path | None, parts: Mapping[str, Any], device: torch.device) -> int:
    """Load the saved state if all ranks can read it; return the number of steps that it has, or 0."""
    state: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # of a missing or damaged file, of many kinds
        state = files.read_with(file, unpickler.unpacked) if file else {}
    if int(all_sum(torch.tensor(int(bool(state)), device=device))) < world():
        return 0
    for name, part in parts.items():
        if state[name]:  # empty: of a scaler that was not in use
            part.load_state_dict(state[name])
    return int(state["step"])


def _generator(*key: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(stream(*key))
