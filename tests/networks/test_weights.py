"""Weights to start from: of a file or a run, complete and finite, in the identity; frozen backbones."""

import copy
import fractions
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError
from ssl_bench.networks.backbones import DigitsResNet, timm_backbone
from ssl_bench.networks.weights import load_weights, read_weights
from ssl_bench.record import checkpoint
from ssl_bench.training.parts import Parts
from tests.conftest import SMALL, only_run
from tests.door.door import refused

VIT = ["dataset=cifar10", "backbone=timm", "backbone.name=test_vit", "backbone.args.patch_size=8"]


def vit(path: Path, **arguments: Any) -> Any:
    """Save timm's network with its classifier and random weights; return it."""
    model = timm.create_model("test_vit", **{"img_size": 32, "patch_size": 8, **arguments})
    if path.suffix == ".safetensors":
        save_file(model.state_dict(), path)
    else:
        torch.save({"state_dict": {f"module.{name}": value for name, value in model.state_dict().items()}}, path)
    return model


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_network_of_timm_starts_from_a_file(ending: str, tmp_path: Path) -> None:
    given = vit(tmp_path / f"vit.{ending}").state_dict()
    config = load([*VIT, f"init={tmp_path}/vit.{ending}"])
    backbone = Parts(config).method.encoder.get_submodule("backbone").state_dict()
    assert backbone.keys() == {name for name in given if not name.startswith("head.")}
    assert all(torch.equal(value, given[name]) for name, value in backbone.items())
    moved = (tmp_path / f"vit.{ending}").rename(tmp_path / f"other.{ending}")
    assert run_id(load([*VIT, f"init={moved}"])) == run_id(config) != run_id(load(VIT))
    vit(moved)
    assert run_id(load([*VIT, f"init={moved}"])) != run_id(config)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    vit(tmp_path / "vit.pt", patch_size=4)
    shapes = r"state_dict\.module.* patch_embed\.proj\.weight .*\[64, 3, 4, 4\].*\[64, 3, 8, 8\].* backbone "
    for overrides, named in ((VIT, shapes), ([], r"stem\.0\.weight .*stem\.1\.weight .*stem\.1\.bias ")):
        with pytest.raises(ConfigError, match=f"^init={tmp_path / 'vit.pt'}: .*{named}"):
            _ = Parts(load([*overrides, f"init={tmp_path / 'vit.pt'}"])).method
    for given in ("none.pt", "."):
        with pytest.raises(ConfigError, match=r"^init=.*outputs/<name>/<run_id>"):
            load([f"init={tmp_path / given}"])


def test_arguments_reach_timm_and_a_vit_of_one_token_is_refused() -> None:
    assert Parts(load(VIT)).method.encoder.get_submodule("backbone.patch_embed").num_patches == 16
    for override, sentence in (
        (
            "backbone.args.patch_size=32",
            "backbone.args.patch_size=32: set backbone.args.patch_size to a divisor of 32 ",
        ),
        ("backbone.args.patchsize=8", "test_vit: set backbone.name to a network that timm can make with args="),
        ("backbone.args.pretrained=true", "backbone.args.pretrained=true: set backbone.args.pretrained to nothing: "),
    ):
        with pytest.raises(ConfigError) as refusal:
            _ = Parts(load([*VIT, override])).method
        assert sentence in str(refusal.value)


def backbone_of(folder: Path) -> dict[str, torch.Tensor]:
    state = checkpoint.load(folder, folder.name)
    assert state is not None
    return {k.partition("encoder.")[2]: v for k, v in state["method"].items() if "encoder." in k}


def test_a_frozen_backbone_of_a_run_stays_as_it_was_and_its_head_is_trained(
    trained: Path, train: Callable[..., Any]
) -> None:
    first = trained
    assert train("max_steps=3", f"init={first}", "backbone.freeze=true", "paths.outputs=second", "seed=1")[0] == 0
    second = only_run(Path("second"))
    before, after = backbone_of(first), backbone_of(second)
    backbone = [name for name in before if name.startswith("backbone.")]
    assert len(backbone) > 20 and all(torch.equal(before[name], after[name]) for name in backbone)
    mine = DigitsResNet(4, 1)
    load_weights(mine, read_weights(first / "checkpoints" / "last.pt"), "last.pt")
    assert all(torch.equal(value, before[f"backbone.{name}"]) for name, value in mine.state_dict().items())
    changed = [name for name in before if name.startswith("head.") and not torch.equal(before[name], after[name])]
    assert changed
    config = load([*SMALL, f"init={first}"])
    assert config["init"]["weights"].startswith(f"{first.name} after {config['epochs']} epochs #")


def test_a_run_that_starts_from_weights_calls_its_baseline_so(trained: Path, train: Callable[..., Any]) -> None:
    code, text = train(
        "max_steps=1", f"init={trained}", "evaluate=knn", "evaluate.baselines=[init]", "paths.outputs=second"
    )
    assert code == 0 and "weights of init" in text


