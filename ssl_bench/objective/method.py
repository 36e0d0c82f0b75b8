"""A contrastive method: framework, negatives, temperature and loss put together. The one module that DDP wraps."""

from typing import Literal

import torch
from torch import Tensor, nn

from ssl_bench.objective.contrast import Batch, Contrast, Embedded
from ssl_bench.objective.diagnostics import diagnose
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import Negatives
from ssl_bench.objective.temperature import Temperature


class Framework(nn.Module):
    """What a method asks of the networks.

    ``encoder`` maps views [B, channels, H, W] to ``{"backbone": [B, F], "projection": [B, D]}`` and is what is judged;
    ``norm`` says whether batch statistics are over all ranks (``sync``) or each rank's own (``local``).
    """

    encoder: nn.Module
    norm: Literal["sync", "local"]

    def forward(self, batch: Batch) -> Embedded:
        """The anchors of a batch and their positives."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Called after each optimiser step, for networks that follow another one."""


class Method(nn.Module):
    """``forward(batch, progress) -> (loss [], diagnostics)``; the loss is this rank's mean over its anchors.

    Raises:
        ValueError: the loss needs something that the negatives do not give.
    """

    def __init__(self, framework: Framework, negatives: Negatives, temperature: Temperature, loss: Loss) -> None:
        super().__init__()
        for need in sorted(loss.needs - negatives.gives):
            raise ValueError(f"the loss needs {need}, which the negatives do not give: set negatives to another option")
        self.framework, self.negatives, self.temperature, self.loss = framework, negatives, temperature, loss

    def forward(self, batch: Batch, progress: float, diagnostics: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        e: Embedded = self.framework(batch)
        # Half precision ends here: unit vectors, cosines and logits are float32 (or float64, where that was asked for).
        with torch.autocast(batch.ids.device.type, enabled=False):
            contrast = self.negatives.select(Contrast.of(e, self.negatives.bank(e)))
            tau = self.temperature(progress, contrast)
            loss = self.loss(contrast, tau).mean()
            self.negatives.update(e)
            with torch.no_grad():
                found = diagnose(contrast, tau) if diagnostics else {"tau": tau.detach().mean()}
        return loss, found

    def after_step(self) -> None:
        """Called after each optimiser step."""
        self.framework.after_step()
