"""Exports: what is loaded from one, by the libraries alone, computes what the run's backbone does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from ssl_bench import parts as assemble
from ssl_bench.commands.evaluate import main
from ssl_bench.config.compose import load as compose
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.networks.export import export, load
from ssl_bench.record import checkpoint

STEMS = [("resnet18_cifar", 1), ("resnet18_cifar", 3), ("resnet18", 1), ("resnet18", 3)]


def run_directory(folder: Path, *overrides: str) -> nn.Module:
    """A directory as a run leaves it, at its first step, and the run's backbone."""
    config = compose(["dataset=cifar10", *overrides])
    method = assemble.method(config)
    with torch.no_grad():
        for name, buffer in method.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()  # not what a new network has
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    checkpoint.save(folder / "checkpoints", {"run_id": folder.name, "step": 1, "method": method.state_dict()})
    return method.encoder.get_submodule("backbone").eval()


def views(channels: int) -> Tensor:
    return torch.randn(2, channels, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("backbone", "channels"), STEMS)
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_the_libraries_load_what_was_exported(
    backbone: str, channels: int, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = run_directory(tmp_path / "run", f"backbone={backbone}", f"backbone.in_channels={channels}")
    path = export(tmp_path / "run", library)
    assert path == tmp_path / "run" / "export" / f"backbone_{library}.json"
    assert [p.name for p in sorted(path.parent.iterdir())] == [path.name, f"backbone_{library}.pt"]
    facts = json.loads(path.read_text())
    assert (facts["run_id"], facts["name"], facts["in_channels"]) == ("run", "resnet18", channels)
    with torch.no_grad():
        expected = network(views(channels))
        assert torch.equal(load(path)[0].eval()(views(channels)), expected)
        monkeypatch.chdir(path.parent)  # the recipe of the JSON names the file beside it
        scope: dict[str, Any] = {}
        exec("\n".join(facts["load"]), scope)
        torch.testing.assert_close(scope["model"].eval()(views(channels)), expected)


def test_the_command_prints_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_directory(tmp_path / "run", "backbone=resnet18")
    assert main([str(tmp_path / "run"), "export=torchvision"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "run" / "export" / "backbone_torchvision.json")


def test_other_backbones_and_words_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_directory(tmp_path / "digits", "dataset=scattered_digits")
    for arguments, sentence in {
        ("export=timm",): "backbone=resnet_digits is not timm's; a run with backbone=resnet18 would be",
        ("export=onnx",): "export=onnx: set export to one of timm, torchvision",
        ("export=timm", "evaluate=knn"): "export=timm and evaluate=knn: export=... stands alone",
    }.items():
        assert main([str(tmp_path / "digits"), *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "digits" / "export").exists()
    assert main([str(tmp_path / "none"), "export=timm"]) == 2


def test_a_network_that_torchvision_has_otherwise_is_refused(tmp_path: Path) -> None:
    run_directory(tmp_path / "run", "backbone=timm", "backbone.name=resnet18d")
    with pytest.raises(ConfigError, match="torchvision has no resnet18d; set export=timm"):
        export(tmp_path / "run", "torchvision")
    assert load(export(tmp_path / "run", "timm"))[1]["name"] == "resnet18d"


def test_no_checkpoint_and_foreign_weights(tmp_path: Path) -> None:
    run_directory(tmp_path / "run", "backbone=resnet18")
    path = export(tmp_path / "run", "timm")
    weights = path.with_suffix(".pt")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ConfigError, match=r"is not what .* was written for"):
        load(path)
    weights.unlink()
    with pytest.raises(ConfigError, match="export the run again"):
        load(path)
    with pytest.raises(ConfigError, match="is no export"):
        load(tmp_path / "none.json")
    (tmp_path / "run" / "checkpoints" / "last.pt").unlink()
    with pytest.raises(RunError, match="has no checkpoint yet"):
        export(tmp_path / "run", "timm")
