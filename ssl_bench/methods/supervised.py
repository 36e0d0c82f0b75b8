"""Training with labels, on the same views: the control that self-supervised encoders are compared with.

L = mean over the views and the labelled images of -log softmax(head(backbone(view)))_label

If an image shows several objects, its label is a count for each class, and the loss is the mean over the objects: the
cross-entropy against the frequencies of the classes. The paper that trains on such images (Intriguing Properties of
Contrastive Losses, arXiv 2011.02803, section 3.1) leaves the target open.

Shapes: V views; B images on this rank; C classes.
"""

from typing import Literal

from torch import nn
from torch.nn.functional import cross_entropy

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import gather, world
from ssl_bench.methods.base import Method, Outputs, StepResult
from ssl_bench.networks.encoder import Encoder, full_precision
from ssl_bench.networks.norm import joint_forward
from ssl_bench.objective.schedule import Progress


class Supervised(Method):
    """Cross-entropy of both views; images without a label (-1, or counts that are all 0) do not count.

    Args:
        backbone: the network that is evaluated.
        head: the classifier, with an output for each class.
        norm, groups: of the batch statistics, as in :class:`Method`.
    """

    def __init__(
        self, backbone: nn.Module, head: nn.Module, norm: Literal["sync", "local"] = "sync", groups: int = 1
    ) -> None:
        super().__init__()
        self.encoder, self.norm, self.groups = Encoder(backbone, head), norm, groups

    def trained_outputs(self, batch: Batch) -> Outputs:
        views = batch.views[:2]
        return {"logits": joint_forward(lambda x: self.encoder(x)["projection"], views, self.groups)}

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        logits = full_precision(outputs["logits"])  # [V, B, C]
        flat = logits.flatten(0, 1)  # [V B, C]
        counts = batch.labels if batch.labels.ndim == 2 else None  # [B, C]
        labelled = batch.labels >= 0 if counts is None else counts.sum(1) > 0  # [B]
        # The mean is over the labelled images of all ranks, and their number may differ between ranks.
        labelled_share = gather(labelled.to(flat.dtype).mean()[None]).mean().clamp(min=1 / (len(flat) * world()))
        if counts is None:
            labels = batch.labels.repeat(len(logits))  # [V B]
            loss = cross_entropy(flat, labels, ignore_index=-1, reduction="sum")
        else:
            frequencies = counts.to(flat.dtype) / counts.sum(1, keepdim=True).clamp(min=1)
            loss = cross_entropy(flat, frequencies.repeat(len(logits), 1), reduction="sum")
        loss = loss / (len(flat) * labelled_share)
        if not diagnostics:
            return StepResult(loss, {})
        best = logits.argmax(2)  # [V, B]
        correct = best == batch.labels if counts is None else counts.gather(1, best.T).T > 0  # any of the classes
        return StepResult(loss, {"train/top1": gather(correct.to(flat.dtype).mean()[None]).mean() / labelled_share})
