"""kNN and linear probe on the device against float64 on the CPU, on the same features.

A cosine of D numbers is off by e = 8 sqrt(D) u32 (``bounds.py``) plus a few u32 of the norms. So the neighbours of a
query are certain unless its k-th and (k + 1)-th cosines are nearer than 2 e, and its class unless the two best scores
are nearer than 2 e / temperature of all votes. Other queries are ties, and are left out.

A step of the probe is off by 8 sqrt(n) u32 for sums of n numbers, relative to its gradient. Momentum m adds up the
errors of 1 / (1 - m) steps; the decreasing convex loss does not enlarge them.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.check.bounds import U32, WRONG_RESULT, Difference, computing, difference, judged, sum_bound
from ssl_bench.check.finding import Check, Finding, Level
from ssl_bench.evaluate.knn import LOW_HALF, nearest, rank_classes
from ssl_bench.evaluate.linear import accuracy, fit_linear

WIDTH, CLASSES, K, TEMPERATURE = 131, 10, 20, 0.1
LRS, EPOCHS, BATCH, MOMENTUM = (0.1, 1.0), 5, 128, 0.9


def feature_checks(device: torch.device, level: Level) -> Iterator[Check]:
    """kNN and probe, larger above the level ``QUICK``."""
    scale = 1 if level is Level.QUICK else 8
    yield Check("knn", partial(knn, device, 251 * scale, 1003 * scale), 2)
    yield Check("linear probe", partial(probe, device, 603 * scale), 2)


def features(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Overlapping clusters, float32 [count, D], and their classes."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels] + 3 * torch.randn(count, WIDTH, generator=generator), labels


def knn(device: torch.device, queries: int, bank: int) -> Finding:
    """Neighbours and classes of all queries that are no ties. TF32 is on, as in a run: kNN must not use it."""
    (x, _), (y, labels) = features(queries, 1), features(bank, 2)
    cosines = F.normalize(x.double(), dim=1) @ F.normalize(y.double(), dim=1).T  # [Q, N]
    top = cosines.topk(K + 1, dim=1)
    weights = (top.values[:, :K] / TEMPERATURE).exp()
    scores = torch.zeros(queries, CLASSES, dtype=torch.float64).scatter_add_(1, labels[top.indices[:, :K]], weights)
    error = sum_bound(WIDTH) + 4 * U32
    best = scores.topk(2, dim=1).values
    certain = top.values[:, K - 1] - top.values[:, K] > 2 * error
    clear = certain & (best[:, 0] - best[:, 1] > 2 * error / TEMPERATURE * scores.sum(1))
    with computing(tf32=True):
        keys = nearest(x.to(device), y.to(device), K)
        classes = rank_classes(keys, labels.to(device), K, TEMPERATURE, CLASSES)[:, 0].cpu()
    neighbours = (LOW_HALF - (keys.cpu() & LOW_HALF)).sort(1).values
    expected = top.indices[:, :K].sort(1).values
    wrong = certain & (neighbours != expected).any(1)
    place = ""
    if wrong.any():
        query = int(wrong.nonzero()[0])
        found, right = set(neighbours[query].tolist()), set(expected[query].tolist())
        place = f"query {query} has the neighbours {sorted(found - right)} in place of {sorted(right - found)}, "
        place += f"{int(wrong.sum())} of {queries} queries are wrong"
    result = judged(
        [
            Difference("neighbours", float(wrong.sum()), 0.0, place),
            difference("classes", classes[clear], scores.argmax(1)[clear]),
            Difference("ties", float((~certain).double().mean()), 0.2, "more ties than rounding explains"),
        ],
        "kinds of results",
    )
    ties = int((~clear).sum())
    figure = (
        f"neighbours and classes of {queries - ties} queries equal, {ties} ties" if not wrong.any() else result.figure
    )
    return Finding(figure, result.verdict, result.reason, result.advice, {**result.values, "ties": ties})


def probe(device: torch.device, images: int) -> Finding:
    """Logits of two fitted classifiers, and their accuracy."""
    (x, labels), (test, test_labels) = features(images, 3), features(images // 2, 4)

    def fitted(x: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
        settings = {"num_classes": CLASSES, "epochs": EPOCHS, "batch_size": BATCH, "momentum": MOMENTUM}
        generator = torch.Generator().manual_seed(0)
        there = labels.to(x.device)
        weight, bias = fit_linear(x, there, LRS, **settings, weight_decay=0.0, generator=generator)  # type: ignore[arg-type]
        logits = torch.einsum("nd,lcd->lnc", test, weight) + bias[:, None]
        return logits.cpu().double(), torch.tensor(accuracy(test, test_labels.to(x.device), weight, bias))

    with computing(tf32=False):
        found, accuracies = fitted(x.to(device), test.to(device))
    exact, expected = fitted(x.double(), test.double())
    bound = sum_bound(max(WIDTH, BATCH)) / (1 - MOMENTUM) * exact.abs().amax((1, 2), keepdim=True)  # [L, 1, 1]
    best = exact.topk(2, dim=2).values
    unclear = (best[..., 0] - best[..., 1] <= 2 * bound[..., 0]).double().mean(1)  # [L]
    return judged(
        [
            difference("logits", found, exact, bound),
            difference("accuracies", accuracies, expected, unclear + 1e-9),
        ],
        "kinds of results",
        f"{WRONG_RESULT}",
    )
