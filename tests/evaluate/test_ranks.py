"""Every evaluator on two ranks, whose shares of the images are unequal, measures what it does on one."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from ssl_bench.config.compose import load
from ssl_bench.data.constructed import Pairs
from ssl_bench.data.source import Images
from ssl_bench.data.views import Views
from ssl_bench.distributed import alone, world
from ssl_bench.evaluate.artifacts import Artifact, Distribution, Histogram
from ssl_bench.evaluate.contrast_statistics import BLOCK, NPC, ContrastStatistics
from ssl_bench.evaluate.finetune import FineTune
from ssl_bench.evaluate.geometry import Geometry, Projections, Spectrum, pair_statistics
from ssl_bench.evaluate.knn import KNN, EuclideanKNN
from ssl_bench.evaluate.linear import LinearProbe
from ssl_bench.evaluate.of_loss import GradientWeight, MutualInformation, Objective
from ssl_bench.evaluate.target import Target
from ssl_bench.evaluate.trained import LinearOnImages, LinearSGD
from ssl_bench.networks.norm import group_statistics
from tests.evaluate import test_finetune as tuned
from tests.evaluate import test_geometry as geometry
from tests.evaluate import test_linear_images as on_images
from tests.evaluate import test_target as plain
from tests.ranks import on_two_ranks


def measured(rank: int = 0) -> dict[str, Any]:
    torch.manual_seed(rank)  # the results must not depend on the global generator
    return features() | fitted() | fine_tuned() | distances() | contrasts() | of_losses()


def features() -> dict[str, Any]:
    """21 and 13 images, one image, and as many on both ranks."""
    network = plain.Net()
    target = plain.make_target(network, plain.split(21), plain.split(13, 1))
    found: dict[str, Any] = {}
    found["knn"] = dict(KNN(k=5).run(target))
    found["linear"] = dict(LinearProbe(epochs=3, batch_size=8).run(target))
    found["knn_euclidean"] = dict(EuclideanKNN(k=15).run(target))
    found["linear_sgd"] = dict(LinearSGD(0.1, epochs=3, batch_size=8).run(target))
    found |= {name: target.features(name) for name in ("train", "test")}
    found["images"] = sum(network.seen)
    found["one"] = plain.make_target(plain.Net(), plain.split(1), plain.split(1)).features("test")
    found["equal"] = plain.make_target(plain.Net(), plain.split(8), plain.split(1)).features("train")
    return found


def fitted() -> dict[str, Any]:
    """Classifiers on images, with a last batch of one image."""
    target = on_images.make_target(41)
    probe = LinearOnImages(on_images.SIDE, **on_images.SETTINGS | {"batch_size": 20})
    fit = {n: (h.weight.detach(), h.bias.detach(), h.mean, h.var) for n, h in probe.fitted(target).items()}
    return {"classifiers": fit, "on_images": dict(probe.run(target))}


def fine_tuned() -> dict[str, Any]:
    """Batches that ranks can share equally, and that they cannot, of a network that was trained in groups."""
    network = tuned.Net().double()
    group_statistics(network, world())
    parts = dict[str, Any]()
    for batch in (4, 5):
        recipe, target = FineTune(tuned.SIDE, **tuned.SMALL | {"batch_size": batch}), tuned.make_target(network)
        with alone() if batch % world() else nullcontext():
            state = recipe.fitted(target, batch).state_dict()
        parts[f"tuned/{batch}"] = [dict(recipe.run(target)), *state.values()]
    return parts


def distances() -> dict[str, Any]:
    target = geometry.make_target(geometry.Halves(), 91)
    found: dict[str, Any] = {**dict(Geometry().run(target)), **dict(Projections().run(target))}
    found["spectrum"] = dict(Spectrum(groups=31, views=3).run(target))
    x, labels = geometry.points()
    return found | {f"tiled/{name}": value for name, value in pair_statistics(x, labels, geometry.CLASSES, 2.0, 8)}


def contrasts() -> dict[str, Any]:
    """Three blocks of queries; batches that ranks cannot share equally, and one with an image for each rank."""
    target = geometry.make_target(geometry.Halves(), batch_size=4)
    three = Images([geometry.split(3).parts[0]], geometry.split(3).labels)
    views = [Views(6, flip=0)] * 2
    few = Target(geometry.Halves(), three, three, num_classes=5, view=target.view, device="cpu", seed=0, augment=views)
    found = dict(ContrastStatistics((2, 100), 64.0, 0.2, 2 * BLOCK + 1, 70, 2).run(target))
    return {**found, **dict(NPC((2, 9, 33), batches=2).run(target)), "few": dict(NPC((3,), batches=1).run(few))}


def of_losses() -> dict[str, Any]:
    """The other rank has no negatives for the loss."""
    nodes = load(["loss=infonce", "temperature.tau=1"])
    objective = Objective(nodes["loss"], nodes["temperature"], batch_size=4)
    pairs = Pairs(information=2.0, dimensions=3)
    target = Target(plain.Net(), pairs, pairs, num_classes=0, view=torch.relu, device="cpu", seed=0)
    found = dict(MutualInformation(objective, hidden=8, outputs=4, steps=3, evaluations=2).run(target))
    return found | dict(GradientWeight(objective, k=4).run(target))


def check(found: Any, expected: Any, name: str) -> None:
    if isinstance(expected, Histogram):
        assert found.counts == expected.counts and found.edges == pytest.approx(expected.edges, rel=1e-6), name
    elif isinstance(expected, Distribution):
        assert found.values["test"] == pytest.approx(expected.values["test"], rel=1e-6), name
    elif isinstance(expected, dict) and all(isinstance(value, float) for value in expected.values()):
        assert found == pytest.approx(expected, rel=1e-6), name
    elif isinstance(expected, dict):
        for part, value in expected.items():
            check(found[part], value, f"{name}: {part}")
    elif isinstance(expected, list):
        for part, value in zip(found, expected, strict=True):
            check(part, value, name)
    elif not isinstance(expected, Artifact):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)


def test_two_ranks_measure_the_same_as_one() -> None:
    alone, ranks = measured(), on_two_ranks(measured)
    assert [alone.pop("images"), *(found.pop("images") for found in ranks)] == [34, 11 + 7, 10 + 6]
    for found in ranks:
        assert found.keys() == alone.keys() and len(alone) > 40
        for name, value in alone.items():
            check(found[name], value, name)
    for split in ("train", "test"):  # both ranks have the same bits
        torch.testing.assert_close(ranks[0][split], ranks[1][split], rtol=0, atol=0)
