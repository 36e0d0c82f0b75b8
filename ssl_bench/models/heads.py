"""Projection heads, from the backbone's features to the space of the loss."""

from torch import Tensor, nn


class MLP(nn.Module):
    """A stack of ``layers`` linear maps with ReLU between them; one layer is a linear head.

    SimCLR's convention ("k layers" counts the last): hidden layers are Linear without bias, BN, ReLU; the last is
    Linear without bias and a BN with a scale but no shift, its weight drawn from N(0, 0.01). MoCo v2 has no BN
    (``norm=False, final_norm=False``), and then every Linear has its bias.

    Args:
        inputs: width of the features.
        layers: 1 or more.
        hidden: width of the hidden layers; None: ``inputs``.
        out: width of the projection.
        norm: BN after the hidden Linears.
        final_norm: BN after the last one.
    """

    def __init__(
        self, inputs: int, layers: int, hidden: int | None, out: int, norm: bool = True, final_norm: bool = True
    ) -> None:
        super().__init__()
        for name, value in {"layers": layers, "hidden": hidden or inputs, "out": out}.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        width = hidden or inputs
        stack: list[nn.Module] = []
        for _ in range(layers - 1):
            stack += [nn.Linear(inputs, width, bias=not norm)]
            stack += [nn.BatchNorm1d(width)] if norm else []
            stack += [nn.ReLU(inplace=True)]
            inputs = width
        last = nn.Linear(inputs, out, bias=not final_norm)
        stack += [last]
        if final_norm:
            nn.init.normal_(last.weight, std=0.01)
            scale_only = nn.BatchNorm1d(out)
            scale_only.bias.requires_grad_(False)
            stack += [scale_only]
        self.layers = nn.Sequential(*stack)
        self.num_features = out

    def forward(self, x: Tensor) -> Tensor:  # [B, inputs] -> [B, out]
        return self.layers(x)  # type: ignore[no-any-return]
