"""k-means against plain loops, and its gradient against finite differences."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.methods.kmeans import kmeans


def points(n: int, dim: int = 3, seed: int = 0) -> Tensor:
    vectors = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(vectors, dim=1)


def naive(x: list[list[float]], clusters: int, iterations: int) -> tuple[list[int], list[list[float]]]:
    means = [list(row) for row in x[:clusters]]
    labels: list[int] = []
    for _ in range(iterations):
        labels = []
        for row in x:
            distances = [sum((a - b) ** 2 for a, b in zip(row, mean, strict=True)) for mean in means]
            labels.append(distances.index(min(distances)))
        for c in range(clusters):
            members = [row for row, label in zip(x, labels, strict=True) if label == c]
            means[c] = [sum(row[d] for row in members) / max(1, len(members)) for d in range(len(x[0]))]
    return labels, means


@pytest.mark.parametrize(("clusters", "iterations"), [(1, 1), (4, 5), (20, 3)])
def test_labels_and_means_are_those_of_a_loop(clusters: int, iterations: int) -> None:
    x = points(20)
    labels, means = kmeans(x, clusters, iterations)
    expected_labels, expected = naive(x.tolist(), clusters, iterations)
    assert labels.tolist() == expected_labels
    torch.testing.assert_close(means, torch.tensor(expected, dtype=x.dtype), rtol=1e-13, atol=1e-14)
    if clusters < 10:
        assert float(means.norm(dim=1).min()) < 0.999  # means are not normalised


def test_a_cluster_without_points_is_at_the_origin() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6]])  # of two equal means, the first takes the points near both
    labels, means = kmeans(x, 2, 1)
    assert labels.tolist() == [0, 0, 0] and means[1].tolist() == [0.0, 0.0]
    torch.testing.assert_close(means[0], x.mean(0))


def test_the_gradient_goes_through_the_last_means() -> None:
    assert torch.autograd.gradcheck(lambda x: kmeans(x, 4, 5)[1], points(12).requires_grad_())