NETWORK = DigitsResNet(4, 1)
with torch.no_grad():
    for value in (*NETWORK.parameters(), *NETWORK.buffers()):
        value += 1  # so that a fresh network has no tensor of it
ENDING = "set init to weights of this network, or backbone to the network of these weights"


def under(prefix: str, change: Callable[[Tensor], Tensor] = lambda value: value) -> dict[str, Tensor]:
    return {f"{prefix}{name}": change(value) for name, value in NETWORK.state_dict().items()}


OTHER, QUEUE = (lambda value: value + 1), torch.ones(3)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The package's messages."""
    log, found = logging.getLogger("ssl_bench"), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield found
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (under(""), []),
        (under("_orig_mod."), ["under _orig_mod "]),
        ({"model": under("encoder.module."), "epoch": 3}, ["under model.encoder.module "]),
        ({"trunk": {"base": under("_feature_blocks.")}}, ["under trunk.base._feature_blocks "]),
        (under("") | {"head.0.weight": QUEUE}, ["head (1)"]),
        (
            {
                "state_dict": under("module.encoder_k.", OTHER)
                | under("module.encoder_q.")
                | {"module.queue": QUEUE, "module.encoder_q.fc.0.weight": QUEUE, "module.encoder_q.fc.0.bias": QUEUE},
                "optimizer": {"state": {0: {"momentum_buffer": QUEUE}}},
            },
            [
                *("under state_dict.module.encoder_q ", "state_dict.module.encoder_k (54)", "which=momentum"),
                *("state_dict.module.encoder_q.fc (2)", "state_dict.module.queue (1)", "optimizer (1)"),
            ],
        ),
        (
            {"student": under("module.backbone.", OTHER), "teacher": under("backbone.") | {"head.bias": QUEUE}},
            ["under teacher.backbone ", "student (54)", "teacher.head (1)"],
        ),
        (under("momentum_backbone.", OTHER) | under("backbone."), ["under backbone ", "momentum_backbone"]),
        (under("net.") | under("model.net.", torch.clone), ["under net ", "model (54)"]),
        (under("features.") | {"features.0": QUEUE}, ["under features ", "features.0 (1)"]),
    ],
)
def test_a_network_is_found_under_any_prefix(content: Any, says: list[str], tmp_path: Path, logged: list[str]) -> None:
    torch.save(content, tmp_path / "file.pt")
    backbone = DigitsResNet(4, 1)
    load_weights(backbone, read_weights(tmp_path / "file.pt"), "file.pt")
    given = NETWORK.state_dict()
    assert all(torch.equal(value, given[name]) for name, value in backbone.state_dict().items())
    assert len(logged) == bool(says) and all(each in logged[0] for each in says)
    assert not says or logged[0].startswith("init: 54 ")


def test_weights_of_other_formats_are_converted_and_counters_of_batches_may_be_absent(tmp_path: Path) -> None:
    given, fresh = NETWORK.state_dict(), DigitsResNet(4, 1).state_dict()
    counters = [name for name in given if name.endswith("num_batches_tracked")]
    for convert in (Tensor.half, Tensor.bfloat16, Tensor.double):
        backbone = DigitsResNet(4, 1)
        load_weights(backbone, under("", convert), "")
        for name, value in backbone.state_dict().items():
            assert value.dtype == given[name].dtype
            assert torch.equal(value, (fresh if name in counters else given)[name]) or value.dtype == torch.float32
            assert torch.allclose(value, (fresh if name in counters else given)[name], rtol=2**-8)
    backbone = DigitsResNet(4, 1)
    old = {name: value for name, value in given.items() if name not in counters}
    torch.save(old, tmp_path / "old.pth")
    load_weights(backbone, read_weights(tmp_path / "old.pth"), "")
    assert all(torch.equal(v, (fresh if k in counters else given)[k]) for k, v in backbone.state_dict().items())


@pytest.mark.parametrize("skipped", [(), (nn.MaxPool2d,)])
def test_numbered_layers_are_those_of_the_network_in_order(skipped: Any, logged: list[str]) -> None:
    """As in nn.Sequential(*resnet.children()), which some people make without the max-pool."""
    resnet = torchvision.models.resnet18()
    layers = nn.Sequential(*(child for child in resnet.children() if not isinstance(child, skipped)))
    backbone = timm_backbone("resnet18", 3)
    load_weights(backbone, {f"net.backbone.{name}": value for name, value in layers.state_dict().items()}, "")
    given = resnet.state_dict()
    assert all(torch.equal(value, given[name]) for name, value in backbone.state_dict().items())
    (line,) = logged
    assert " 120 " in line and f"net.backbone.{9 - len(skipped)} (2)" in line
    deeper = nn.Sequential(*torchvision.models.resnet34().children()).state_dict()
    with pytest.raises(ConfigError, match=r"^init=x: layer1\.2\.conv1\.weight "):
        load_weights(backbone, deeper, "x")


