"""Linear probe on cached features: one linear classifier per learning rate and weight decay, all trained in one pass.

The protocol is cheap and makes no hidden choices:

* Every image passes through the frozen network once, so the classifier sees no augmentation.
* Each dimension of the features is standardised by its statistics on the images of the fit, like a batch norm without
  learned parameters, so that the same learning rates fit every network.
* A tenth of the train split, chosen by the seed, is held out. It only chooses the learning rate and the weight decay;
  the tested classifier is the one that was fitted with them on the other nine tenths. Where a class is small, a tenth
  of each class is held out instead (``hold_out=classes``).
* Of fewer than 20 labels a class a tenth is too few to choose by, and standardised by their own statistics the
  dimensions that hardly vary would count most. All of them are then fitted to the minimum of a loss with an L2 penalty,
  on features that are divided by the square root of their length instead (``hold_out=none``): convex.py. Where each
  class has five, cross-validation chooses the penalty.

Shapes: N images, D features, L classifiers, C classes, B batch.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from ssl_bench.config.labelled import DRAWN, FEW
from ssl_bench.data.source import without_copies
from ssl_bench.data.splits import few
from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.accuracy import top_accuracies
from ssl_bench.evaluate.convex import FOLDS, PENALTY, fit_convex, is_chosen, penalty_for, shortened
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.evaluate.trained import check_sgd, cosine
from ssl_bench.signals import stop_if_asked

COLUMNS = 256  # dimensions whose statistics are computed at a time: no copy of all features is made


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
    """Minimise the cross-entropy by SGD with momentum and cosine decay, from zero, once per learning rate.

    The L classifiers share the batches and nothing else. They are the rows of one weight [L * C, D], their gradient
    (softmax - one-hot) is written out, and a step is two matrix products and a few operations on [L, C, B]. Images are
    the columns of the logits because a softmax over ten classes is vectorised only if that dimension is not the last.

    Args:
        features: [N, D] floating point; labels: [N] in [0, num_classes), on the same device. They may fill most of its
            memory, so no copy of them is made.
        lrs: L learning rates, at the first step.
        num_classes: C.
        epochs, batch_size: 1 or more; the last batch of an epoch may be smaller.
        momentum: in [0, 1).
        weight_decay: on the weight, not on the bias; one for all classifiers or one for each.
        generator: CPU generator for the order of the images.
        fitted: int64 [n], the images to fit on; None: all.

    Returns:
        Weight [L, C, D] and bias [L, C] for features that are not standardised.
    """
    device, dtype = features.device, features.dtype
    fitted = torch.arange(len(features), device=device) if fitted is None else fitted
    moments = [torch.std_mean(columns[fitted], dim=0, correction=0) for columns in features.split(COLUMNS, dim=1)]
    std, mean = map(torch.cat, zip(*moments, strict=True))  # [D], [D]
    # A constant dimension has no information, and its rounding noise must not be scaled up.
    scale = torch.where(std > 1e-5 * std.max(), 1 / std, 0)  # [D]
    rows, width = len(lrs) * num_classes, features.shape[1]
    weight, bias = features.new_zeros(rows, width), features.new_zeros(rows, 1)
    weight_momentum, bias_momentum = torch.zeros_like(weight), torch.zeros_like(bias)
    lr = torch.tensor(lrs, dtype=dtype, device=device).repeat_interleave(num_classes)[:, None]  # [L * C, 1]
    classes = torch.arange(num_classes, device=device)[:, None]
    decays = [weight_decay] * len(lrs) if isinstance(weight_decay, float | int) else list(weight_decay)
    row_decays = torch.tensor(decays, dtype=dtype, device=device).repeat_interleave(num_classes)[:, None]  # [L * C, 1]
    steps, step = epochs * math.ceil(len(fitted) / batch_size), 0
    for _ in range(epochs):
        order = fitted[torch.randperm(len(fitted), generator=generator, device="cpu").to(device)]
        for batch in order.split(batch_size):
            stop_if_asked()
            images = features.index_select(0, batch).sub_(mean).mul_(scale)  # [B, D]
            is_class = (labels.index_select(0, batch) == classes).to(dtype)  # [C, B]
            logits = torch.addmm(bias, weight, images.T).view(len(lrs), num_classes, len(batch))
            gradient = logits.softmax(1).sub_(is_class).view(rows, len(batch))
            weight_momentum.addmm_(gradient, images, beta=momentum, alpha=1 / len(batch))
            bias_momentum.mul_(momentum).add_(gradient.mean(1, keepdim=True))
            if any(decays):
                weight_momentum.addcmul_(weight, row_decays)
            lr_factor = cosine(step, steps)
            weight.addcmul_(weight_momentum, lr, value=-lr_factor)
            bias.addcmul_(bias_momentum, lr, value=-lr_factor)
            step += 1
    weight *= scale
    bias -= (weight @ mean)[:, None]
    return weight.view(len(lrs), num_classes, width), bias.view(len(lrs), num_classes)


def accuracy(features: Tensor, ids: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Accuracy [L] on the images ``ids`` [n] of each of the L classifiers with weight [L, C, D] and bias [L, C].

    An image whose logits are not finite, as of a classifier that has diverged, counts as wrong.
    """
    correct = torch.zeros(len(bias), dtype=torch.int64, device=labels.device)
    for block in ids.split(4096):
        x = features.index_select(0, block)
        logits = torch.addmm(bias.flatten(), x, weight.flatten(0, 1).T).view(len(x), *bias.shape)
        correct += ((logits.argmax(2) == labels[block][:, None]) & logits.isfinite().all(2)).sum(0)
    return correct.double() / len(ids)


