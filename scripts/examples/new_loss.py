"""A new loss: in a loop of one's own, and as a plugin in whole runs with any negatives, temperature and framework.

    python scripts/examples/new_loss.py
    PYTHONPATH=scripts/examples SSL_BENCH_PLUGINS=new_loss ssl-bench train 'plugins=[new_loss]' \\
        loss=dcl loss._target_=new_loss.Focal +loss.gamma=2.0
"""

import torch
from torch import Tensor

import ssl_bench
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, softplus

__version__ = "1.0"  # part of the run_id and of every record


class Focal(Loss):
    """InfoNCE with less weight on easy anchors: sigmoid(u)^gamma softplus(u)."""

    needs = frozenset({"negatives"})

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        u = contrast.log_odds(tau)  # log sum_k exp(s_k / tau) - s / tau, of each anchor [V, B]
        return u.detach().sigmoid() ** self.gamma * softplus(u)


if __name__ == "__main__":
    torch.manual_seed(0)
    z1, z2 = torch.randn(2, 64, 32)
    of_batch = ssl_bench.PairLoss(Focal(), temperature=0.2)
    of_queue = ssl_bench.PairLoss(Focal(gamma=1.0), temperature="macl_a", negatives="queue", k=1024)
    print(f"in_batch: {of_batch(z1 + z2, z2):.3f}\nqueue: {of_queue(z1 + z2, z2):.3f}")
