"""Networks from elsewhere: each layout gives the features of its own library; wrong files are refused in a sentence."""

import argparse
import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

import ssl_bench
from ssl_bench.commands.evaluate import main
from ssl_bench.commands.export import export
from ssl_bench.config.compose import load
from ssl_bench.errors import ConfigError
from ssl_bench.training.parts import Parts
from ssl_bench.training.validate import check_values
from tests.conftest import only_run
from tests.data.photos import arrays_in

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
CIFAR = ["framework=frozen", "dataset=cifar10", "backbone=resnet18"]


def trained(network: nn.Module) -> nn.Module:
    """A network after one epoch of two batches, so that no tensor is as it was drawn."""
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    for _ in range(2):
        loss = network(IMAGES).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    torch.manual_seed(0)
    return trained(torchvision.models.resnet18())


def body(resnet: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in resnet.state_dict().items() if not name.startswith("fc.")}


def features_of(resnet: nn.Module) -> Tensor:
    own = copy.deepcopy(resnet)
    own.fc = nn.Identity()
    with torch.no_grad():
        return own(IMAGES)


def under(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in weights.items()}


def other(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value * 1.01 if value.is_floating_point() else value for name, value in weights.items()}


HEAD = {"w": torch.ones(2, 2)}


def lightly_moco(resnet: nn.Module) -> dict[str, Tensor]:
    """lightly's MoCo, built with its own modules as in its tutorials."""
    from lightly.models.modules.heads import MoCoProjectionHead
    from lightly.models.utils import deactivate_requires_grad

    class MoCo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(*list(resnet.children())[:-1])
            self.projection_head = MoCoProjectionHead(512, 512, 128)
            self.backbone_momentum = copy.deepcopy(self.backbone)
            for parameter in self.backbone_momentum.parameters():
                parameter.data.mul_(1.01)
            deactivate_requires_grad(self.backbone_momentum)

    return MoCo().state_dict()


