"""Parametric instance classification: every image is a class of its own.

    L = mean over the views and images of  -log softmax(W head(backbone(view)))_i,   i the image, W [images, D] learned

Dosovitskiy et al., Discriminative Unsupervised Feature Learning with Exemplar Convolutional Neural Networks (arXiv
1406.6909), with a class for each training image. W has a row for every image: every rank has all of it, and its
gradient is averaged over the ranks like that of any other weight.

Shapes: V views; B images on this rank; D width.
"""

from typing import Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import gather
from ssl_bench.methods.base import Method, Outputs, StepResult
from ssl_bench.networks.encoder import Encoder, full_precision
from ssl_bench.networks.heads import MLP
from ssl_bench.networks.norm import joint_forward
from ssl_bench.objective.schedule import Progress


class Exemplar(Method):
    """Cross-entropy of both views with the index of the image.

    Args:
        instances: images to pre-train on.
        norm, groups: of the batch statistics, as in :class:`Method`.
    """

    def __init__(
        self, backbone: nn.Module, head: MLP, instances: int, norm: Literal["sync", "local"], groups: int = 1
    ) -> None:
        super().__init__()
        self.encoder, self.norm, self.groups = Encoder(backbone, head), norm, groups
        self.classifier = nn.Linear(head.num_features, instances, bias=False)

    def trained_outputs(self, batch: Batch) -> Outputs:
        views = batch.views[:2]
        return {"z": joint_forward(lambda x: self.encoder(x)["projection"], views, self.groups)}

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        with torch.autocast(batch.ids.device.type, enabled=False):
            logits = self.classifier(full_precision(outputs["z"]).flatten(0, 1))  # [V B, images]
            ids = batch.ids.repeat(len(outputs["z"]))  # [V B]
            loss = cross_entropy(logits, ids)
        if not diagnostics:
            return StepResult(loss, {})
        correct = (logits.argmax(1) == ids).to(loss.dtype).mean()
        return StepResult(loss, {"train/top1": gather(correct[None]).mean()})
