"""``evaluate --weights``: networks from elsewhere as runs; tests/networks has the layouts of their files."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

import ssl_bench
from ssl_bench.commands.evaluate import main
from ssl_bench.commands.export import export
from ssl_bench.commands.weights import network as from_elsewhere
from ssl_bench.config.compose import load
from ssl_bench.training import build
from tests.conftest import only_run
from tests.data.photos import arrays_in
from tests.door.door import refused, refuses

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def trained(name: str, **options: Any) -> nn.Module:
    """A network of timm after a step, so that no tensor is as it was drawn."""
    torch.manual_seed(0)
    network: nn.Module = timm.create_model(name, num_classes=0, **options)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    size = options.get("img_size", 32)
    network(torch.randn(4, 3, size, size)).square().mean().backward()
    optimizer.step()
    return network.eval()


def results(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content


def test_timm_has_its_own_folder(capfd: pytest.CaptureFixture[str]) -> None:
    network = trained("test_resnet")
    for folder, safe in (("hub", True), ("bin", False)):
        timm.models.save_for_hf(network, folder, model_args={}, safe_serialization=safe)
    for given in ("hub/model.safetensors", "hub", "bin"):
        mine = timm.create_model("test_resnet", num_classes=0).eval()
        ssl_bench.load_weights(mine, given)
        with torch.no_grad():
            torch.testing.assert_close(mine(IMAGES), network(IMAGES), rtol=0, atol=1e-6)
    with from_elsewhere("timm:hub", ["dataset=imagenet100", "dataset.size=64"]) as words:
        share = timm.get_pretrained_cfg("test_resnet").crop_pct  # type: ignore[union-attr]
        assert f"dataset.resize={int(64 / share)}" in words
    refuses("evaluate --weights timm:hub other.pth evaluate=knn", "other.pth", capfd)
    weights = Path("hub/model.safetensors").read_bytes()
    Path("hub/model.safetensors").write_bytes(weights[:-1])
    refuses("evaluate --weights timm:hub evaluate=knn", "timm:hub", capfd)


VIEW = {"input_size": [3, 8, 8], "mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bicubic"}


@pytest.mark.parametrize(
    "change",
    [
        {"model_args": {"global_pool": "${oc.env:HOME}"}},
        {"model_args": {"x, y=3": 2}},
        {"model_args": ["max"]},
        {"pretrained_cfg": {"mean": 1}},
        {"pretrained_cfg": {"input_size": [3, 8, 8], "mean": [0], "std": [1], "interpolation": "a b"}},
        {"architecture": None},
        {"architecture": "test_resnet,test_vit"},
    ],
)
def test_a_folder_of_timm_says_numbers_and_names_only(change: Any, capfd: pytest.CaptureFixture[str]) -> None:
    Path("hub").mkdir()
    described = {"architecture": "test_resnet", "pretrained_cfg": VIEW, **change}
    Path("hub/config.json").write_text(json.dumps(described))
    assert main(["--weights", "timm:hub"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ssl-bench: timm:hub: ") and os.environ["HOME"] not in line


def test_arguments_in_a_folder_of_timm_build_its_network() -> None:
    args: dict[str, Any] = {"patch_size": 8, "global_pool": "avg", "fc_norm": False, "act_layer": "relu"}
    network = trained("test_vit", img_size=96, **args)
    view = {"input_size": (3, 96, 96), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0}
    options = {"model_args": args | {"img_size": 96}, "data_config": view | {"interpolation": "bicubic"}}
    timm.models.save_for_hf(network, "hub", safe_serialization=True, **options)
    Path("data/cifar10").mkdir(parents=True)
    for split in ("train", "test"):
        images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
        np.save(f"data/cifar10/{split}_images.npy", images)
        np.save(f"data/cifar10/{split}_labels.npy", np.arange(20) % 10)
    small = ["dataset=cifar10", "paths.data=data", "tracking=off", "evaluate=knn", "evaluate.knn.k=2"]
    assert main(["--weights", "timm:hub", *small, "evaluate.baselines=[]"]) == 0
    content = results(run := only_run())
    assert content["config"]["backbone"]["args"] == args and content["config"]["dataset"]["size"] == 32
    assert content["warnings"][0].startswith("position embeddings resampled from 145 to 17 ")
    with torch.no_grad():
        expected = timm.create_model("local-dir:hub", pretrained=True, num_classes=0, img_size=32).eval()(IMAGES)
        torch.testing.assert_close(ssl_bench.load(run).eval()(IMAGES), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_an_export_has_the_numbers_of_its_run_on_images_as_in_its_training(
    train: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Other floats are normalised by the numbers of the training, as ``evaluate.on`` does; uint8 is refused."""
    for root, dtype in (("floats", "float32"), ("others", "float32"), ("bytes", "uint8")):
        arrays_in(Path(root), dtype=dtype)
    for split in ("train", "test"):
        np.save(f"others/{split}_images.npy", np.load(f"floats/{split}_images.npy") * 3 + 40)
    network, quick = ["backbone=timm", "backbone.name=test_resnet"], ["evaluate.baselines=[]", "tracking=off"]
    words = ["dataset=arrays", "evaluate=geometry", *quick]
    others = "evaluate.on={dataset: arrays, root: others}"
    arguments = [*words, *network, "dataset.root=floats", others, "batch_size.size=16", "max_steps=1"]
    assert train(*arguments, small=False)[0] == 0
    run = only_run()
    card, file = export(run, "card").parent, export(run, "timm").with_suffix(".pt")
    metric = results(run)["metrics"]["geometry/others/intra_distance"]
    for i, given in enumerate([card, file, run, f"timm:{card}"]):
        command = ["--weights", str(given), *words, *(network if i < 3 else []), f"paths.outputs=evaluated{i}"]
        assert main([*command, "dataset.root=others"]) == 0
        content = results(only_run(Path(f"evaluated{i}")))
        assert content["config"]["dataset"]["mean"] == results(run)["config"]["dataset"]["mean"]
        assert content["metrics"]["geometry/intra_distance"] == pytest.approx(metric, rel=1e-5)
        for other in (["dataset.root=bytes"], ["dataset=cifar10"]):
            capfd.readouterr()
            assert main([*command, *other]) == 2
            assert {"float32", "uint8"} <= {*capfd.readouterr().err.replace(":", "").split()}
    with refused("images uint8"):
        ssl_bench.embed(run, np.zeros((2, 5, 12, 12), np.uint8))
    described = json.loads((card / "config.json").read_text())
    (card / "config.json").write_text(json.dumps({k: v for k, v in described.items() if k != "image_dtype"}))
    earlier = ["--weights", str(card), *words, *network, "paths.outputs=earlier", "dataset.root=bytes"]
    assert main(earlier) == 0  # nothing says what an export of an earlier version was trained on


