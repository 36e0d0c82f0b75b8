"""kNN in what a method remembers of its training images, instead of in features that are made anew (NPID's own curve
during training): only the test images go through the network.
"""

from collections.abc import Iterator

from ssl_bench.distributed import rank, world
from ssl_bench.errors import RunError
from ssl_bench.evaluate.knn import check_votes, knn_predict, scores
from ssl_bench.evaluate.target import Target
from ssl_bench.objective.memory import Memory
from ssl_bench.objective.shards import Shards


class MemoryKNN:
    """Accuracy of the projections of the test images among the remembered vectors of the labelled training images.

    Yields top1 and, with more than five classes, top5; nothing for raw pixels. At initialisation vectors are random.
    Raises RunError for a memory that is spread over ranks, ValueError for none and if k exceeds the labelled images.

    Args:
        k, temperature: of the votes, as in :class:`ssl_bench.evaluate.knn.KNN`.
    """

    def __init__(self, k: int, temperature: float) -> None:
        self.k, self.temperature = k, temperature

    def check(self, target: Target) -> None:
        if not isinstance(getattr(target.network, "memory", None), Memory):
            raise ValueError("the framework remembers no images: set framework to npid or npid_cld")
        assert target.pretrain is not None
        known = target.pretrain().labels
        if known.ndim > 1:
            raise ValueError("each training image needs one label: set dataset to one that has it")
        target.labels("test")
        check_votes(known[known >= 0], self.k, self.temperature, target.num_classes)

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        if target.network is None:
            return
        self.check(target)
        memory: Memory = target.network.get_submodule("memory")  # type: ignore[assignment]
        if isinstance(memory, Shards):
            raise RunError("evaluate=knn_memory needs the memory whole on every rank: set framework.sharded=false")
        assert target.pretrain is not None
        known, labels = target.pretrain().labels.to(target.device), target.labels("test")
        labelled = known >= 0
        mine = slice(rank(), None, world())
        ranking = knn_predict(
            target.features("test")["projection"][mine],
            memory.vectors[labelled].float(),
            known[labelled],
            k=self.k,
            temperature=self.temperature,
            num_classes=target.num_classes,
        )
        found = scores(ranking[:, :5] == labels[mine, None], labels, mine, target.num_classes)
        yield from ((name, value) for name, value in found if "class" not in name)
