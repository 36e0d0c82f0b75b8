"""Measure the network of a training every few epochs, at little cost, and warn if something goes wrong."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F

from ssl_bench.data.batch import Loader
from ssl_bench.data.dataset import Probe
from ssl_bench.distributed import world
from ssl_bench.evaluate.geometry import effective_rank
from ssl_bench.evaluate.knn import leave_one_out
from ssl_bench.evaluate.metric import NOT_HELPED
from ssl_bench.record import evaluations
from ssl_bench.seeding import rng_state, set_rng_state, stream
from ssl_bench.training.build import Run, target
from ssl_bench.training.precision import Precision
from ssl_bench.training.state import TrainingState

log = logging.getLogger("ssl_bench")

MOST_IMAGES = 2000  # in the sample of a measurement
# For each image of a measurement so many images are trained on before the next one. A measurement passes an image
# forward once, a step at least once and also backward: measuring takes less than 1 / SHARE of the time.
SHARE = 20
NEIGHBOURS, TEMPERATURE = 20, 0.1
LEAST_EPOCHS = 3  # before any warning
LEAST_STEPS = 100  # before a warning about the loss
COLLAPSED = 0.995  # mean cosine: a BYOL without its predictor has 0.999, NPID after its first epochs 0.94


class Watch:
    """Measures a sample of the training images every ``evaluate.watch`` epochs, on all ranks together."""

    def __init__(self, run: Run, state: TrainingState, loader: Loader, precision: Precision) -> None:
        self.run, self.state, self.images, self.precision = run, state, loader.images, precision
        self._detector, self._warned = CollapseDetector(run.recipe.warmup_epochs), False
        self.every = run.config["evaluate"]["watch"] * loader.steps_per_epoch
        self.log_every = run.config["log_every"]
        self.images_at_once = (run.config["batch_size"]["chunk"] or loader.batch_size) // world()
        # A sample of labelled images, if there are any: the same each time.
        labels = self.images.labels.cpu()
        labelled = (labels >= 0).nonzero().flatten() if labels.ndim == 1 else labels.new_zeros(0)
        self.labelled = len(labelled) > 0
        ids = labelled if self.labelled else torch.arange(len(labels))
        generator = torch.Generator().manual_seed(stream("watch", run.config["seed"]))
        count = min(MOST_IMAGES, self.every * loader.batch_size // SHARE)
        self.ids = ids[torch.randperm(len(ids), generator=generator)[:count]].to(self.images.labels.device)

    def measure_if_due(self, step: int, row: dict[str, Any]) -> bool:
        """Add a measurement to the row of metrics at ``step`` if it is the first after ``evaluate.watch`` epochs.

        The first row in which something is wrong gives a warning.

        Returns:
            Whether it was due.
        """
        former = (step - 1) // self.log_every * self.log_every
        due = len(self.ids) > 1 and step // self.every > former // self.every
        if due:
            row |= self._measure()
        sentence = self._detector.add(row | {"step": step})
        if sentence and not self._warned:
            log.warning("%s", sentence)
            self._warned = True
        return due

    def _measure(self) -> dict[str, float]:
        """The effective rank of the sample's projections and, of labelled images, kNN in the backbone's features.

        The network is the trained one, as in the evaluation at the end; a momentum network is many epochs behind it.
        The random state is restored.
        """
        random_state, dataset, device = rng_state(), self.run.dataset, self.state.device
        classes, encoder = dataset.num_classes, self.state.method.encoder
        sample = target(self.run, encoder, Probe(self.images, self.images, classes), device, self.precision, dataset)
        sample.batch_size = min(sample.batch_size, self.images_at_once)  # no more memory than a step
        # A compiled network would be compiled again. The stance imports the compiler, which takes seconds.
        with torch.compiler.set_stance("force_eager") if self.run.config["compile"] else nullcontext():
            outputs = sample.outputs(self.images, self.ids)
        projections, images = outputs["projection"], len(self.ids)
        total = F.normalize(projections.double(), dim=1).sum(0)
        values = {
            "watch/effective_rank": effective_rank(projections),
            "watch/mean_cosine": (float(total @ total) - images) / (images * (images - 1)),  # of different images
        }
        if self.labelled:
            labels = self.images.labels[self.ids].to(device)
            k = max(1, min(NEIGHBOURS, images // (2 * classes)))
            accuracy = leave_one_out(outputs["backbone"], labels, k=k, temperature=TEMPERATURE, num_classes=classes)
            values["watch/knn_top1"] = accuracy
        set_rng_state(random_state)
        return values


class CollapseDetector:
    """Detects a collapse of the network, or a loss that stays at chance, in the rows of metrics of a training.

    Args:
        warmup_epochs: epochs of the learning rate's warm-up, in which it warns of nothing.
    """

    def __init__(self, warmup_epochs: float) -> None:
        self._patience = max(LEAST_EPOCHS, warmup_epochs)
        self._former: str | None = None  # at the last measurement
        self._bounds = list[float]()  # on the information, since the last measurement

    def add(self, row: Mapping[str, Any]) -> str | None:
        """Add the next row; return a warning if the row has a measurement in which something is wrong, else None.

        Where no bound on the information is logged (no negatives), the measurement before must have been wrong, too:
        NPID begins with nearly one projection.
        """
        if "information" in row:
            self._bounds.append(row["information"])
        if not {"epoch", "watch/mean_cosine", "watch/effective_rank"} <= row.keys():
            return None
        former, self._former = self._former, self._fault(row)
        certain, self._bounds = former is not None or len(self._bounds) > 0, []
        return self._former if certain else None

    def _fault(self, row: Mapping[str, Any]) -> str | None:
        if row["epoch"] < self._patience:
            return None
        bounds = self._bounds[len(self._bounds) // 2 :]
        when, cosine = f"epoch {row['epoch']:.3g}", row["watch/mean_cosine"]
        if cosine > COLLAPSED:
            rank = row["watch/effective_rank"]
            what = f"all images have nearly one projection (mean cosine {cosine:.4f}, effective rank {rank:.1f})"
            remedy = "set optimizer.lr or optimizer.weight_decay lower, or take negatives, or a predictor and momentum"
            return f"collapse at {when}: {what}: {remedy}"
        if bounds and row["step"] >= LEAST_STEPS and not mean(bounds) > 0:
            chance = "is no lower than if all images looked alike, log(K + 1) of InfoNCE"
            remedy = "train longer, or set optimizer.lr lower if the loss is unsteady, higher if it stands still"
            return f"the loss at {when} {chance}: {remedy}"
        return None


def warnings_of(rows: Iterable[Mapping[str, Any]], results: Mapping[str, Any], warmup_epochs: float) -> list[str]:
    """Warnings of a trained run: the last one of its training, and one for each metric worse than at initialisation.

    An accuracy counts as worse where the difference is larger than the choice of the test images explains (95%).

    Args:
        rows: rows of ``metrics.jsonl``.
        results: content of ``results.json``.
    """
    detector = CollapseDetector(warmup_epochs)
    sentences = [sentence for row in rows if (sentence := detector.add(row))][-1:]
    metrics, declared = results["metrics"], results.get("units")
    for name in evaluations.main(metrics, declared):
        metric, value = evaluations.metric_of(name, declared), metrics[name]
        initial = metrics.get(name.replace("/", "_init/", 1), value)
        counts = [of["images"] for entry in results.get("evaluations", ()) if (of := entry.get("hits", {}).get(name))]
        if metric.sign * (value - initial) < -metric.half_width(value, initial, *counts[:1]):
            than = f"{'below' if value < initial else 'above'} {metric.text(initial)} before the training"
            sentences.append(f"{name} is {metric.text(value)}, {than}: {NOT_HELPED}")
    return sentences
