"""kNN among the stored features of a method's memory, as in NPID's own curve during training.

Only the test images pass through the network; the training images do not.
"""

from collections.abc import Iterator

from ssl_bench.distributed import rank, world
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.accuracy import of_all_ranks, top_accuracies
from ssl_bench.evaluate.knn import check_votes, knn_predict
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.objective.memory import Memory


class MemoryKNN(Evaluator):
    """Accuracy of kNN: projections of the test images among the stored features of the labelled training images.

    Yields top1 and, with more than five classes, top5; nothing for raw pixels. At initialisation the stored features
    are random.

    Args:
        k, temperature: of the votes, as in :class:`ssl_bench.evaluate.knn.KNN`.

    Raises:
        ConfigError: (check, run) the network has no memory, or k exceeds the labelled images.
    """

    needs_labels = True

    def __init__(self, k: int, temperature: float) -> None:
        self.k, self.temperature = k, temperature

    def check(self, target: Target) -> None:
        if not isinstance(getattr(target.network, "memory", None), Memory):
            raise ConfigError("the method has no memory of the images: set framework to npid or npid_cld")
        assert target.pretrain is not None
        bank_labels = target.pretrain().labels
        if bank_labels.ndim > 1:
            raise ConfigError("training images have more than one label: set dataset to one with a single label each")
        target.labels("test")
        check_votes(bank_labels[bank_labels >= 0], self.k, self.temperature, target.num_classes)

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        if target.network is None:
            return
        self.check(target)
        memory: Memory = target.network.get_submodule("memory")  # type: ignore[assignment]
        assert target.pretrain is not None
        bank_labels, labels = target.pretrain().labels.to(target.device), target.labels("test")
        labelled = bank_labels >= 0
        ranking = knn_predict(
            target.features("test")["projection"][rank() :: world()],
            memory.vectors[labelled].float(),
            bank_labels[labelled],
            k=self.k,
            temperature=self.temperature,
            num_classes=target.num_classes,
        )
        yield from top_accuracies(of_all_ranks(ranking, len(labels)), labels, target.num_classes)
