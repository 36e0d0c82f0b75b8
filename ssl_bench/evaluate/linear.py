"""Linear probe on cached features: one linear classifier per learning rate and weight decay, all trained in one pass.

The protocol is cheap and makes no hidden choices:

* Every image passes through the frozen network once, so the classifier sees no augmentation.
* Each dimension of the features is standardised by its statistics on the images of the fit, like a batch norm without
  learned parameters, so that the same learning rates fit every network.
* A tenth of the train split, drawn by the seed, is held out. It only chooses the learning rate and the weight decay;
  the tested classifier is the one that was fitted with them on the other nine tenths. If a class is small, a tenth of
  each class is held out instead (``hold_out=classes``).
* With fewer than 20 labels a class, a tenth is too few to choose by, and standardised dimensions that hardly vary would
  have the largest influence. A classifier is then fitted to all labels, by minimising a loss with an L2 penalty, on
  features that are divided by the square root of their length and not standardised (``hold_out=none``). If each class
  has five labels or more, cross-validation chooses the penalty.

Shapes: N images, D features, L classifiers, C classes, B batch, R the smaller of N and D.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from ssl_bench.config.labelled import DRAWN, FEW
from ssl_bench.config.ranges import Count, Positive, Probability
from ssl_bench.data.source import without_copies
from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.accuracy import top_accuracies
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.evaluate.trained import Momentum, cosine
from ssl_bench.signals import stop_if_asked

STEPS = 200
FOLDS = 5
# Measured with 1, 2, 5 and 10 labels a class, ten draws each, on pixels of digits and of CIFAR-10, on features of small
# trained networks of both, and of random filters of CIFAR-10: the mean accuracy is at most two standard errors below
# that of scikit-learn's logistic regression with that one of ten penalties which is best on the test images. With
# PENALTY alone it was 0.5 points below with 10 labels of CIFAR-10 (two errors: 0.4).
PENALTY = 0.1  # used if a class has fewer labels than there are folds
PENALTIES = (0.03, 0.1, 0.3, 1.0)


def shortened(features: Tensor) -> Tensor:
    """Features [N, D], each divided by the square root of its length.

    If there are few images, the longest features would decide; unit vectors would lose the information in the length.
    """
    return features / features.norm(dim=1, keepdim=True).clamp_min(1e-30).sqrt()


def fit_convex(features: Tensor, labels: Tensor, num_classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Minimise the sum of the cross-entropies + penalty / 2 * the squared norm of the weight, by L-BFGS.

    The problem is strictly convex in the weight: it has one minimum, whatever the order of the images.

    The features are centred and divided by one number, the root mean square of their lengths, so that a penalty means
    the same for features of any scale, and for any number of images, as a prior of the weight. The bias has none.

    Args:
        features: [N, D] floating point; the solution is found in float64.
        labels: [N] in [0, num_classes), on the same device.
        penalty: above 0.

    Returns:
        Weight [C, D] and bias [C] for the features as they were given, in their type.
    """
    with torch.inference_mode(False), torch.enable_grad():  # also where a caller has switched gradients off
        return _fit(features.double(), labels.clone(), num_classes, penalty, features.dtype)


def is_chosen(labels: Tensor) -> bool:
    """Whether each class in ``labels`` [N] has enough labels to choose a penalty by cross-validation."""
    return int(labels.unique(return_counts=True)[1].min()) >= FOLDS


def penalty_for(features: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator) -> float:
    """The one of PENALTIES with the lowest cross-entropy in cross-validation, or PENALTY for very few labels.

    There are five folds, over which the images of each class are spread.

    Args:
        features, labels, num_classes: as of :func:`fit_convex`.
        generator: on the CPU, draws the folds.
    """
    if not is_chosen(labels):
        return PENALTY
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    order = order[labels[order].argsort(stable=True)]
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(labels), device=labels.device) % FOLDS
    losses = []
    for penalty in PENALTIES:
        loss = 0.0
        for tested in range(FOLDS):
            others, rest = fold != tested, fold == tested
            weight, bias = fit_convex(features[others], labels[others], num_classes, penalty)
            logits = F.linear(features[rest], weight, bias).double()
            loss += float(F.cross_entropy(logits, labels[rest], reduction="sum"))
        losses.append(loss)
    return PENALTIES[losses.index(min(losses))]


