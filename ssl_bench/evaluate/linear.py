"""Linear probe on cached features: one linear classifier per learning rate and weight decay, all trained in one pass.

Shapes: N images, D features, L classifiers, C classes, B batch.

The protocol, on purpose cheap and without hidden choices:

* every image goes through the frozen network once, so the classifier sees no augmentation;
* features are standardised per dimension by the statistics of the images it is fitted on, as a batch norm without
  learned parameters would, so that one range of learning rates serves every network;
* a tenth of the train split is held out, always the same images for one seed, and only chooses the learning rate and
  the decay; the classifier that was fitted on the other nine tenths with them is the one that is tested.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from ssl_bench.evaluate.target import Target

COLUMNS = 256  # of the features, gathered at a time for their statistics


def fit_linear(
    features: Tensor,
    labels: Tensor,
    lrs: Sequence[float],
    *,
    num_classes: int,
    epochs: int,
    batch_size: int,
    momentum: float,
    weight_decay: float | Sequence[float],
    generator: torch.Generator,
    fitted: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Minimises the cross-entropy by SGD with momentum and cosine decay, from zero, once per learning rate.

    The rates share every batch and nothing else: the L classifiers are the rows of one weight [L * C, D], their
    gradient (softmax - one-hot) is written out, and a step is two matrix products and a few operations on [L, C, B].
    Images are columns of the logits because a softmax over a dimension of ten is vectorised only if it is not the last.

    Args:
        features: [N, D] floating point; labels: [N] in [0, num_classes), on the same device. They can be most of what
            its memory holds, so no copy of them is kept.
        weight_decay: on the weight, not on the bias; one for all or one for each.
        generator: CPU generator of the order of the images.
        fitted: int64 [n], the images to fit on; None: all.

    Returns:
        Weight [L, C, D] and bias [L, C] for the features as they were given.
    """
    device, kind = features.device, features.dtype
    fitted = torch.arange(len(features), device=device) if fitted is None else fitted
    each = (torch.std_mean(some[fitted], dim=0, correction=0) for some in features.split(COLUMNS, dim=1))
    std, mean = map(torch.cat, zip(*each, strict=True))  # [D], [D]
    # A dimension that never varies in training says nothing, and its rounding noise must not be blown up.
    scale = torch.where(std > 1e-5 * std.max(), 1 / std, 0)  # [D]
    rows, width = len(lrs) * num_classes, features.shape[1]
    weight, bias = features.new_zeros(rows, width), features.new_zeros(rows, 1)
    weight_momentum, bias_momentum = torch.zeros_like(weight), torch.zeros_like(bias)
    lr = torch.tensor(lrs, dtype=kind, device=device).repeat_interleave(num_classes)[:, None]  # [L * C, 1]
    classes = torch.arange(num_classes, device=device)[:, None]
    decays = [weight_decay] * len(lrs) if isinstance(weight_decay, float | int) else list(weight_decay)
    decayed = torch.tensor(decays, dtype=kind, device=device).repeat_interleave(num_classes)[:, None]  # [L * C, 1]
    steps, step = epochs * math.ceil(len(fitted) / batch_size), 0
    for _ in range(epochs):
        order = fitted[torch.randperm(len(fitted), generator=generator).to(device)]
        for batch in order.split(batch_size):
            images = features.index_select(0, batch).sub_(mean).mul_(scale)  # [B, D]; half the time of features[batch]
            is_class = (labels.index_select(0, batch) == classes).to(kind)  # [C, B]
            logits = torch.addmm(bias, weight, images.T).view(len(lrs), num_classes, len(batch))
            gradient = logits.softmax(1).sub_(is_class).view(rows, len(batch))
            weight_momentum.addmm_(gradient, images, beta=momentum, alpha=1 / len(batch))
            bias_momentum.mul_(momentum).add_(gradient.mean(1, keepdim=True))
            if any(decays):
                weight_momentum.addcmul_(weight, decayed)
            decay = 0.5 * (1 + math.cos(math.pi * step / steps))
            weight.addcmul_(weight_momentum, lr, value=-decay)
            bias.addcmul_(bias_momentum, lr, value=-decay)
            step += 1
    weight *= scale
    bias -= (weight @ mean)[:, None]
    return weight.view(len(lrs), num_classes, width), bias.view(len(lrs), num_classes)


