"""Non-parametric instance discrimination: a view must find the stored vector of its own image (Wu et al. 2018, arXiv
1805.01978; official code zhirongw/lemniscate.pytorch).

With f = unit(head(backbone(view))) and a memory of one unit vector v_i for each image i, the anchor is f and its
positive v_i, which has no gradient. After the step v_i <- unit(v_i / 2 + f / 2). With InfoNCE and the vectors of all
other images as negatives (``negatives=memory_bank``, which stores the same f) this is the paper's softmax over all
images; with ``loss=nce`` and some of them it is its noise-contrastive estimation.

Shapes: V views; B images on this rank; D width.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.methods.base import Framework, Outputs, Term
from ssl_bench.networks.encoder import Encoder, full_precision, unit
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Embedded
from ssl_bench.objective.memory import Memory


class EncoderWithMemory(Encoder):
    """An encoder with the memory of the training images' last features."""

    def __init__(self, backbone: nn.Module, head: nn.Module, memory: Memory) -> None:
        super().__init__(backbone, head)
        self.memory = memory


class NPID(Framework):
    """One view of each image, whose positive is the image's vector in the memory.

    For negatives that tell two views apart, the stored vectors are the positive's view and the new ones the anchor's.

    Args:
        instances: images to pre-train on.
        memory_momentum: the share of the old vector in the new one, in [0, 1].
        seed: seed of the first vectors, which are the same on any number of ranks.
        norm, groups: of the batch statistics, as in :class:`ssl_bench.methods.base.Method`.
    """

    views = 1
    gives = frozenset({"both_views"})
    encoder: EncoderWithMemory

    def __init__(
        self,
        backbone: nn.Module,
        head: MLP,
        instances: int,
        memory_momentum: float,
        seed: int,
        norm: Literal["sync", "local"],
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.norm, self.groups = norm, groups
        self.encoder = EncoderWithMemory(backbone, head, Memory(instances, head.num_features, memory_momentum, seed))

    def trained_outputs(self, batch: Batch) -> Outputs:
        return {"z": torch.stack([self.encoder(view)["projection"] for view in batch.views[: self.views]])}

    def embed(self, outputs: Outputs, ids: Tensor) -> list[Term]:
        z = full_precision(outputs["z"])  # [V, B, D]
        f = unit(z)
        return [Term(Embedded(f, self.encoder.memory.rows(ids).expand_as(f), z, ids, anchor_keys=f))]

    def update(self, e: Embedded, progress: float) -> None:
        self.encoder.memory.update(e.ids, e.q)