def of_each_class(order: Tensor, labels: Tensor, twins: Tensor | None) -> tuple[Tensor, Tensor]:
    """Hold out the first tenth of each class in an order [N], rounded up; a class keeps at least one of its images.

    Args:
        labels: [N] of all images; twins: of all images, as of a :class:`ssl_bench.data.source.Source`.

    Returns:
        Images that are held out and those that are not, int64. Copies are not divided, unless a class has no others.
    """
    classes = labels[order]
    grouped = order[classes.argsort(stable=True)].split(classes.unique(return_counts=True)[1].tolist())
    counts = [min(math.ceil(len(members) / 10), len(members) - 1) for members in grouped]
    first = [members[:count] for members, count in zip(grouped, counts, strict=True)]
    rest = [members[count:] for members, count in zip(grouped, counts, strict=True)]
    held_out, fitted = without_copies(torch.cat([*first, *rest]), sum(counts), twins)
    kept = torch.isin(labels[held_out], labels[fitted])
    return held_out[kept], torch.cat([fitted, held_out[~kept]])


class LinearProbe(Evaluator):
    """Test accuracy of a linear classifier on cached features.

    Yields top1, with more than five classes top5, the learning rate that the held-out tenth chose (lr), the chosen
    weight_decay if there are several, and the accuracy on the held-out tenth (val_top1). Of equal held-out accuracies
    the setting that is listed first is chosen. The settings are divided over the ranks.

    Args:
        lrs: learning rates to choose from, not scaled by the batch size.
        epochs, batch_size, momentum: of the SGD that fits the classifier.
        weight_decay: one, or several to choose from together with the learning rates.
        features: of the backbone or of the projection; raw pixels have no projection and always use their pixels.
        per_class: also yield the accuracy on the test images of each class (top1_class0 ...).
        hold_out: what chooses: a tenth of all ``images``, or of each of the ``classes``. With ``none`` all are fitted,
            and nothing is chosen: ``lrs``, ``epochs``, ``batch_size``, ``momentum`` and ``weight_decay`` have no
            effect, and it yields the accuracies and the penalty of :func:`ssl_bench.evaluate.convex.fit_convex`. In a
            run None is what :func:`ssl_bench.config.labelled.held_out` says for the number of labels.
    """

    needs_labels = True
    takes_labels = True

    def __init__(
        self,
        lrs: Sequence[float] = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        epochs: int = 100,
        batch_size: int = 512,
        momentum: float = 0.9,
        weight_decay: float | Sequence[float] = 0.0,
        features: Literal["backbone", "projection"] = "backbone",
        per_class: bool = False,
        hold_out: Literal["images", "classes", "none"] | None = "images",
    ) -> None:
        require(min(lrs, default=0) > 0, "lrs", list(lrs), "one or more positive numbers")
        require(epochs >= 1, "epochs", epochs, "1 or more")
        require(batch_size >= 1, "batch_size", batch_size, "1 or more")
        self.lrs, self.epochs, self.batch_size = list(lrs), epochs, batch_size
        self.momentum = momentum
        self.decays = [weight_decay] if isinstance(weight_decay, float | int) else list(weight_decay)
        check_sgd(momentum, *self.decays)
        self.features, self.per_class, self.hold_out = features, per_class, hold_out or DRAWN
        self.needs_projection = features == "projection"

    def check(self, target: Target) -> None:
        labels, _ = target.labels("train"), target.labels("test")
        kept = {"images": 1, "classes": len(labels.unique()), "none": 0}[self.hold_out]
        remedy = f"none: nothing of {len(labels)} labelled images can be held out"
        require(len(labels) > kept, "hold_out", self.hold_out, remedy)

    def doubts(self, target: Target) -> Iterator[str]:
        labels, classes = target.labels("train"), target.num_classes
        of_images = f"{len(labels)} labelled images of {classes} classes"
        if self.hold_out == "none":
            penalty = f"that {FOLDS} folds choose" if is_chosen(labels) else f"of {PENALTY}"
            yield f"hold_out=none: all {of_images} are fitted with an L2 penalty {penalty}, and lrs is not used"
        elif len(labels) < FEW * classes:
            yield f"hold_out={self.hold_out}: a part of {of_images} is too few to choose by: set hold_out to none"
        if self.hold_out == DRAWN:
            held_out, fitted = self._divided(target, labels)[:2]
            lost = target.names_of({*labels[held_out].tolist()} - {*labels[fitted].tolist()})
            if lost:
                what = f"all labelled images of {len(lost)} of {classes} classes ({few(lost)}) are held out"
                yield f"hold_out=images: {what}, so that they cannot be named: set hold_out to classes"

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        self.check(target)
        ranking, chosen = self.rank(target)
        yield from top_accuracies(ranking, target.labels("test"), target.num_classes, self.per_class)
        yield from chosen.items()

    def rank(self, target: Target) -> tuple[Tensor, dict[str, float]]:
        """The up to five likeliest classes of each test image, best first, and the settings that were chosen."""
        labels, spaces = target.labels("train"), target.features("train")
        space = self.features if self.features in spaces else "backbone"
        features = spaces[space]
        if self.hold_out == "none":
            x, generator = shortened(features), torch.Generator().manual_seed(target.seed)
            penalty = penalty_for(x, labels, target.num_classes, generator)
            weight, bias = fit_convex(x, labels, target.num_classes, penalty)
            return self._ranked(target, shortened(target.features("test")[space]), weight, bias), {"penalty": penalty}
        grid = list(itertools.product(self.lrs, self.decays))
        share = slice(rank(), None, world())
        held_out, fitted, generator = self._divided(target, labels)
        weight, bias = fit_linear(
            features,
            labels,
            [lr for lr, _ in grid[share]],
            num_classes=target.num_classes,
            epochs=self.epochs,
            batch_size=self.batch_size,
            momentum=self.momentum,
            weight_decay=[decay for _, decay in grid[share]],
            generator=generator,
            fitted=fitted,
        )
        accuracies = torch.zeros(len(grid), dtype=torch.float64, device=labels.device)
        accuracies[share] = accuracy(features, held_out, labels, weight, bias)
        chosen_weight, chosen_bias = weight.new_zeros(weight.shape[1:]), bias.new_zeros(bias.shape[1:])
        held_out_top1 = all_sum(accuracies).tolist()
        best = held_out_top1.index(max(held_out_top1))
        if best in range(len(grid))[share]:
            index = range(len(grid))[share].index(best)
            chosen_weight, chosen_bias = weight[index], bias[index]
        ranking = self._ranked(target, target.features("test")[space], all_sum(chosen_weight), all_sum(chosen_bias))
        chosen = {"val_top1": held_out_top1[best], "lr": grid[best][0]}
        return ranking, chosen | ({"weight_decay": grid[best][1]} if len(self.decays) > 1 else {})

    def _divided(self, target: Target, labels: Tensor) -> tuple[Tensor, Tensor, torch.Generator]:
        """The images that are held out, those that are fitted, and the generator that has drawn them."""
        generator, twins = torch.Generator().manual_seed(target.seed), target.twins("train")
        order = torch.randperm(len(labels), generator=generator, device="cpu").to(labels.device)
        if self.hold_out == "classes":
            return *of_each_class(order, labels, twins), generator
        return *without_copies(order, math.ceil(len(labels) / 10), twins), generator

    def _ranked(self, target: Target, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The up to five likeliest classes of each test image, best first, by features [N, D]."""
        logits = torch.addmm(bias, features, weight.T)
        require(bool(logits.isfinite().all()), "lrs", self.lrs, "lower ones: all classifiers have diverged")
        return logits.topk(min(5, target.num_classes), dim=1).indices
