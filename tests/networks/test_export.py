"""Exports: the libraries alone load them, and the loaded network computes the same as the run's backbone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
import yaml
from torch import Tensor, nn

from ssl_bench.commands.export import main
from ssl_bench.config.compose import load as compose
from ssl_bench.errors import ConfigError
from ssl_bench.networks.backbones import timm_backbone
from ssl_bench.networks.export import lines_to_build, load
from ssl_bench.record import checkpoint
from ssl_bench.training.parts import Parts

README = Path(__file__).parents[2] / "ssl_bench/networks/README.md"
STEMS = [("resnet18_cifar", 1), ("resnet18", 3)]


def run_directory(folder: Path, *overrides: str) -> nn.Module:
    """Make the directory of a run after its first step; return the run's backbone."""
    config = compose(["dataset=cifar10", *overrides])
    method = Parts(config).method
    with torch.no_grad():
        for name, buffer in method.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()  # differs from a new network
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    checkpoint.save(folder, {"run_id": folder.name, "step": 1, "method": method.state_dict()})
    return method.encoder.get_submodule("backbone").eval()


def exported(folder: Path, library: str) -> Path:
    """Export the backbone of a run with the command; return the path of the JSON."""
    assert main([folder.name, f"paths.outputs={folder.parent}", "--format", library]) == 0
    return folder / "export" / f"backbone_{library}.json"


def views(channels: int) -> Tensor:
    return torch.randn(2, channels, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "channels"), STEMS)
def test_timm_loads_the_export(backbone: str, channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = run_directory(tmp_path / "run", f"backbone={backbone}", f"backbone.in_channels={channels}")
    path = exported(tmp_path / "run", "timm")
    assert [p.name for p in sorted(path.parent.iterdir())] == [path.name, "backbone_timm.pt"]
    description = json.loads(path.read_text())
    assert (description["run_id"], description["name"], description["in_channels"]) == ("run", "resnet18", channels)
    with torch.no_grad():
        expected = network(views(channels))
        assert torch.equal(load(path)[0].eval()(views(channels)), expected)
        monkeypatch.chdir(path.parent)  # the lines in the JSON name the file beside it
        scope: dict[str, Any] = {}
        exec("\n".join(description["load"]), scope)
        torch.testing.assert_close(scope["model"].eval()(views(channels)), expected)


def test_the_lines_of_a_small_stem_build_the_network_of_the_run() -> None:
    network = timm_backbone("resnet18", 1, "cifar").eval()
    lines = lines_to_build({"name": "resnet18", "in_channels": 1, "stem": "cifar"}, network.state_dict())
    scope: dict[str, Any] = {}
    exec("\n".join(["import torch", *lines]), scope)
    scope["model"].load_state_dict(network.state_dict())
    with torch.no_grad():
        assert torch.equal(scope["model"].eval()(views(1)), network(views(1)))


@pytest.mark.parametrize("backbone", [["backbone=timm"], ["backbone=vit_moco_v3", "backbone.args.num_heads=2"]])
def test_a_network_that_accepts_one_size_is_exported_at_the_size_of_the_images(
    backbone: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = run_directory(tmp_path / "run", *backbone, "backbone.name=test_vit")
    path = exported(tmp_path / "run", "timm")
    loaded, description = load(path)
    assert description["size"] == 32 and "img_size=32" in description["load"][2]
    monkeypatch.chdir(path.parent)
    scope: dict[str, Any] = {}
    exec("\n".join(description["load"]), scope)
    with torch.no_grad():
        expected = network(views(3))
        assert torch.equal(loaded.eval()(views(3)), expected)
        assert torch.equal(scope["model"].eval()(views(3)), expected)
    path.with_suffix(".pt").unlink()
    with pytest.raises(ConfigError, match=r"\.pt: "):
        load(path)


def test_torchvision_loads_the_file_of_a_resnet(tmp_path: Path) -> None:
    network = run_directory(tmp_path / "run", "backbone=resnet18", "backbone.in_channels=3")
    model = torchvision.models.resnet18()
    model.fc = nn.Identity()
    model.load_state_dict(torch.load(exported(tmp_path / "run", "timm").with_suffix(".pt"), weights_only=True))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(views(3)), network(views(3)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backbone", ["backbone=resnet18_cifar", "backbone=timm"])
def test_the_lines_of_the_readme_export_a_run(backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_directory(Path("RUN"), backbone, *(["backbone.name=test_vit"] if "timm" in backbone else []))
    of_torch, of_onnx = re.findall(r"```python\n(.*?)```", README.read_text().replace("224, 224", "32, 32"), re.S)
    scope: dict[str, Any] = {}
    exec(of_torch, scope)
    more = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(scope["again"](more), scope["network"](more))
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    exec(of_onnx, scope)
    (features,) = scope["session"].run(None, {scope["session"].get_inputs()[0].name: more.numpy()})
    torch.testing.assert_close(torch.from_numpy(features), scope["network"](more).detach(), rtol=1e-3, atol=1e-4)
