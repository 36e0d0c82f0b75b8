"""Fine-tuning: the whole network is trained on the labels, with a linear classifier on its backbone.

The recipe is that of SimCLR (Chen et al., 2020, arXiv:2002.05709), appendix B.5; conf/evaluate/finetune.yaml tells what
is not from there. The network of the target is not changed.

Shapes: N labelled images, B images of a step, n of this rank, D features, C classes.
"""

import contextlib
import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.data.pixels import sizes
from ssl_bench.data.reader import Reader
from ssl_bench.data.views import Views
from ssl_bench.distributed import all_sum, alone, average_gradients, rank, world
from ssl_bench.errors import ConfigError, InvalidValue, require
from ssl_bench.evaluate.target import Target
from ssl_bench.evaluate.trained import Trained
from ssl_bench.networks import unpickler
from ssl_bench.networks.encoder import full_precision
from ssl_bench.networks.norm import group_statistics
from ssl_bench.seeding import stream
from ssl_bench.signals import Interrupted, stop_if_asked

log = logging.getLogger("ssl_bench")

PAUSE = 120.0  # seconds between two states that are kept


@dataclass(eq=False, kw_only=True)
class FineTune(Trained):
    """The network of the last step, trained on random crops and flips: see :class:`ssl_bench.evaluate.trained.Trained`.

    SGD with Nesterov's momentum, a rate that falls to 0 along a cosine, batch statistics of the whole batch. Batches go
    over the ends of epochs, so that all are full; of fewer images than ``batch_size`` each has all of them. Any number
    of ranks trains the same network; if it does not divide the batch, every rank computes the whole batch. Layers with
    random numbers, such as dropout, draw others on another number of ranks.

    A state is kept every two minutes and when the run is stopped: a run that is started again goes on from there.

    Args:
        size, mean, std, scale, ratio, interpolation, flip: of the views, as in :class:`ssl_bench.data.views.Views`.
        epochs: passes over the images with labels; None: 60 if these are less than 5% of all images, else 30.
        least_steps: with a batch of 256 images, if the epochs have fewer; least_steps * 256 / batch_size with another.
        batch_size: images of a step, of all ranks together.
        lr: rate for a batch of 256 images; the rate is lr * batch_size / 256.
        momentum, weight_decay: of SGD; the decay is of all weights.
    """

    size: int = field(kw_only=False)
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: str = "bicubic_tf"
    flip: float = 0.5
    epochs: int | None = None  # type: ignore[assignment]
    least_steps: int = 300
    lr: float = 0.05
    schedule: Literal["cosine"] = field(default="cosine", init=False)
    nesterov: bool = field(default=True, init=False)
    init_std: float | None = field(default=0.0, init=False)
    drop_last: bool = field(default=False, init=False)
    train = "network"

    def __post_init__(self) -> None:
        require(self.least_steps >= 0, "least_steps", self.least_steps, "0 or more")
        self.epochs = 30 if self.epochs is None else self.epochs
        self.nesterov = self.momentum > 0
        super().__post_init__()
        self.least_steps = self.least_steps * 256 // self.batch_size
        of_views = ("scale", "ratio", "interpolation", "flip", "mean", "std")
        self.views = Views(self.size, **{name: getattr(self, name) for name in of_views}, grayscale=0.0)

    def steps(self, images: int, batch: int) -> int:
        return max((self.epochs or 0) * images // batch, self.least_steps)

    def check(self, target: Target) -> None:
        super().check(target)
        if len(target.train) < 2:
            raise ConfigError("one image has a label, and batch statistics need two: set evaluate.labels to more")

    def logits(self, target: Target) -> dict[str, Tensor]:
        keeps, batch = rank() == 0, min(self.batch_size, len(target.train))
        gpus = [target.device] if target.device.type == "cuda" else []
        with torch.random.fork_rng(gpus), alone() if batch % world() else contextlib.nullcontext():
            tuned = copy.copy(target)
            tuned.network = Training(self, target, batch, keeps).finished()
            return {"": tuned.outputs(target.test, torch.arange(len(target.test)))["logits"]}


class Classifier(nn.Module):
    """A trainable copy of a network's backbone with a linear classifier, which begins with zeros.

    Every BN has the statistics of the images of all ranks, whatever groups the network was trained with.

    Raises:
        ConfigError: that cannot be, on several ranks.
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


class Training:
    """The training of a copy of a target's network, on every rank.

    Args:
        recipe: settings.
        target: its network, its train split, its seed; the file in which the state is kept.
        batch: B, at most N.
        keeps: whether this process writes that file.
    """

    def __init__(self, recipe: FineTune, target: Target, batch: int, keeps: bool) -> None:
        assert target.network is not None
        width = target.outputs(target.test, torch.arange(1))["backbone"].shape[1]
        self.recipe, self.target, self.batch, self.keeps = recipe, target, batch, keeps
        self.network = Classifier(target.network, width, target.num_classes)
        self.optimizer = recipe.optimizer_of([*self.network.parameters()])
        self.scaler = torch.amp.GradScaler(target.device.type, enabled=target.autocast is torch.float16)
        self.step, self.last_step = 0, recipe.steps(len(target.train), batch)
        self._order = lru_cache(2)(self._drawn)

    def finished(self) -> Classifier:
        """Train from the state that was kept to the last step. Raises InvalidValue if a weight is not finite then."""
        self._resume()
        device, kept_at = self.target.device, time.monotonic()
        shares = map(self._images, range(self.step, self.last_step))
        self.network.train()
        for _, images, labels in Reader(self.target.train, device).batches(shares):
            torch.manual_seed(stream("finetune layers", self.target.seed, self.step, rank()))
            self._train(self._views(images), labels.to(device))
            self.step += 1
            try:
                stop_if_asked()
            except Interrupted:
                self._keep()
                raise
            if time.monotonic() - kept_at > PAUSE:
                self._keep()
                kept_at = time.monotonic()
        finite = all(bool(value.isfinite().all()) for value in self.network.state_dict().values())
        require(finite, "lr", self.recipe.lr, "a lower one: the network's weights are not finite")
        return self.network

    def _drawn(self, epoch: int) -> Tensor:
        """The images of an epoch in their order, int64 [N]."""
        generator = torch.Generator().manual_seed(stream("finetune", self.target.seed, epoch))
        return torch.randperm(len(self.target.train), generator=generator)

    def _images(self, step: int) -> Tensor:
        """This rank's share [n] of the images of a step, from one shuffled epoch after the other."""
        epoch, first = divmod(step * self.batch, len(self.target.train))
        images = self._order(epoch)[first : first + self.batch]
        images = torch.cat([images, self._order(epoch + 1)[: self.batch - len(images)]])
        return images[rank() :: world()]

    def _views(self, images: Any) -> Tensor:
        """Views of this rank's images; their random numbers are those of any number of ranks."""
        views, seed = self.recipe.views, stream("finetune views", self.target.seed, self.step)
        uniform = views.uniform(self.batch, torch.Generator().manual_seed(seed))[rank() :: world()]
        parameters = views.parameters(uniform.to(self.target.device, non_blocking=True), *sizes(images))
        return views.apply(images, parameters, self.network.linear.weight.dtype)

    def _train(self, views: Tensor, labels: Tensor) -> None:
        rate = self.recipe.rate * self.recipe.share_of_rate(0, self.step, self.last_step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        mixed = self.target.autocast
        with torch.autocast(self.target.device.type, mixed, enabled=mixed is not None):
            logits = self.network(views)["logits"]
        loss = F.cross_entropy(full_precision(logits), labels)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        average_gradients(self.network)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    # ---- the state that is kept

    def _parts(self) -> dict[str, Any]:
        return {"network": self.network, "optimizer": self.optimizer, "scaler": self.scaler}

    def _keep(self) -> None:
        if self.target.kept is None or not self.keeps:
            return
        log.info("fine-tuning: step %d of %d", self.step, self.last_step)
        files.make_folder(self.target.kept.parent)
        states = {name: part.state_dict() for name, part in self._parts().items()}
        files.write_bytes(self.target.kept, unpickler.packed({"step": self.step, **states}))

    def _resume(self) -> None:
        """Go on from the state that was kept, if all ranks can read it."""
        state: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # of a missing or damaged file, of many kinds
            state = files.read_with(self.target.kept, unpickler.unpacked) if self.target.kept else {}
        if int(all_sum(torch.tensor(int(bool(state)), device=self.target.device))) < world():
            return
        for name, part in self._parts().items():
            if state[name]:  # empty: of a scaler that was not in use
                part.load_state_dict(state[name])
        self.step = state["step"]
