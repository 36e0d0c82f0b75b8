"""Non-parametric instance discrimination: every image a class of its own, told by what was last seen of it (Wu et al.
2018, arXiv 1805.01978; official code zhirongw/lemniscate.pytorch).

With f = unit(head(backbone(view))) and a memory of one unit vector v_i for each of N images,

    softmax   -log exp(f . v_i / tau) / sum_j exp(f . v_j / tau)
    NCE       -log P_i / (P_i + m/N) - sum_noise log (m/N) / (P_j + m/N),   P_j = exp(f . v_j / tau) / Z

m images of noise are drawn uniformly, and Z = N mean exp(f . v / tau) over those of the first batch, for good. After
the step v_i <- unit(v_i / 2 + f / 2); the gradient is that of f alone.

V views   B images on this rank   W ranks   N images   D width
"""

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import gather, global_mean, rank, world
from ssl_bench.methods.base import Method, Outputs
from ssl_bench.networks.encoder import Encoder, full_precision
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.loss import softplus
from ssl_bench.objective.memory import Memory
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.objective.shards import memory
from ssl_bench.objective.temperature import Fixed


class Remembering(Encoder):
    """An encoder with what it found of the training images when they last came."""

    def __init__(self, backbone: nn.Module, head: nn.Module, memory: Memory) -> None:
        super().__init__(backbone, head)
        self.memory = memory


class NPID(Method):
    """One view an image, against the memory.

    Args:
        backbone, head: the networks.
        instances: N.
        tau: of the softmax, fixed.
        noise: m; 0: the softmax over all images instead.
        memory_momentum: the share of the old vector when a new one comes.
        sharded: the memory is spread over the ranks (true), whole on each (false), or spread where it is larger than
            2 GiB (auto). The same result.
        seed: of the first vectors and of the noise, which are the same on any number of ranks.
        norm: batch statistics over all ranks (``sync``) or each rank's own (``local``).
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
    ) -> None:
        super().__init__()
        if noise < 0:
            raise ValueError(f"noise={noise} must be 0, for the softmax, or a number of images")
        if not 0 <= memory_momentum <= 1:
            raise ValueError(f"memory_momentum={memory_momentum} must be in [0, 1]")
        self.instances, self.noise, self.norm = instances, noise, norm
        self.encoder = Remembering(backbone, head, memory(instances, head.num_features, memory_momentum, seed, sharded))
        self.temperature, self.draws = Fixed(tau), StepGenerator("noise", seed)
        self.register_buffer("log_z", torch.zeros(()))

    def trained(self, batch: Batch) -> Outputs:
        return {"z": torch.stack([self.encoder(view)["projection"] for view in batch.views[: self.views]])}

    def objective(
        self, outputs: Outputs, batch: Batch, progress: float, diagnostics: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast(batch.ids.device.type, enabled=False):
            f = normalize(full_precision(outputs["z"]), dim=-1)  # [V, B, D]
            q, tau = f.flatten(0, 1), self.temperature.tau.to(f.dtype)
            own = (f * self._memory.rows(batch.ids)).sum(-1).flatten()  # [V B]
            each = self._nce(q, own, tau) if self.noise else self._memory.lse(q, tau) - own / tau  # [V B]
            self._last = batch.ids, f.detach()
        found = {"tau": tau}
        if diagnostics:
            found["positive"] = global_mean(own.detach())
            if not self.noise:  # 1 - the probability of the right image, which InfoNCE calls so too
                found["npc/mean"] = global_mean(-torch.expm1(-each.detach()))
        return each.mean(), found

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        ids, f = self._last
        self._memory.update(ids, f)
        if self.noise:
            self.log_z.copy_(self._log_z)
        super().after_step(progress)

    def facts(self, images: int) -> dict[str, Any]:
        return {"negatives_per_anchor": self.noise or self.instances - 1}

    @property
    def _memory(self) -> Memory:
        return self.encoder.memory

    def _nce(self, q: Tensor, own: Tensor, tau: Tensor) -> Tensor:
        """[R] of R = V B queries."""
        noise = self._memory.cosines(q, self._drawn(len(q)))  # [R, m]
        self._log_z = self.log_z
        if self.draws.step == 0:  # over all ranks, by their logarithms
            logits = torch.cat([own[:, None], noise], 1).detach() / tau
            sums = gather(logits.logsumexp((0, 1))[None]).logsumexp(0)
            self._log_z = sums + math.log(self.instances / (logits.numel() * world()))
        shift = self._log_z + math.log(self.noise / self.instances)  # log P + log(N / m) = s / tau - shift
        return softplus(shift - own / tau) + softplus(noise / tau - shift).sum(1)

    def _drawn(self, queries: int) -> Tensor:
        """The noise of each query, [V B, m] ids: drawn for the global batch and cut."""
        share, device = queries // self.views, self.log_z.device
        mine = slice(rank() * share, (rank() + 1) * share)
        shape = (share * world(), self.noise)
        every = [
            torch.randint(self.instances, shape, generator=self.draws.generator(device, view), device=device)[mine]
            for view in range(self.views)
        ]
        return torch.cat(every)