def test_a_network_is_a_row_that_is_found_again_and_evaluated_further(capfd: pytest.CaptureFixture[str]) -> None:
    small = ["backbone.width=4", "tracking=off", "evaluate=[knn]", "evaluate.knn.k=10"]
    network = build.backbone(load(["framework=frozen", "backbone.width=4"]))
    torch.save({"state_dict": {f"backbone.{k}": v for k, v in network.state_dict().items()}}, "a.pth")
    assert main(["--weights", "a.pth", *small]) == 0
    run = only_run()
    content = results(run)
    assert content["facts"]["init"].startswith("54 tensors under state_dict.backbone are loaded; not used: nothing")
    assert content["metrics"].keys() == {"knn/top1", "knn/top5"} and content["config"]["epochs"] == 0
    shutil.move("a.pth", "b.pth")
    assert main(["--weights", "b.pth", *small, "batch_size=b32", "optimizer.lr=3"]) == 0
    assert f"already done: {run}" in capfd.readouterr().out
    assert not (run / "checkpoints").exists()  # the file is the network
    shutil.move("b.pth", "a.pth")
    words = ["evaluate=[linear]", "evaluate.linear.epochs=2", "evaluate.labels=[0.1,1.0]"]
    assert main(["state=finished", *words]) == 0
    (row,) = ssl_bench.runs(all=True).to_dict("records")
    assert row["state"] == "finished" and {"knn/top1", "linear/top1", "linear/labels0.1/top1"} <= row.keys()
    assert row["backbone.width"] == 4 and not {"optimizer.lr", "loss", "batch_size"} & row.keys()
    images = torch.rand(2, 1, 20, 20)
    with torch.no_grad():
        torch.testing.assert_close(ssl_bench.load(run)(images), network.eval()(images))
    with refused("init"):
        load([f"init={run}"])
    shutil.move("a.pth", "b.pth")
    assert main([str(run), *words]) == 0  # already done
    refuses(f"evaluate {run} {' '.join(words)} evaluate.linear.epochs=3", f"init={Path('a.pth').absolute()}", capfd)