def accuracy(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> list[float]:
    """Share of the images [N] that each of the L classifiers, weight [L, C, D] and bias [L, C], puts in their class."""
    hits = torch.zeros(len(bias), dtype=torch.int64, device=labels.device)
    for x, y in zip(features.split(4096), labels.split(4096), strict=True):
        logits = torch.addmm(bias.flatten(), x, weight.flatten(0, 1).T).view(len(x), *bias.shape)
        hits += (logits.argmax(2) == y[:, None]).sum(0)
    return (hits.double() / len(labels)).tolist()


def judged(logits: Tensor, labels: Tensor, num_classes: int, per_class: bool) -> Iterator[tuple[str, float]]:
    """top1 of logits [N, C], with more than five classes top5, and on request the top1 of each class."""
    best = logits.topk(min(5, num_classes), dim=1).indices == labels[:, None]  # [N, 5]
    yield "top1", best[:, 0].double().mean().item()
    if num_classes > 5:
        yield "top5", best.any(1).double().mean().item()
    for c in labels.unique().tolist() if per_class else ():
        yield f"top1_class{c}", best[labels == c, 0].double().mean().item()


class LinearProbe:
    """Test accuracy of a linear classifier on cached features.

    Yields top1, with more than five classes top5, the learning rate that the held-out tenth chose (lr), the decay if
    there are several, and the accuracy there (val_top1). Equal held-out accuracies choose what is listed first. Every
    rank computes the same, from the seed.

    Args:
        lrs: learning rates to choose from. Not scaled by the batch size.
        epochs, batch_size, momentum: of the SGD that fits the classifier.
        weight_decay: one, or several to choose from beside the rates.
        features: of the backbone or of the projection; raw pixels are what they are.
        per_class: also the accuracy on the test images of each class (top1_class0 ...).
    """

    def __init__(
        self,
        lrs: Sequence[float] = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        epochs: int = 100,
        batch_size: int = 512,
        momentum: float = 0.9,
        weight_decay: float | Sequence[float] = 0.0,
        features: Literal["backbone", "projection"] = "backbone",
        per_class: bool = False,
    ) -> None:
        if not lrs or min(lrs) <= 0:
            raise ValueError(f"lrs must be one or more learning rates above 0, not {list(lrs)}")
        if epochs < 1 or batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, not {epochs} and {batch_size}")
        self.lrs, self.epochs, self.batch_size = list(lrs), epochs, batch_size
        self.momentum = momentum
        self.decays = [weight_decay] if isinstance(weight_decay, float | int) else list(weight_decay)
        if not self.decays or min(self.decays) < 0:
            raise ValueError(f"weight_decay must be one or more decays, none negative, not {weight_decay}")
        self.features, self.per_class = features, per_class

    def check(self, target: Target) -> None:
        target.labels("test")
        if len(target.labels("train")) < 2:
            raise ValueError("the train split must have at least 2 images: one to fit on and one to hold out")

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        self.check(target)
        labels, test_labels = target.labels("train"), target.labels("test")
        name = self.features if self.features in target.features("train") else "backbone"
        features = target.features("train")[name]
        grid = list(itertools.product(self.lrs, self.decays))
        generator = torch.Generator().manual_seed(target.seed)
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        held_out, fitted = order.tensor_split([math.ceil(len(labels) / 10)])
        weight, bias = fit_linear(
            features,
            labels,
            [lr for lr, _ in grid],
            num_classes=target.num_classes,
            epochs=self.epochs,
            batch_size=self.batch_size,
            momentum=self.momentum,
            weight_decay=[decay for _, decay in grid],
            generator=generator,
            fitted=fitted,
        )
        held_out_top1 = accuracy(features[held_out], labels[held_out], weight, bias)
        best = held_out_top1.index(max(held_out_top1))
        logits = torch.addmm(bias[best], target.features("test")[name], weight[best].T)
        yield from judged(logits, test_labels, target.num_classes, self.per_class)
        yield "val_top1", held_out_top1[best]
        yield "lr", grid[best][0]
        if len(self.decays) > 1:
            yield "weight_decay", grid[best][1]
