"""SwAV as a plugin: a method whose objective is its own, with prototypes in place of negatives.

    q_i = Sinkhorn(exp(z_i C / epsilon))        codes of global view i, over the global batch, without gradient
    L = mean over i in {1, 2}, views v != i, images  of  - sum_k q_ik log softmax_k(z_v C / tau)

    PYTHONPATH=scripts/examples SSL_BENCH_PLUGINS=swav ssl-bench train framework=swav augment=multicrop_cifar \\
        dataset=cifar10 'plugins=[swav]' --config-dir scripts/examples

Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments (arXiv 2006.09882), and the
authors' code, whose queue of former embeddings, for small batches, is left out.

Shapes: V views, the two global ones first; B images on this rank; D width; K prototypes.
"""

import itertools
from typing import Literal

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import all_sum, gather
from ssl_bench.errors import require
from ssl_bench.methods.base import Method, Outputs, StepResult
from ssl_bench.networks.encoder import Encoder, full_precision, unit
from ssl_bench.networks.heads import MLP
from ssl_bench.networks.norm import joint_forward
from ssl_bench.objective.schedule import Progress

__version__ = "1.0"  # part of the run_id and of every record


class SwAV(Method):
    """Every view predicts the codes of the global views of the same image.

    Args:
        prototypes: K, at least 2.
        tau: temperature of the predictions, above 0.
        epsilon: temperature of the codes, above 0; smaller: sharper codes.
        iterations: of Sinkhorn's algorithm, at least 1.
        frozen: share of the training, in [0, 1], at whose start the prototypes stay as they were drawn.
        norm, groups: of the batch statistics, as in :class:`Method`.

    Raises:
        InvalidValue: an argument outside its range.
    """

    more_views = True

    def __init__(
        self,
        backbone: nn.Module,
        head: MLP,
        prototypes: int,
        tau: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        frozen: float = 0.0,
        norm: Literal["sync", "local"] = "sync",
        groups: int = 1,
    ) -> None:
        super().__init__()
        require(prototypes >= 2, "prototypes", prototypes, "2 or more")
        require(tau > 0, "tau", tau, "a number above 0")
        require(epsilon > 0, "epsilon", epsilon, "a number above 0")
        require(iterations >= 1, "iterations", iterations, "1 or more")
        require(0 <= frozen <= 1, "frozen", frozen, "a number from 0 to 1")
        self.encoder, self.norm, self.groups = Encoder(backbone, head), norm, groups
        self.tau, self.epsilon, self.iterations, self.frozen = tau, epsilon, iterations, frozen
        self.prototypes = nn.Linear(head.num_features, prototypes, bias=False)
        self._normalise_prototypes()

    def trained_outputs(self, batch: Batch) -> Outputs:
        """``z`` [V, B, D]: one forward for all views of a size."""
        sizes = [list(same) for _, same in itertools.groupby(batch.views, lambda view: view.shape)]
        z = [joint_forward(lambda x: self.encoder(x)["projection"], same, self.groups) for same in sizes]
        return {"z": torch.cat(z)}

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        with torch.autocast(batch.ids.device.type, enabled=False):
            z = unit(full_precision(outputs["z"]))
            weight = self.prototypes.weight
            learned = 1.0 * (progress >= self.frozen)
            weight = weight.detach() + learned * (weight - weight.detach())
            scores = z @ weight.T  # [V, B, K]
            codes = torch.stack([self.codes(of_view) for of_view in scores[:2].detach()])  # [2, B, K]
            predictions = (scores / self.tau).log_softmax(-1)
            # Of each global view with all views, and less that with itself.
            everything = torch.einsum("ibk,vbk->", codes, predictions)
            itself = torch.einsum("ibk,ibk->", codes, predictions[:2])
            loss = (itself - everything) / (2 * (len(z) - 1) * z.shape[1])
        if not diagnostics:
            return StepResult(loss, {})
        usage = gather(codes.mean((0, 1))[None]).mean(0)  # [K]
        return StepResult(loss, {"train/prototypes": torch.special.entr(usage).sum().exp()})

    def codes(self, scores: Tensor) -> Tensor:
        """Codes q [B, K] of this rank's images: over the global batch, every prototype gets the same mass.

        Args:
            scores: [B, K] cosines of a global view with the prototypes.
        """
        q = (scores / self.epsilon).exp()
        for _ in range(self.iterations):
            q = q / all_sum(q.sum(0))  # prototypes
            q = q / q.sum(1, keepdim=True)  # images
        return q

    def update(self, for_update: None, progress: float) -> None:
        self._normalise_prototypes()
        super().update(for_update, progress)

    @torch.no_grad()
    def _normalise_prototypes(self) -> None:
        self.prototypes.weight.copy_(unit(self.prototypes.weight))
