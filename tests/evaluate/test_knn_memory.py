"""kNN in a memory: the votes equal those of a plain search without unlabelled images."""

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.data.source import Images
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.evaluate.knn import knn_predict
from ssl_bench.evaluate.knn_memory import MemoryKNN
from ssl_bench.evaluate.target import Target
from ssl_bench.objective.memory import Memory
from ssl_bench.training.parts import Parts
from tests.composed import load


class Network(nn.Module):
    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"backbone": x.flatten(1), "projection": x.flatten(1)[:, :4] - 0.5}


def images(n: int, labels: Tensor, seed: int) -> Images:
    generator = torch.Generator().manual_seed(seed)
    return Images([torch.randint(0, 256, (n, 1, 3, 3), generator=generator, dtype=torch.uint8)], labels)


def make_target(network: nn.Module | None, training_labels: Tensor) -> Target:
    return Target(
        network,
        images(5, torch.arange(5) % 3, 1),
        images(40, torch.arange(40) % 3, 2),
        num_classes=3,
        view=lambda x: x.float() / 255,
        device="cpu",
        seed=0,
        pretrain=lambda: images(len(training_labels), training_labels, 3),
    )


def test_only_labelled_images_vote() -> None:
    memory, labels = Memory(60, 4, 0.5, 0), torch.arange(60) % 4 - 1  # every fourth image has no label
    target = make_target(Network(memory), labels)
    results = dict(MemoryKNN(7, 0.1).run(target))
    queries, known = target.features("test")["projection"], labels >= 0
    votes = knn_predict(queries, memory.vectors[known], labels[known], k=7, temperature=0.1, num_classes=3)
    assert results == {"top1": pytest.approx(float((votes[:, 0] == torch.arange(40) % 3).double().mean()))}
    assert list(MemoryKNN(7, 0.1).run(make_target(None, labels))) == []
    with pytest.raises(InvalidValue, match=r"^k=46: set k to a number from 1 to 45, the number of labelled"):
        list(MemoryKNN(46, 0.1).run(target))


def test_methods_without_a_usable_memory_are_refused() -> None:
    labels = torch.zeros(60, dtype=torch.int64)
    with pytest.raises(ConfigError, match="training images have more than one label: set dataset"):
        list(MemoryKNN(7, 0.1).run(make_target(Network(Memory(60, 4, 0.5, 0)), labels[:, None].expand(-1, 3))))
    with pytest.raises(ConfigError, match=r"^evaluate\.knn_memory: the method has no memory of the images: set framew"):
        Parts(load(["evaluate=knn_memory"])).validate(1)
    with pytest.raises(ConfigError, match=r"^evaluate\.knn_memory\.k=1348: set evaluate\.knn_memory\.k to .* to 1347"):
        Parts(load(["evaluate=knn_memory", "framework=npid", "evaluate.knn_memory.k=1348"])).validate(1)