def _fit(x: Tensor, labels: Tensor, num_classes: int, penalty: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    mean = x.mean(0)
    x = x - mean
    scale = x.square().sum(1).mean().sqrt()
    x = x / torch.where(scale > 0, scale, 1)
    # The minimum lies in the span of the images: a problem of width R has the same one.
    basis = torch.linalg.svd(x, full_matrices=False)[2] if len(x) < x.shape[1] else None  # [R, D]
    reduced = x if basis is None else x @ basis.T
    decay = penalty / len(x)  # of the mean, whose gradient has the scale that the solver expects
    weight = reduced.new_zeros(num_classes, reduced.shape[1], requires_grad=True)
    bias = reduced.new_zeros(num_classes, requires_grad=True)
    bounds = {"max_iter": STEPS, "tolerance_grad": 1e-7, "tolerance_change": 1e-12}
    solver = torch.optim.LBFGS([weight, bias], history_size=20, line_search_fn="strong_wolfe", **bounds)  # type: ignore[arg-type]

    def loss() -> Tensor:
        stop_if_asked()
        solver.zero_grad()
        value = F.cross_entropy(F.linear(reduced, weight, bias), labels) + decay / 2 * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    solution = weight.detach() if basis is None else weight.detach() @ basis
    solution = solution / torch.where(scale > 0, scale, 1)
    return solution.to(dtype), (bias.detach() - solution @ mean).to(dtype)


Grid = Sequence[tuple[float, float]]  # learning rates, each with a weight decay
COLUMNS = 256  # dimensions whose statistics are computed at a time: no copy of all features is made


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
    """Hold out the first tenth of each class in an order [N], rounded up, but never all images of a class.

    Args:
        labels: [N] of all images; twins: of all images, as of a :class:`ssl_bench.data.source.Source`.

    Returns:
        Images that are held out and those that are not, int64. Copies are in one part, unless a class has only copies.
    """
    classes = labels[order]
    grouped = order[classes.argsort(stable=True)].split(classes.unique(return_counts=True)[1].tolist())
    counts = [min(math.ceil(len(members) / 10), len(members) - 1) for members in grouped]
    first = [members[:count] for members, count in zip(grouped, counts, strict=True)]
    rest = [members[count:] for members, count in zip(grouped, counts, strict=True)]
    held_out, fitted = without_copies(torch.cat([*first, *rest]), sum(counts), twins)
    has_others = torch.isin(labels[held_out], labels[fitted])
    return held_out[has_others], torch.cat([fitted, held_out[~has_others]])


class LinearProbe(Evaluator):
    """Test accuracy of a linear classifier on cached features.

    Yields top1, with more than five classes top5, the learning rate that was chosen by the held-out tenth (lr), the
    chosen weight_decay if there are several, and the accuracy on the held-out tenth (val_top1). If several settings
    have the highest held-out accuracy, the first of them is chosen. The settings are divided over the ranks.

    Args:
        lrs: learning rates to choose from, not scaled by the batch size.
        epochs, batch_size, momentum: of the SGD that fits the classifier.
        weight_decay: one, or several to choose from together with the learning rates.
        features: of the backbone or of the projection; raw pixels have no projection and always use their pixels.
        per_class: also yield the accuracy on the test images of each class (top1_class0 ...).
        hold_out: what is held out to choose settings by: a tenth of all ``images``, a tenth of each of the ``classes``,
            or ``none``. With ``none``, all images are fitted by :func:`ssl_bench.evaluate.linear.fit_convex`; ``lrs``,
            ``epochs``, ``batch_size``, ``momentum`` and ``weight_decay`` have no effect, and the penalty is yielded.
            None: a run replaces it by what :func:`ssl_bench.config.labelled.held_out` says for the number of labels.
    """

    needs_labels = True
    takes_labels = True

    lrs: Annotated[Sequence[Positive], Meta(min_length=1)] = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    epochs: Count = 100
    batch_size: Count = 512
    momentum: Momentum = 0.9
    weight_decay: Probability | Annotated[Sequence[Probability], Meta(min_length=1)] = 0.0
    features: Literal["backbone", "projection"] = "backbone"
    per_class: bool = False
    hold_out: Literal["images", "classes", "none"] | None = "images"

    def __post_init__(self) -> None:
        self.decays = self.weight_decay if isinstance(self.weight_decay, Sequence) else [self.weight_decay]
        self.needs_projection = self.features == "projection"

    def check(self, target: Target) -> None:
        super().check(target)
        labels = target.labels("train")
        needed = {"classes": len(labels.unique()), "none": 0}.get(self.hold_out or DRAWN, 1)
        remedy = f"none: of {len(labels)} labelled images, none can be held out"
        require(len(labels) > needed, "hold_out", self.hold_out, remedy)

    def warnings(self, target: Target) -> Iterator[str]:
        labels, classes = target.labels("train"), target.num_classes
        of_images = f"{len(labels)} labelled images of {classes} classes"
        if self.hold_out == "none":
            penalty = f"chosen in {FOLDS} folds" if is_chosen(labels) else f"of {PENALTY}"
            yield f"hold_out=none: all {of_images} are fitted, with an L2 penalty {penalty}; lrs is not used"
        elif len(labels) < FEW * classes:
            few = f"a part of {of_images} is too small to choose settings by"
            yield f"hold_out={self.hold_out}: {few}: set hold_out to none"

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        ranking, chosen = self.predict(target)
        yield from top_accuracies(ranking, target.labels("test"), target.num_classes, self.per_class)
        yield from chosen.items()

    def predict(self, target: Target) -> tuple[Tensor, dict[str, float]]:
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
        held_out, fitted, generator = self._split_for_validation(target, labels)
        weight, bias = self.fit(features, labels, grid[share], target.num_classes, generator, fitted)
        accuracies = torch.zeros(len(grid), dtype=torch.float64, device=labels.device)
        accuracies[share] = accuracy(features, held_out, labels, weight, bias)
        held_out_top1 = all_sum(accuracies).tolist()
        best = held_out_top1.index(max(held_out_top1))
        index, owner = divmod(best, world())
        parts = (part[index] if owner == rank() else part.new_zeros(part.shape[1:]) for part in (weight, bias))
        ranking = self._ranked(target, target.features("test")[space], *map(all_sum, parts))
        chosen = {"val_top1": held_out_top1[best], "lr": grid[best][0]}
        return ranking, chosen | ({"weight_decay": grid[best][1]} if len(self.decays) > 1 else {})

    def fit(
        self, features: Tensor, labels: Tensor, grid: Grid, num_classes: int, generator: torch.Generator, fitted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Minimise the cross-entropy by SGD with momentum and cosine decay, from zero, once per setting.

        The L classifiers share the batches and nothing else. They are the rows of one weight [L * C, D], their gradient
        (softmax - one-hot) is written out, and a step is two matrix products and a few operations on [L, C, B]. Images
        are the columns of the logits because a softmax over ten classes is vectorised only if that dimension is not the
        last.

        Args:
            features: [N, D] floating point; labels: [N] in [0, num_classes), on the same device. They may fill most of
                its memory, so no copy of them is made.
            grid: L learning rates, at the first step, each with a decay of the weight, which the bias does not have.
            num_classes: C.
            generator: CPU generator for the order of the images.
            fitted: int64 [n], the images to fit on.

        Returns:
            Weight [L, C, D] and bias [L, C] for features that are not standardised.
        """
        device, dtype = features.device, features.dtype
        moments = [torch.std_mean(columns[fitted], dim=0, correction=0) for columns in features.split(COLUMNS, dim=1)]
        std, mean = map(torch.cat, zip(*moments, strict=True))  # [D], [D]
        # A constant dimension has no information, and its rounding noise must not be scaled up.
        scale = torch.where(std > 1e-5 * std.max(), 1 / std, 0)  # [D]
        rows, width, by_class = len(grid) * num_classes, features.shape[1], (len(grid), num_classes)
        weight, bias = features.new_zeros(rows, width), features.new_zeros(rows, 1)
        weight_momentum, bias_momentum = torch.zeros_like(weight), torch.zeros_like(bias)
        settings = torch.tensor(grid, dtype=dtype, device=device).view(-1, 2).repeat_interleave(num_classes, 0)
        lr, decays = settings.split(1, dim=1)  # [L * C, 1] each
        classes, decayed = torch.arange(num_classes, device=device)[:, None], any(decay for _, decay in grid)
        steps, step = self.epochs * math.ceil(len(fitted) / self.batch_size), 0
        for _ in range(self.epochs):
            order = fitted[torch.randperm(len(fitted), generator=generator, device="cpu").to(device)]
            for batch in order.split(self.batch_size):
                stop_if_asked()
                images = features.index_select(0, batch).sub_(mean).mul_(scale)  # [B, D]
                is_class = (labels.index_select(0, batch) == classes).to(dtype)  # [C, B]
                logits = torch.addmm(bias, weight, images.T).view(*by_class, len(batch))
                gradient = logits.softmax(1).sub_(is_class).view(rows, len(batch))
                weight_momentum.addmm_(gradient, images, beta=self.momentum, alpha=1 / len(batch))
                bias_momentum.mul_(self.momentum).add_(gradient.mean(1, keepdim=True))
                if decayed:
                    weight_momentum.addcmul_(weight, decays)
                lr_factor = cosine(step, steps)
                weight.addcmul_(weight_momentum, lr, value=-lr_factor)
                bias.addcmul_(bias_momentum, lr, value=-lr_factor)
                step += 1
        weight *= scale
        bias -= (weight @ mean)[:, None]
        return weight.view(*by_class, width), bias.view(by_class)

    def _split_for_validation(self, target: Target, labels: Tensor) -> tuple[Tensor, Tensor, torch.Generator]:
        """The images to choose settings by, those to fit on, and the generator by which they were drawn."""
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
