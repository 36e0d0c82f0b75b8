"""A network that is evaluated as it is: weights from elsewhere, or random ones. Nothing is trained."""

from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.methods.base import Method, Norm, Outputs, StepResult
from ssl_bench.networks.encoder import replace_narrow
from ssl_bench.objective.schedule import Progress


class Features(nn.Module):
    """A backbone alone: [B, channels, H, W] -> ``backbone`` [B, F]."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = replace_narrow(backbone)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"backbone": self.backbone(x)}


class Frozen(Method):
    """The backbone without a head. A run of it has 0 epochs, and no step is ever computed."""

    norm: Norm = "sync"
    trains = False
    projects = False

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.encoder = Features(backbone)

    def trained_outputs(self, batch: Batch) -> Outputs:
        raise NotImplementedError

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        raise NotImplementedError
