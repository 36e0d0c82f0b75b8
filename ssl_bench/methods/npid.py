"""Non-parametric instance discrimination: every image is a class of its own, classified against stored features (Wu et
al. 2018, arXiv 1805.01978; official code zhirongw/lemniscate.pytorch).

With f = unit(head(backbone(view))) and a memory of one unit vector v_i for each of N images,

    softmax   -log exp(f . v_i / tau) / sum_j exp(f . v_j / tau)
    NCE       -log P_i / (P_i + m/N) - sum_noise log (m/N) / (P_j + m/N),   P_j = exp(f . v_j / tau) / Z

The noise is m images, drawn uniformly. Z = N mean exp(f . v / tau) over the images and the noise of the first batch; it
is then fixed. After the step v_i <- unit(v_i / 2 + f / 2); the gradient is that of f alone.

Shapes: V views; B images on this rank; W ranks; N images; D width; R = V B queries.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import gather, global_mean, rank, world
from ssl_bench.errors import require
from ssl_bench.methods.base import Method, Outputs, StepResult
from ssl_bench.networks.encoder import Encoder, full_precision, unit
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.loss import softplus
from ssl_bench.objective.memory import Memory
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.objective.schedule import Progress
from ssl_bench.objective.shards import memory
from ssl_bench.objective.temperature import Fixed


class Remembering(Encoder):
    """An encoder with the memory of the training images' last features."""

    def __init__(self, backbone: nn.Module, head: nn.Module, memory: Memory) -> None:
        super().__init__(backbone, head)
        self.memory = memory


@dataclass(frozen=True)
class Kept:
    """The values of a batch that update needs."""

    ids: Tensor  # [B]
    f: Tensor  # [V, B, D]
    log_z: Tensor  # []


class NPID(Method):
    """One view of each image, against the memory.

    Args:
        backbone, head: the networks.
        instances: N.
        tau: of the softmax, fixed.
        noise: m; 0: the softmax over all images instead.
        memory_momentum: the share of the old vector in the new one, in [0, 1].
        sharded: the memory is spread over the ranks (true), whole on each (false), or spread if it is larger than 2 GiB
            (auto). The result is the same.
        seed: of the first vectors and of the noise, which are the same on any number of ranks.
        norm, groups: of the batch statistics, as in :class:`Method`.

    Raises:
        InvalidValue: a negative noise, a temperature that is not positive, or a momentum outside [0, 1].
    """

    views: ClassVar[int] = 1
    encoder: Remembering
    log_z: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        head: MLP,
        instances: int,
        tau: float,
        noise: int,
        memory_momentum: float,
        sharded: bool | Literal["auto"],
        seed: int,
        norm: Literal["sync", "local"],
        groups: int = 1,
    ) -> None:
        super().__init__()
        require(0 <= noise <= 2**20, "noise", noise, f"a number of images up to {2**20}, or to 0 for the softmax")
        require(0 <= memory_momentum <= 1, "memory_momentum", memory_momentum, "a number from 0 to 1")
        self.instances, self.noise, self.norm, self.groups = instances, noise, norm, groups
        self.encoder = Remembering(backbone, head, memory(instances, head.num_features, memory_momentum, seed, sharded))
        self.temperature, self.draws = Fixed(tau), StepGenerator("noise", seed)
        self.register_buffer("log_z", torch.zeros(()))

    def trained_outputs(self, batch: Batch) -> Outputs:
        return {"z": torch.stack([self.encoder(view)["projection"] for view in batch.views[: self.views]])}

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        with torch.autocast(batch.ids.device.type, enabled=False):
            f = unit(full_precision(outputs["z"]))  # [V, B, D]
            q, tau, log_z = f.flatten(0, 1), self.temperature.tau.to(f.dtype), self.log_z
            positive = (f * self._memory.rows(batch.ids)).sum(-1).flatten()  # [R]
            if self.noise:
                noise = self._memory.cosines(q, self._drawn(len(q)))  # [R, m]
                if self.draws.step == 0:
                    log_z = self._first_log_z(positive, noise, tau)
                losses = self._nce(positive, noise, tau, log_z)  # [R]
            else:
                losses = self._memory.lse(q, tau) - positive / tau
        values = {"tau": tau}
        if diagnostics:
            values["positive"] = global_mean(positive.detach())
            if not self.noise:  # 1 - the probability of the image, the same quantity as with InfoNCE
                values["npc/mean"] = global_mean(-torch.expm1(-losses.detach()))
        return StepResult(losses.mean(), values, Kept(batch.ids, f.detach(), log_z))

    @torch.no_grad()
    def update(self, kept: Kept, progress: float) -> None:
        self._memory.update(kept.ids, kept.f)
        self.log_z.copy_(kept.log_z)
        super().update(kept, progress)

    def facts(self, images: int) -> dict[str, Any]:
        return {"negatives_per_anchor": self.noise or self.instances - 1}

    @property
    def _memory(self) -> Memory:
        return self.encoder.memory

    def _first_log_z(self, positive: Tensor, noise: Tensor, tau: Tensor) -> Tensor:
        """log Z [] from the cosines of the first batch of all ranks, ``positive`` [R] and ``noise`` [R, m]."""
        logits = torch.cat([positive[:, None], noise], 1).detach() / tau
        total = gather(logits.logsumexp((0, 1))[None]).logsumexp(0)
        return total + math.log(self.instances / (logits.numel() * world()))

    def _nce(self, positive: Tensor, noise: Tensor, tau: Tensor, log_z: Tensor) -> Tensor:
        """The NCE loss of each query, [R]."""
        shift = log_z + math.log(self.noise / self.instances)  # log P + log(N / m) = s / tau - shift
        return softplus(shift - positive / tau) + softplus(noise / tau - shift).sum(1)

    def _drawn(self, queries: int) -> Tensor:
        """Ids of the noise images of each query, [R, m]: drawn for the global batch and cut."""
        share, device = queries // self.views, self.log_z.device
        local_rows = slice(rank() * share, (rank() + 1) * share)
        shape = (share * world(), self.noise)
        generators = [self.draws.generator(device, view) for view in range(self.views)]
        drawn = [torch.randint(self.instances, shape, generator=g, device=device) for g in generators]
        return torch.cat([ids[local_rows] for ids in drawn])
