"""Linear classification on augmented images: the frozen network runs again on new crops in every epoch.

This is the protocol of the published ImageNet tables (He et al., 2020, arXiv:1911.05722, section 4.1). It costs a
forward pass over the train split per epoch; `linear.py` is the one to use where augmentation does not matter.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.data.views import Views, sizes
from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.evaluate.subject import Subject


class LinearOnImages:
    """Test accuracy (top1) of a linear classifier on the backbone, trained by SGD on random crops and flips.

    The last epoch's classifier is tested, never the best one. Each batch is divided over the ranks and the gradients
    are added up, so that any number of ranks trains the same classifier. Raw pixels have no network to run on crops:
    nothing is yielded for them.

    Args:
        size, scale, ratio, interpolation, flip, mean, std: of the crops, as in `ssl_bench.data.views.Views`.
        epochs, batch_size: of the training; the batch size is that of all ranks together.
        lr, momentum, weight_decay: of the SGD. The rate is not scaled by the batch size.
        milestones: epochs after which the rate is multiplied by ``gamma``.
    """

    def __init__(
        self,
        size: int,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str = "bilinear",
        flip: float = 0.5,
        epochs: int = 100,
        batch_size: int = 256,
        lr: float = 30.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        milestones: Sequence[int] = (60, 80),
        gamma: float = 0.1,
    ) -> None:
        if epochs < 1 or batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, not {epochs} and {batch_size}")
        if lr <= 0:
            raise ValueError(f"lr must be above 0, not {lr}")
        crop = {"scale": scale, "ratio": ratio, "interpolation": interpolation, "flip": flip, "mean": mean, "std": std}
        self.views = Views(size, jitter=None, grayscale=0.0, blur=0.0, **crop)  # type: ignore[arg-type]
        self.epochs, self.batch_size = epochs, batch_size
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.milestones, self.gamma = list(milestones), gamma

    def run(self, subject: Subject) -> Iterator[tuple[str, float]]:
        if subject.network is None:
            return
        weight, bias = self._fit(subject)
        logits = F.linear(subject.features("test")["backbone"], weight, bias)
        yield "top1", (logits.argmax(1) == subject.labels("test")).double().mean().item()

    def _fit(self, subject: Subject) -> tuple[Tensor, Tensor]:
        """Weight [C, D] and bias [C]."""
        labels, device = subject.labels("train"), subject.device
        generator = torch.Generator().manual_seed(subject.seed)
        shape = subject.num_classes, subject.features("test")["backbone"].shape[1]
        weight = torch.empty(shape).normal_(std=0.01, generator=generator).to(device).requires_grad_()
        bias = torch.zeros(subject.num_classes, device=device, requires_grad=True)
        optimizer = torch.optim.SGD([weight, bias], self.lr, self.momentum, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, self.milestones, self.gamma)
        for _ in range(self.epochs):
            for batch in torch.randperm(len(labels), generator=generator).split(self.batch_size):
                uniform = self.views.uniform(len(batch), generator)  # for all ranks, each applies its own
                mine = slice(rank(), None, world())
                ids = batch[mine]
                weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
                if len(ids):  # the last batch can have fewer images than there are ranks
                    images = subject.load(subject.train, ids)
                    draw = self.views.parameters(uniform[mine].to(device), *sizes(images))
                    views = self.views.apply(images, draw)
                    logits = F.linear(subject.embed(views)["backbone"], weight, bias)
                    target = labels[ids.to(device, non_blocking=True)]
                    (F.cross_entropy(logits, target, reduction="sum") / len(batch)).backward()
                all_sum(weight.grad), all_sum(bias.grad)
                optimizer.step()
            schedule.step()
        return weight.detach(), bias.detach()
