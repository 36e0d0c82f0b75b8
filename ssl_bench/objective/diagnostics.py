"""What can be said of an objective from its cosines, for every loss alike."""

from torch import Tensor

from ssl_bench.distributed import gather
from ssl_bench.objective.contrast import Contrast


def diagnose(contrast: Contrast, tau: Tensor) -> dict[str, Tensor]:
    """Scalars over the anchors of all ranks.

    ``positive`` is the mean cosine of the positives, ``npc/mean`` and ``npc/std`` those of the negative-positive
    coupling multiplier sigmoid(u) (DCL's q_B, MACL's W_i): the factor by which InfoNCE's gradient falls short of DCL's.
    """
    values = {"positive": gather(contrast.pos.detach(), dim=1).mean(), "tau": tau.detach().mean()}
    if contrast.has_negatives:
        npc = gather(contrast.log_odds(tau).detach().sigmoid(), dim=1)  # [V, N]
        values |= {"npc/mean": npc.mean(), "npc/std": npc.std(correction=0)}
    return values
