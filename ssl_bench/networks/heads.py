"""Projection heads, from the backbone's features to the space of the loss."""

from typing import Literal

from torch import Tensor, nn


class MLP(nn.Module):
    """A stack of ``layers`` linear maps with ReLU between them; one layer is a linear head.

    SimCLR's convention ("k layers" counts the last): hidden layers are Linear without bias, BN, ReLU; the last is
    Linear without bias and a BN with a scale but no shift, its weight drawn from N(0, 0.01). MoCo v2 has no BN
    (``norm=False, final_norm=none``), and then every Linear has its bias.

    Args:
        inputs: width of the features.
        layers: 1 or more.
        hidden: width of the hidden layers, or of each of them; None: ``inputs``.
        out: width of the projection.
        norm: BN after the hidden Linears.
        final_norm: after the last one no BN (``none``), one with a scale only (``scale``, SimCLR), or one with a scale
            and a shift (``affine``, SiMo).
    """

    def __init__(
        self,
        inputs: int,
        layers: int,
        hidden: int | tuple[int, ...] | None,
        out: int,
        norm: bool = True,
        final_norm: Literal["none", "scale", "affine"] = "scale",
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers={layers} must be at least 1")
        widths = hidden if isinstance(hidden, tuple) else (inputs if hidden is None else hidden,) * (layers - 1)
        if len(widths) != layers - 1:
            raise ValueError(f"hidden={list(widths)} must have {layers - 1} widths, one for each layer but the last")
        for name, value in [*(("hidden", width) for width in widths), ("out", out)]:
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        stack: list[nn.Module] = []
        for width in widths:
            stack += [nn.Linear(inputs, width, bias=not norm)]
            stack += [nn.BatchNorm1d(width)] if norm else []
            stack += [nn.ReLU(inplace=True)]
            inputs = width
        last = nn.Linear(inputs, out, bias=final_norm == "none")
        stack += [last]
        if final_norm != "none":
            nn.init.normal_(last.weight, std=0.01)
            final = nn.BatchNorm1d(out)
            final.bias.requires_grad_(final_norm == "affine")
            stack += [final]
        self.layers = nn.Sequential(*stack)
        self.num_features = out

    def forward(self, x: Tensor) -> Tensor:  # [B, inputs] -> [B, out]
        return self.layers(x)  # type: ignore[no-any-return]
