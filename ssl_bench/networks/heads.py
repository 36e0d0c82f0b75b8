"""Projection heads: features of the backbone [B, inputs] to the space of the loss [B, out]."""

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor, nn

from ssl_bench.errors import require
from ssl_bench.networks.backbones import start_as_keras

FinalNorm = Literal["none", "plain", "scale", "affine"]


class Head(nn.Module, ABC):
    """Base of the projection heads.

    Attributes:
        num_features: width of the projection.
    """

    num_features: int

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Features [B, inputs] to projections [B, num_features]."""


class MLP(Head):
    """A stack of ``layers`` linear maps with ReLU between them; one layer is a linear head.

    The convention is SimCLR's, which counts the last layer: a hidden layer is a Linear without bias, BN, ReLU; the last
    is a Linear without bias, its weight from N(0, 0.01^2), and a BN with a scale but no shift. MoCo v2 has no BN
    (``norm=False, final_norm=none``), so that every Linear has a bias.

    Args:
        inputs: width of the features.
        layers: number of Linears, 1 or more.
        hidden: width of all hidden layers, or one width for each; None: ``inputs``.
        out: width of the projection.
        norm: put a BN after each hidden Linear.
        final_norm: BN after the last Linear: ``none``, ``plain`` (no scale, no shift, SimSiam), ``scale`` (no shift,
            SimCLR) or ``affine`` (scale and shift, SiMo).
    """

    def __init__(
        self,
        inputs: int,
        layers: int,
        hidden: int | tuple[int, ...] | None,
        out: int,
        norm: bool = True,
        final_norm: FinalNorm = "scale",
    ) -> None:
        super().__init__()
        require(1 <= layers <= 100, "layers", layers, "1 to 100")
        widths = hidden if isinstance(hidden, tuple) else (inputs if hidden is None else hidden,) * (layers - 1)
        require(len(widths) == layers - 1, "hidden", hidden, f"{layers - 1} widths, one for each layer but the last")
        require(min(widths, default=1) >= 1, "hidden", hidden, "1 or more, or null")
        require(out >= 1, "out", out, "1 or more")
        stack: list[nn.Module] = []
        for width in widths:
            stack += [nn.Linear(inputs, width, bias=not norm)]
            stack += [nn.BatchNorm1d(width)] if norm else []
            stack += [nn.ReLU(inplace=True)]
            inputs = width
        stack += [last := nn.Linear(inputs, out, bias=final_norm == "none")]
        if final_norm != "none":
            nn.init.normal_(last.weight, std=0.01)
            final = nn.BatchNorm1d(out)
            final.weight.requires_grad_(final_norm != "plain")
            final.bias.requires_grad_(final_norm == "affine")
            stack += [final]
        self.layers = nn.Sequential(*stack)
        self.num_features = out

    def forward(self, x: Tensor) -> Tensor:  # [B, inputs] -> [B, out]
        return self.layers(x)  # type: ignore[no-any-return]


class KerasMLP(MLP):
    """Two Linears without biases, a BN and a ReLU between them, with the start and the batch norms of Keras.

    Args:
        inputs, hidden, out: as in :class:`MLP`.
    """

    def __init__(self, inputs: int, hidden: int, out: int) -> None:
        super().__init__(inputs, 2, hidden, out, final_norm="none")
        self.layers[-1].register_parameter("bias", None)
        start_as_keras(self)
