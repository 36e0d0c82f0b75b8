"""Training with labels, on the same views: the control that self-supervised encoders are measured against.

L = mean over the views and the labelled images of -log softmax(head(backbone(view)))_label
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ssl_bench.distributed import gather
from ssl_bench.models.siamese import Encoder
from ssl_bench.objective.contrast import Batch
from ssl_bench.objective.method import Method, Outputs


class Supervised(Method):
    """Cross-entropy of both views; an image without a label (-1) adds nothing.

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
        labels = batch.labels.repeat(len(logits))  # [V B]
        flat = logits.flatten(0, 1)
        # The mean is over the labelled images of all ranks, of which each may have another number.
        known = gather((labels >= 0).to(flat.dtype).mean()[None]).mean().clamp(min=1 / len(labels))
        loss = cross_entropy(flat, labels, ignore_index=-1, reduction="sum") / (len(labels) * known)
        if not diagnostics:
            return loss, {}
        right = (flat.argmax(1) == labels).to(flat.dtype).mean()
        return loss, {"train/top1": gather(right[None]).mean() / known}
