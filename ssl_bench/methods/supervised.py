"""Training with labels, on the same views: the control that self-supervised encoders are measured against.

L = mean over the views and the labelled images of -log softmax(head(backbone(view)))_label

An image of several things, of which the labels say how often each class is there, has the mean over these things: the
cross-entropy against their frequencies. The paper that trains on such images (Intriguing Properties of Contrastive
Losses, arXiv 2011.02803, section 3.1) leaves the target open.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import gather, world
from ssl_bench.methods.base import Method, Outputs
from ssl_bench.networks.encoder import Encoder


class Supervised(Method):
    """Cross-entropy of both views; an image without a label (-1, or counts that are all 0) adds nothing.

    Args:
        backbone: the network that is judged.
        head: the classifier, as wide as there are classes.
        norm: batch statistics over all ranks (``sync``) or each rank's own (``local``).
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, norm: Literal["sync", "local"] = "sync") -> None:
        super().__init__()
        self.encoder, self.norm = Encoder(backbone, head), norm

    def trained(self, batch: Batch) -> Outputs:
        views = batch.views[:2]
        return {"logits": self.encoder(torch.cat(views))["projection"].unflatten(0, (len(views), -1))}

    def objective(
        self, outputs: Outputs, batch: Batch, progress: float, diagnostics: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits = outputs["logits"].double() if outputs["logits"].dtype == torch.float64 else outputs["logits"].float()
        flat = logits.flatten(0, 1)  # [V B, C]
        counts = batch.labels if batch.labels.ndim == 2 else None  # [B, C]
        labelled = batch.labels >= 0 if counts is None else counts.sum(1) > 0  # [B]
        # The mean is over the labelled images of all ranks, of which each may have another number.
        known = gather(labelled.to(flat.dtype).mean()[None]).mean().clamp(min=1 / (len(flat) * world()))
        if counts is None:
            labels = batch.labels.repeat(len(logits))  # [V B]
            loss = cross_entropy(flat, labels, ignore_index=-1, reduction="sum")
        else:
            frequencies = counts.to(flat.dtype) / counts.sum(1, keepdim=True).clamp(min=1)
            loss = cross_entropy(flat, frequencies.repeat(len(logits), 1), reduction="sum")
        loss = loss / (len(flat) * known)
        if not diagnostics:
            return loss, {}
        best = logits.argmax(2)  # [V, B]
        right = best == batch.labels if counts is None else counts.gather(1, best.T).T > 0  # any of the classes
        return loss, {"train/top1": gather(right.to(flat.dtype).mean()[None]).mean() / known}
