"""kNN in what a method remembers of its training images, instead of in features that are made anew (NPID's own curve
during training): only the test images go through the network.
"""

from collections.abc import Iterator

from ssl_bench.distributed import rank, world
from ssl_bench.errors import RunError
from ssl_bench.evaluate.knn import knn_predict, scores
from ssl_bench.evaluate.subject import Subject
from ssl_bench.objective.shards import Shards


class MemoryKNN:
    """Accuracy of the projections of the test images among the remembered vectors of the labelled training images.

    Yields top1 and, with more than five classes, top5; nothing for raw pixels. At initialisation vectors are random.
    Raises RunError for a memory that is spread over ranks, ValueError if k exceeds the labelled images.

    Args:
        k, temperature: of the votes, as in :class:`ssl_bench.evaluate.knn.KNN`.
    """

    def __init__(self, k: int, temperature: float) -> None:
        self.k, self.temperature = k, temperature

    def run(self, subject: Subject) -> Iterator[tuple[str, float]]:
        if subject.network is None:
            return
        memory = subject.network.get_submodule("memory")
        if isinstance(memory, Shards):
            raise RunError("evaluate=knn_memory needs the memory whole on every rank: set framework.sharded=false")
        assert subject.pretrain is not None
        known, labels = subject.pretrain().labels.to(subject.device), subject.labels("test")
        if known.ndim > 1:
            raise RunError(
                "evaluate=knn_memory needs one label for each training image: set dataset to one that has it"
            )
        labelled = known >= 0
        mine = slice(rank(), None, world())
        ranking = knn_predict(
            subject.features("test")["projection"][mine],
            memory.vectors[labelled].float(),  # type: ignore[index, operator]
            known[labelled],
            k=self.k,
            temperature=self.temperature,
            num_classes=subject.num_classes,
        )
        found = scores(ranking[:, :5] == labels[mine, None], labels, mine, subject.num_classes)
        yield from ((name, value) for name, value in found if "class" not in name)