def changed(name: str, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    weights = under("backbone.")
    return weights | {f"backbone.{name}": change(weights[f"backbone.{name}"])}


def with_nan(value: Tensor) -> Tensor:
    value = value.clone()
    value.view(-1)[-1] = float("nan")
    return value


FIRST = "stem.0.weight"


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({k: v for k, v in under("a.b.").items() if FIRST not in k}, f"a.b {FIRST}"),
        (changed(FIRST, lambda v: v[:2]), f"backbone {FIRST} [2, 1, 3, 3] [4, 1, 3, 3]"),
        (under("m.") | {"m.stages.3.body.0.weight": QUEUE}, "m stages.3.body.0.weight"),
        (changed(FIRST, with_nan), f"{FIRST} finite"),
        (changed("stem.1.running_var", lambda v: v / 0), "stem.1.running_var finite"),
        (changed(FIRST, lambda v: v.double() * 1e300), f"{FIRST} finite"),
        (changed(FIRST, Tensor.int), f"{FIRST} int32"),
        (changed(FIRST, Tensor.to_sparse), FIRST),
        ({"state_dict": under(""), "state_dict_ema": under("", OTHER)}, "state_dict state_dict_ema"),
        ({"epoch": 3}, "init"),
    ],
)
def test_weights_that_are_not_complete_and_finite_are_refused(content: Any, names: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "file.pt")
    backbone = DigitsResNet(4, 1)
    before = copy.deepcopy(backbone.state_dict())
    with refused(f"init={tmp_path / 'file.pt'} {names}"):
        load_weights(backbone, read_weights(tmp_path / "file.pt"), f"{tmp_path / 'file.pt'}")
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    torch.save(under(""), tmp_path / "cut.pt")
    whole = (tmp_path / "cut.pt").read_bytes()
    place = whole.index(NETWORK.state_dict()[FIRST].numpy().tobytes())
    (tmp_path / "cut.pt").write_bytes(whole[:-200])
    (tmp_path / "bit.pt").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    (tmp_path / "empty.pt").touch()
    (tmp_path / "empty.safetensors").touch()
    (tmp_path / "text.pt").write_text("no weights")
    torch.save({"model": fractions.Fraction(1)}, tmp_path / "class.pt")
    for name, why in (
        ("cut.pt", ""),
        ("bit.pt", ""),
        ("empty.pt", ""),
        ("empty.safetensors", ""),
        ("text.pt", "torch.save(model.state_dict(), FILE)"),
        ("class.pt", "fractions.Fraction torch.save(model.state_dict(), FILE)"),
        ("absent.pt", ""),
    ):
        with refused(f"init={tmp_path / name} {why}"):
            read_weights(tmp_path / name)


def test_shortcuts_of_another_library_are_taken_by_their_other_name() -> None:
    """HobbitLong/SupContrast and kuangliu/pytorch-cifar call timm's ``downsample`` ``shortcut``."""
    torch.manual_seed(0)
    given, images = timm_backbone("resnet18", 3, "cifar").eval(), torch.randn(2, 3, 32, 32)
    names = {name: f"model.encoder.module.{name.replace('downsample', 'shortcut')}" for name in given.state_dict()}
    weights = {names[name]: value for name, value in given.state_dict().items()} | {"model.head.0.weight": QUEUE}
    assert sum("shortcut" in name for name in weights) == 18
    backbone = timm_backbone("resnet18", 3, "cifar").eval()
    line = load_weights(backbone, weights, "last.pth")
    assert all(each in line for each in ("model.encoder.module", "model.head (1)", "shortcut is downsample"))
    with torch.no_grad():
        assert torch.equal(backbone.double()(images.double()), given.double()(images.double()))
    del weights[names["layer2.0.downsample.0.weight"]]
    with pytest.raises(ConfigError, match=r"layer2\.0\.downsample\.0\.weight "):
        load_weights(backbone, weights, "last.pth")
    assert "shortcut is" not in load_weights(DigitsResNet(4, 1), under("x."), "")  # has a shortcut of its own


def test_buffers_that_a_network_computes_are_left_out() -> None:
    """timm saved them once."""
    given: Any = timm.create_model(
        "swin_tiny_patch4_window7_224",
        num_classes=0,
        img_size=32,
        window_size=4,
        embed_dim=12,
        depths=(2, 2),
        num_heads=(2, 2),
    ).eval()
    buffers = {name: value for name, value in given.named_buffers() if name not in given.state_dict()}
    assert {name.rpartition(".")[2] for name in buffers} == {"relative_position_index", "attn_mask"}
    weights = {f"model.{name}": value for name, value in (given.state_dict() | buffers).items()}
    network = copy.deepcopy(given)
    with torch.no_grad():
        for value in network.parameters():
            value.zero_()
    load_weights(network, weights, "")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(network(images), given(images)) and given(images).abs().max() > 0
