"""lightly's losses have the values of ours, which train in a module of Lightning."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ssl_bench.api.pair_loss import PairLoss
from tests.api.cases import vectors

pytest.importorskip("lightly")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:To copy construct from a tensor")]


def pairs() -> dict[str, tuple[nn.Module, nn.Module]]:
    """lightly's loss and ours, with the defaults of lightly."""
    from lightly import loss as theirs

    macl_b = {"name": "macl_b", "tau": 0.1, "beta": 0.5}
    return {
        "NT-Xent": (theirs.NTXentLoss(), PairLoss("infonce", temperature=0.5)),
        "DCL": (theirs.DCLLoss(), PairLoss("dcl", temperature=0.1)),
        "DCLW": (theirs.DCLWLoss(), PairLoss("dclw", temperature=0.1, sigma=0.5)),
        "MACL": (theirs.MACLLoss(), PairLoss("macl", temperature=macl_b)),
    }


class SimCLR(nn.Module):
    """A backbone and lightly's projection head."""

    def __init__(self) -> None:
        from lightly.models.modules import SimCLRProjectionHead

        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projection_head = SimCLRProjectionHead(6, 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        vector: Tensor = self.projection_head(self.backbone(x))
        return vector


def batches(steps: int = 3) -> Tensor:
    """Two views of 8 images of 6 x 6 pixels for each step: [steps, 2, 8, 1, 6, 6]."""
    return torch.stack([vectors(2, 8, 36, seed=step).view(2, 8, 1, 6, 6) for step in range(steps)])


@pytest.mark.parametrize("name", ["NT-Xent", "DCL", "DCLW", "MACL"])
def test_values_are_those_of_lightly(name: str) -> None:
    """lightly's MACL adds 1e-8 to the multiplier that it divides by."""
    theirs, ours = pairs()[name]
    torch.testing.assert_close(ours(*vectors()), theirs(*vectors()), rtol=1e-6 if name == "MACL" else 1e-12, atol=0)


def trained(criterion: nn.Module) -> Tensor:
    """The weights after the loop of lightly's example."""
    model = SimCLR().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
    for x0, x1 in batches():
        optimizer.zero_grad()
        criterion(model(x0), model(x1)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.filterwarnings("ignore")  # Lightning's advice
@pytest.mark.parametrize("given", [{"loss": "infonce"}, {"loss": "eqco", "negatives": "queue", "k": 24}])
def test_a_module_of_lightning(given: dict[str, Any]) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = SimCLR().double(), PairLoss(**given).double()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            x0, x1 = batch[0][0]
            value: Tensor = self.criterion(self.model(x0), self.model(x1))
            return value

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.06)

    module = Module()
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, enable_model_summary=False, **options)
    trainer.fit(module, DataLoader(TensorDataset(batches()), batch_size=1))
    found = torch.cat([p.detach().flatten() for p in module.model.parameters()])
    torch.testing.assert_close(found, trained(PairLoss(**given).double()), rtol=0, atol=0)
    if "k" in given:
        assert module.state_dict()["criterion.negatives.keys"].shape == (24, 5)