LAYOUTS: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "torchvision": (lambda net: net.state_dict(), "under no prefix"),
    "moco_v2": (
        lambda net: {
            "epoch": 1,
            "arch": "resnet18",
            "state_dict": under("module.encoder_q.", body(net))
            | under("module.encoder_k.", other(body(net)))
            | under("module.encoder_q.fc.0.", HEAD)
            | {"module.queue": torch.ones(4, 4)},
        },
        "under state_dict.module.encoder_q",
    ),
    "moco_v3": (
        lambda net: {
            "state_dict": under("module.base_encoder.", body(net)) | under("module.momentum_encoder.", other(body(net)))
        },
        "under state_dict.module.base_encoder",
    ),
    "lightly": (lightly_moco, "under backbone"),
    "solo_learn": (
        lambda net: {
            "state_dict": under("backbone.", body(net))
            | under("momentum_backbone.", other(body(net)))
            | under("projector.", HEAD),
            "hyper_parameters": {"lr": 0.1},
        },
        "under state_dict.backbone",
    ),
    "dino": (
        lambda net: {
            "student": under("module.backbone.", other(body(net))) | under("module.head.", HEAD),
            "teacher": under("backbone.", body(net)) | under("head.", HEAD),
            "args": argparse.Namespace(arch="resnet18"),
            "best": np.float64(0.5),
        },
        "under teacher.backbone",
    ),
    "swav": (lambda net: under("module.", body(net)) | under("module.prototypes.", HEAD), "under module"),
    "simsiam": (lambda net: {"state_dict": under("module.encoder.", body(net))}, "under state_dict.module.encoder"),
    "supcontrast": (
        lambda net: {
            "opt": argparse.Namespace(epochs=1),
            "model": under("encoder.module.", {k.replace("downsample", "shortcut"): v for k, v in body(net).items()}),
        },
        "under model.encoder.module",
    ),
    "compiled": (lambda net: {"network": under("_orig_mod.", body(net))}, "under network._orig_mod"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_network_has_the_features_of_its_library(layout: str, resnet: Any) -> None:
    make, prefix = LAYOUTS[layout]
    torch.save(make(resnet), "file.pth")
    parts = Parts(load([*CIFAR, "init=file.pth"]))
    with torch.no_grad():
        found = parts.method.encoder.eval()(IMAGES)
    assert found.keys() == {"backbone"}
    torch.testing.assert_close(found["backbone"], features_of(resnet), rtol=0, atol=1e-6)
    assert parts.taken.startswith(f"120 tensors {prefix} are taken; left out: ")
    mine: Any = torchvision.models.resnet18()
    fc = mine.fc.weight.clone()
    assert f" {prefix} are taken" in ssl_bench.load_weights(mine, "file.pth")
    assert torch.equal(mine.fc.weight, resnet.fc.weight if layout == "torchvision" else fc)
    torch.testing.assert_close(features_of(mine.eval()), features_of(resnet), rtol=0, atol=1e-6)


@pytest.mark.parametrize("layout", ["moco_v2", "moco_v3", "lightly", "solo_learn"])
def test_the_momentum_network_is_taken_where_it_is_asked_for(layout: str, resnet: Any) -> None:
    torch.save(LAYOUTS[layout][0](resnet), "file.pth")
    mine: Any = torchvision.models.resnet18()
    line = ssl_bench.load_weights(mine, "file.pth", "momentum")
    torch.testing.assert_close(mine.layer1[0].conv1.weight, 1.01 * resnet.layer1[0].conv1.weight)
    assert "; which=trained takes those under " in line
    one, two = (load([*CIFAR, word])["init"] for word in ("init=file.pth", "init={path: file.pth, which: momentum}"))
    assert one == {key: value for key, value in two.items() if key != "which"}
    torch.save(resnet.state_dict(), "one.pth")
    with pytest.raises(
        ConfigError, match=r"init\.which=momentum: one\.pth has this network under no prefix only: leave"
    ):
        ssl_bench.load_weights(mine, "one.pth", "momentum")


def test_timm_has_its_own_folder_and_view(capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    network = trained(timm.create_model("test_resnet", num_classes=0))
    Path("hub").mkdir()
    timm.models.save_for_hf(network, "hub", model_args={}, safe_serialization=True)
    words = ["tracking=off", "evaluate=knn", "evaluate.knn.k=5"]
    assert main(["--weights", "timm:hub", *words]) == 0
    out = capfd.readouterr().out
    assert "weights of init" in out
    assert main(["--weights", "timm:hub", "other.pth", *words]) == 2
    assert capfd.readouterr().err.startswith("ssl-bench: other.pth: leave it out: ")
    weights = Path("hub/model.safetensors").read_bytes()
    Path("hub/model.safetensors").write_bytes(weights[:-1])
    assert main(["--weights", "timm:hub", *words]) == 2
    assert capfd.readouterr().err.startswith("ssl-bench: timm:hub: no weights can be read (")
    Path("hub/model.safetensors").write_bytes(weights)
    timm.models.save_for_hf(network, "bin", model_args={}, safe_serialization=False)
    for given in ("hub/model.safetensors", "hub", "bin"):
        mine = timm.create_model("test_resnet", num_classes=0).eval()
        ssl_bench.load_weights(mine, given)
        with torch.no_grad():
            torch.testing.assert_close(mine(IMAGES), network(IMAGES), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_args", {"global_pool": "${oc.env:HOME}"}),
        ("model_args", {"x, y=3": 2}),
        ("model_args", ["max"]),
        ("pretrained_cfg", {"mean": 1}),
        ("pretrained_cfg", {"input_size": [3, 8, 8], "mean": [0], "std": [1], "interpolation": "a b"}),
        ("architecture", None),
        ("architecture", "test_resnet,test_vit"),
    ],
)
def test_a_folder_of_timm_says_numbers_and_names_only(key: str, value: Any, capfd: pytest.CaptureFixture[str]) -> None:
    Path("hub").mkdir()
    view = {"input_size": [3, 8, 8], "mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bicubic"}
    described = {"architecture": "test_resnet", "pretrained_cfg": view, key: value}
    Path("hub/config.json").write_text(json.dumps(described))
    assert main(["--weights", "timm:hub"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ssl-bench: timm:hub: its weights cannot be had (") and os.environ["HOME"] not in line


def test_arguments_in_a_folder_of_timm_build_its_network(capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    args: dict[str, Any] = {"patch_size": 8, "global_pool": "avg", "fc_norm": False, "act_layer": "relu"}
    network = trained(timm.create_model("test_vit", num_classes=0, img_size=96, **args))
    Path("hub").mkdir()
    data = {"input_size": (3, 96, 96), "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "crop_pct": 1.0}
    view = {**data, "interpolation": "bicubic"}
    timm.models.save_for_hf(
        network, "hub", model_args=args | {"img_size": 96}, safe_serialization=True, data_config=view
    )
    Path("data/cifar10").mkdir(parents=True)
    for split in ("train", "test"):
        np.save(
            f"data/cifar10/{split}_images.npy", np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
        )
        np.save(f"data/cifar10/{split}_labels.npy", np.arange(20) % 10)
    small = ["dataset=cifar10", "paths.data=data", "tracking=off", "evaluate=knn", "evaluate.knn.k=2"]
    assert main(["--weights", "timm:hub", *small, "evaluate.baselines=[]"]) == 0
    assert "backbone.args.global_pool=" in capfd.readouterr().out
    run = only_run()
    results = json.loads((run / "results.json").read_text())
    assert results["config"]["backbone"]["args"] == args and results["config"]["dataset"]["size"] == 32
    assert results["warnings"][0] == "position embeddings resampled from 145 to 17 as timm does"
    with torch.no_grad():
        expected = timm.create_model("local-dir:hub", pretrained=True, num_classes=0, img_size=32).eval()(IMAGES)
        torch.testing.assert_close(ssl_bench.load(run).eval()(IMAGES), expected, rtol=0, atol=1e-6)


def test_the_export_of_a_run_has_its_number(train: Callable[..., Any]) -> None:
    timm_words = ["backbone=timm", "backbone.name=test_resnet", "backbone.args.global_pool=max"]
    words = ["evaluate=geometry", "evaluate.baselines=[]", "dataset.size=28", "tracking=off"]
    assert train(*timm_words, *words, "head.out=16", "max_steps=1", small=False)[0] == 0
    run = only_run()
    card = export(run, "card").parent
    assert main(["--weights", f"timm:{card}", *words, "paths.outputs=evaluated"]) == 0
    first, second = (
        json.loads((folder / "results.json").read_text())["metrics"]["geometry/uniformity"]
        for folder in (run, only_run(Path("evaluated")))
    )
    assert second == pytest.approx(first, abs=1e-6)


def test_weights_take_images_as_in_their_training(train: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    """Other floats are normalised by the numbers of the training, as ``evaluate.on`` does; uint8 is refused."""
    for root, dtype in (("floats", "float32"), ("others", "float32"), ("bytes", "uint8")):
        arrays_in(Path(root), dtype=dtype)
    for split in ("train", "test"):
        np.save(f"others/{split}_images.npy", np.load(f"floats/{split}_images.npy") * 3 + 40)
    network, quick = ["backbone=timm", "backbone.name=test_resnet"], ["evaluate.baselines=[]", "tracking=off"]
    words = ["dataset=arrays", *network, "evaluate=geometry", *quick]
    others = "evaluate.on={dataset: arrays, root: others}"
    assert train(*words, "dataset.root=floats", others, "batch_size.size=16", "max_steps=1", small=False)[0] == 0
    run = only_run()
    card, file = export(run, "card").parent, export(run, "timm").with_suffix(".pt")
    trained = json.loads((run / "results.json").read_text())
    for i, given in enumerate([card, file, run, f"timm:{card}"]):
        command = [
            "--weights",
            str(given),
            *(words if i < 3 else [words[0], *words[3:]]),
            f"paths.outputs=evaluated{i}",
        ]
        assert main([*command, "dataset.root=others"]) == 0
        results = json.loads((only_run(Path(f"evaluated{i}")) / "results.json").read_text())
        assert results["config"]["dataset"]["mean"] == trained["config"]["dataset"]["mean"]
        metric = trained["metrics"]["geometry/others/intra_distance"]
        assert results["metrics"]["geometry/intra_distance"] == pytest.approx(metric, rel=1e-5)
        capfd.readouterr()
        for other in (["dataset.root=bytes"], ["dataset=cifar10"]):
            assert main([*command, *other]) == 2
            wrong = "trained on images of float32, and those of dataset are of uint8: set dataset to images of float32"
            assert wrong in capfd.readouterr().err
    with pytest.raises(ConfigError, match=r"images=.*uint8"):
        ssl_bench.embed(run, np.zeros((2, 5, 12, 12), np.uint8))
    mine = timm.create_model("test_resnet", num_classes=0, in_chans=5)
    assert "for images of float32 as they are, minus [" in ssl_bench.load_weights(mine, card)
    described = json.loads((card / "config.json").read_text())
    (card / "config.json").write_text(json.dumps({k: v for k, v in described.items() if k != "image_dtype"}))
    earlier = ["--weights", str(card), *words, "paths.outputs=earlier", "dataset.root=bytes"]
    assert main(earlier) == 0  # nothing says what an export of an earlier version was trained on


def test_grey_and_coloured_images() -> None:
    coloured, grey = torchvision.models.resnet18().eval(), timm.create_model("resnet18", in_chans=1, num_classes=0)
    save_file(coloured.state_dict(), "coloured.safetensors")
    assert "conv1.weight for grey images: the sum over its colours" in ssl_bench.load_weights(
        grey, "coloured.safetensors"
    )
    one = IMAGES[:, :1]
    with torch.no_grad():
        torch.testing.assert_close(
            grey.eval()(one), features_of_all(coloured, one.repeat(1, 3, 1, 1)), rtol=1e-4, atol=1e-4
        )
    torch.save(grey.state_dict(), "grey.pt")
    with pytest.raises(ConfigError, match=r"conv1\.weight .*\[64, 1, 7, 7\].*\[64, 3, 7, 7\]"):
        ssl_bench.load_weights(coloured, "grey.pt")


def features_of_all(resnet: nn.Module, images: Tensor) -> Tensor:
    own = copy.deepcopy(resnet)
    own.fc = nn.Identity()
    return own(images)


def wrong_files(resnet: nn.Module) -> Iterator[tuple[str, Any, str]]:
    """A few of those that tests/networks/test_weights.py has."""
    weights = body(resnet)
    yield "depth", torchvision.models.resnet34().state_dict(), "layer1.2.conv1.weight is unknown"
    yield (
        "nan",
        weights | {"conv1.weight": weights["conv1.weight"] * float("nan")},
        "conv1.weight has values that are NaN or infinite",
    )
    yield "whole", resnet, "torchvision.models.resnet.ResNet, whose code is not run"
    yield "two", {"a": weights, "b": other(weights)}, "the network is there under a and under b"


def test_wrong_files_are_refused_in_a_sentence_before_a_run_begins(
    resnet: nn.Module, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, content, sentence in wrong_files(resnet):
        path = Path(f"{name}.pth")
        torch.save(content, path)
        with pytest.raises(ConfigError) as refusal:
            _ = Parts(load([*CIFAR, f"init={path}"])).method
        assert sentence in str(refusal.value) and "\n" not in str(refusal.value), refusal.value
    assert main(["--weights", "nan.pth", "backbone=resnet18", "tracking=off", "evaluate=knn"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("ssl-bench: nan.pth: conv1.weight has values that are NaN or infinite: give a file of finite")
    assert not Path("outputs/default").exists()
    for words, sentence in (
        (["--weights", "nan.pth", "framework=simclr"], "framework: leave it out"),
        (["--weights", "no.pth"], "ssl-bench: no.pth: give the directory of a finished run"),
        (["--weights", "two.pth", "backbone=resnet18"], "ssl-bench: two.pth: the network is there under a and under b"),
        (
            ["--weights", "nan.pth", "backbone=resnet18", "which=momentum"],
            "ssl-bench: which=momentum: nan.pth has this",
        ),
        (["--weights", "random", "epochs=3"], "epochs=3: set epochs to nothing: framework=frozen trains nothing"),
        (["--weights", "random", "evaluate.baselines=[init]"], "evaluate.baselines=[init]: set evaluate.baselines to"),
        (["--weights", "timm:absent_network"], "timm:absent_network: its weights cannot be had"),
        (["outputs/x", "--weights", "random"], "outputs/x: leave it out: --weights evaluates one network"),
    ):
        assert main(words) == 2
        err = capfd.readouterr().err
        assert sentence in err and "init=" not in err.replace("init=null", ""), err


def test_a_network_is_a_row_that_is_found_again_and_evaluated_further(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["backbone.width=4", "tracking=off", "evaluate=[knn]", "evaluate.knn.k=10"]
    network = Parts(load(["framework=frozen", "backbone.width=4"])).backbone
    torch.save({"state_dict": under("backbone.", network.state_dict())}, "a.pth")
    assert main(["--weights", "a.pth", *small]) == 0
    run = only_run()
    results = json.loads((run / "results.json").read_text())
    assert results["facts"]["init"].startswith("54 tensors under state_dict.backbone are taken; left out: nothing")
    assert results["metrics"].keys() == {"knn/top1", "knn/top5"} and results["config"]["epochs"] == 0
    Path("a.pth").rename("b.pth")
    assert main(["--weights", "b.pth", *small, "batch_size=b32", "optimizer.lr=3"]) == 0
    assert f"already done: {run}" in capfd.readouterr().out
    assert not (run / "checkpoints").exists()  # the file is the network
    Path("b.pth").rename("a.pth")
    words = ["evaluate=[linear]", "evaluate.linear.epochs=2", "evaluate.labels=[0.1,1.0]"]
    assert main(["state=finished", *words]) == 0
    table = ssl_bench.runs(all=True)
    (row,) = [dict(zip(table.columns, each, strict=True)) for each in table.itertuples(index=False)]
    assert row["state"] == "finished" and {"knn/top1", "linear/top1", "linear/labels0.1/top1"} <= row.keys()
    assert row["backbone.width"] == 4 and not {"optimizer.lr", "loss", "batch_size"} & row.keys()
    images = torch.rand(2, 1, 20, 20)
    with torch.no_grad():
        assert torch.equal(ssl_bench.load(run)(images), network.eval()(images))
    with pytest.raises(ConfigError, match="set init to the file of weights that this run evaluates"):
        load([f"init={run}"])
    Path("a.pth").rename("b.pth")
    capfd.readouterr()
    assert main([str(run), *words]) == 0  # already done
    assert main([str(run), *words, "evaluate.linear.epochs=3"]) == 2
    assert f"init={Path('a.pth').absolute()}: No such file" in capfd.readouterr().err


def test_an_evaluator_that_needs_a_projection_is_refused_by_name(capfd: pytest.CaptureFixture[str]) -> None:
    for option in ("npc", "encoder_gradients", "contrast_statistics", "projections", "spectrum"):
        assert main(["--weights", "random", f"evaluate=[knn,{option}]", "backbone.width=4"]) == 2
        sentence = f"{option} needs a projection, and framework=frozen has no head"
        assert sentence in capfd.readouterr().err and not Path("outputs").exists()
    for option in ("geometry", "linear"):
        words = ["framework=frozen", f"evaluate={option}", f"evaluate.{option}.features=projection"]
        with pytest.raises(ConfigError, match=f"{option} needs a projection"):
            check_values(Parts(load(words)))
        check_values(Parts(load(words[:2])))
    check_values(Parts(load(["evaluate=npc"])))
