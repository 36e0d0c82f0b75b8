"""``ssl-bench export``: the libraries alone load what it makes, with the features of the run; the texts of a card."""

import json
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
import torchvision
import yaml
from torch import Tensor, nn

from ssl_bench.commands.export import main
from ssl_bench.config.compose import load as compose
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError
from ssl_bench.networks.backbones import timm_backbone
from ssl_bench.networks.export import lines_to_build, load
from ssl_bench.papers.card import card
from ssl_bench.record import checkpoint
from ssl_bench.training import build
from tests.door.door import refuses
from tests.evaluated import with_evaluations

README = Path(__file__).parents[2] / "ssl_bench/networks/README.md"
SMALL = ["backbone=timm", "backbone.name=test_resnet"]  # half a million weights
VIT = ["backbone=timm", "backbone.name=test_vit"]


def run_directory(folder: Path, *overrides: str) -> nn.Module:
    """Make the directory of a run after its first step; return the run's backbone."""
    config = compose(["dataset=cifar10", *overrides])
    method = build.method(build.build(config))
    with torch.no_grad():
        for name, buffer in method.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()  # differs from a new network
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    checkpoint.save(folder, {"run_id": folder.name, "step": 1, "method": method.state_dict()})
    return method.encoder.get_submodule("backbone").eval()


def exported(folder: Path, form: str = "card") -> Path:
    """Export a run; return the folder of a card, or the JSON that describes the file of weights."""
    assert main([str(folder), "--format", form]) == 0
    return folder / "export" / ("card" if form == "card" else f"backbone_{form}.json")


def pieces(text: str, language: str) -> list[str]:
    """The blocks of one language in a text."""
    return re.findall(rf"```{language}\n(.*?)\n```", text, re.S)


def built(lines: str) -> Any:
    """The network that lines of Python make."""
    scope: dict[str, Any] = {}
    exec(lines, scope)
    return scope["model"].eval()


def images(channels: int = 3, size: int = 32) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


SLOW = pytest.mark.slow
FORMS: list[Any] = [
    # the form, overrides, the shape of an image, and what the lines have
    ("timm", VIT, (3, 32), "img_size=32"),
    ("timm", ["backbone=vit_moco_v3", *VIT[1:], "backbone.args.num_heads=2"], (3, 32), "img_size=32"),
    ("ssl_bench", ["dataset=scattered_digits", "backbone.width=4"], (1, 20), "ssl_bench"),
    ("card", ["dataset=scattered_digits", "backbone.width=4"], (1, 20), "ssl_bench"),
    ("card", SMALL, (3, 32), "local-dir:."),
    pytest.param("timm", ["backbone=resnet18_cifar", "backbone.in_channels=1"], (1, 32), "resnet18", marks=SLOW),
    pytest.param("timm", ["backbone=resnet18"], (3, 32), "resnet18", marks=SLOW),
    pytest.param("card", ["dataset=mnist", "backbone=resnet18_cifar"], (1, 32), "Conv2d(1, 64, 3, 1, 1", marks=SLOW),
    pytest.param("card", VIT, (3, 32), "local-dir:.", marks=SLOW),
    pytest.param("card", ["dataset=randbit_cifar10", "dataset.bits=2", *SMALL], (5, 32), "local-dir:.", marks=SLOW),
]


@pytest.mark.parametrize(("form", "overrides", "shape", "says"), FORMS)
def test_the_lines_of_an_export_build_the_network_of_the_run(
    form: str, overrides: list[str], shape: tuple[int, int], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = run_directory(Path("run"), *overrides)
    with torch.no_grad():
        expected = network(images(*shape))
    path = exported(Path("run"), form).absolute()
    if form == "card":
        assert {each.name for each in path.iterdir()} == {"README.md", "config.json", "model.safetensors"}
        text, folder = (path / "README.md").read_text(), path
        (lines,) = pieces(text, "python")
    else:
        description, folder = json.loads(path.read_text()), path.parent
        lines = "\n".join(description["load"])
        assert description["run_id"] == "run"
        with torch.no_grad():
            torch.testing.assert_close(load(path)[0].eval()(images(*shape)), expected)
    monkeypatch.chdir(folder)  # the lines name the file beside them
    with torch.no_grad():
        assert says in lines
        torch.testing.assert_close(built(lines)(images(*shape)), expected)
    if form == "timm":
        path.with_suffix(".pt").unlink()
        with pytest.raises(ConfigError, match=r"\.pt: "):
            load(path)


def test_the_lines_of_a_small_stem_build_the_network_of_the_run() -> None:
    network = timm_backbone("resnet18", 1, "cifar").eval()
    lines = lines_to_build({"name": "resnet18", "in_channels": 1, "stem": "cifar"}, network.state_dict())
    model = built("\n".join(["import torch", *lines]))
    model.load_state_dict(network.state_dict())
    with torch.no_grad():
        assert torch.equal(model(images(1)), network(images(1)))


def test_timm_and_torchvision_take_the_weights_as_their_own(tmp_path: Path) -> None:
    network = run_directory(tmp_path / "run", "dataset=imagenet100", *SMALL)
    card = exported(tmp_path / "run")
    model: Any = timm.create_model(f"local-dir:{card}", pretrained=True, num_classes=10).eval()
    with torch.no_grad():
        assert torch.equal(model.forward_head(model.forward_features(images(3, 64)), True), network(images(3, 64)))
        assert model(images(3, 64)).shape == (2, 10)
    data = timm.data.resolve_data_config(model=model)
    assert data["input_size"] == (3, 224, 224) and data["crop_pct"] == 224 / 256 and data["interpolation"] == "bilinear"
    assert (data["mean"], data["std"]) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    config = json.loads((card / "config.json").read_text())
    assert config["architecture"] == "test_resnet" and config["num_classes"] == 0 and config["num_features"] == 96
    assert not {"tag", "license", "paper_ids", "origin_url"} & set(config["pretrained_cfg"])
    network = run_directory(tmp_path / "resnet", "backbone=resnet18", "backbone.in_channels=3")
    of_torchvision: Any = torchvision.models.resnet18()
    of_torchvision.fc = nn.Identity()
    path = exported(tmp_path / "resnet", "timm").with_suffix(".pt")
    of_torchvision.load_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        torch.testing.assert_close(of_torchvision.eval()(images()), network(images()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backbone", [["backbone=resnet18_cifar"], VIT])
def test_the_lines_of_the_readme_export_a_run(backbone: list[str]) -> None:
    run_directory(Path("RUN"), *backbone)
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


def test_a_card_says_what_the_weights_are(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_directory(run, *SMALL, "loss=dcl", "scale=reduced", "paths.data=/home/me/data")
    assert "## Results" not in (exported(run) / "README.md").read_text()  # it has not finished
    config = yaml.safe_load((run / "config.yaml").read_text())
    metrics = {"knn/top1": 0.5, "knn_init/top1": 0.25, "knn_raw/top1": 0.125, "linear/lr": 0.003, "linear/top1": 0.75}
    record = {"run_id": "run", "config": config, "metrics": metrics, "seconds": 61.5, "name": "default"}
    record |= {"environment": {"torch": "2.15.0", "cuda": None}, "classes": ["2", "11"], "classes/other": ["a\n"]}
    (run / "results.json").write_text(json.dumps(with_evaluations(record)))
    card = exported(run)
    text = (card / "README.md").read_text()
    assert huggingface_hub.ModelCard(text).data.to_dict() == {
        "library_name": "timm",
        "pipeline_tag": "image-feature-extraction",
        "license": "unknown",
        "tags": ["image-feature-extraction", "timm", "representation-learning", "ssl_bench", "simclr", "dcl"],
    }
    assert "\n# test_resnet: simclr, dcl on cifar10\n" in text and "(`scale=reduced`)" in text
    settings = yaml.safe_load(pieces(text, "yaml")[0])
    assert run_id(settings) == run_id(config) and settings["evaluate"]["knn"] == config["evaluate"]["knn"]
    assert not {"paths", "tracking", "name", "devices"} & settings.keys()
    assert [line for line in text.splitlines() if line.startswith("| `")] == [
        "| `knn/top1` | 50.0% | 25.0% | 12.5% |",
        "| `linear/lr` | 0.003 |  |  |",
        "| `linear/top1` | 75.0% |  |  |",
    ]
    facts = dict(line[2:].split(": ", 1) for line in text.split("## How it was made")[1].splitlines() if "- " in line)
    assert facts["run_id"] == "run" and facts["optimiser step"] == "1" and facts["seconds"] == "61.5"
    assert facts["torch"] == "2.15.0" and "cuda" not in facts and len(facts["SHA-256 of the weights"]) == 64
    assert "/home/me" not in text and str(tmp_path) not in text + (card / "config.json").read_text()


def test_an_export_goes_where_it_is_told_and_replaces_no_file_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, out, card = tmp_path / "run", tmp_path / "a" / "b", ["--format", "card"]
    run_directory(run, *SMALL)
    for flags in (card, []):
        for _ in range(2):  # in its own folder an export takes the place of the earlier one
            assert main([str(run), *flags]) == 0
        assert main([str(run), *flags, "--out", str(out)]) == 0
    names = {"README.md", "config.json", "model.safetensors", "backbone_timm.pt", "backbone_timm.json"}
    assert {path.name for path in out.iterdir()} == names
    for form, name in (("card", "README.md"), ("card", "config.json"), ("timm", "backbone_timm.pt")):
        Path(name).mkdir()
        Path(name, name).write_text("mine")
        refuses(f"export {run} --format {form} --out {name}", f"--out {name}", capfd)
    refuses(f"export {run} --out /proc/nowhere", "/proc/nowhere", capfd, 1)
    run_directory(tmp_path / "digits", "dataset=scattered_digits")
    refuses(f"export {tmp_path}/digits --format timm", "--format backbone=resnet_digits card ssl_bench", capfd)
    (tmp_path / "mi").mkdir()
    (tmp_path / "mi" / "config.yaml").write_text("choices: {loss: dcl}\n")
    refuses(f"export {tmp_path}/mi", f"{tmp_path}/mi/config.yaml", capfd)
    refuses(f"export {tmp_path}/none", f"{tmp_path}/none paths.outputs", capfd)


def test_a_card_names_own_images_and_weights_and_no_place_name_or_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose(["dataset=cifar10", *SMALL, "loss=dclw"])
    own = {"_target_": "ssl_bench.data.own.OwnFolder", "root": "/home/SECRET/photos", "content": "c0ffee0123"}
    config["choices"]["dataset"], config["dataset"] = "folder:photos", {**config["dataset"], **own, "train_images": 540}
    for key in ("name", "torchvision", "pretrain", "held_out"):
        del config["dataset"][key]
    config["init"] = {"path": "/home/SECRET/vit.safetensors", "weights": "0123abcd"}
    config["backbone"]["freeze"] = True
    local: dict[str, Any] = {"_target_": "ssl_bench.evaluate.local_features.LocalFeatures"}
    local |= {"data": "/home/SECRET/coco", "images": "C:\\SECRET\\val\\", "k": [4]}
    config["evaluate"]["local_features"] = local
    (tmp_path / "mine.py").write_text(
        "from ssl_bench.objective.negatives import InBatch\nclass Bank(InBatch):\n    'Mine.'\n"
        "    def __init__(self, bank):\n        super().__init__()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "mine")
    config["negatives"] = {"_target_": "mine.Bank", "bank": "/home/SECRET/bank 1"}
    config |= {"plugins": {"mine": "1.0"}, "name": "SECRET", "tracking": {"entity": "SECRET"}}
    config["paths"] = {"data": "/home/SECRET", "outputs": "SECRET"}
    knn = {"on": {"dataset": "folder", "root": "SECRET"}, "labels": {"file": "SECRET", "content": "1f"}}
    evaluated = [("local_features", local, {"local_features/k4": 0.5})]
    evaluated += [("knn", {**config["evaluate"]["knn"], **more}, {"knn/few/top1": 0.25}) for more in (knn, {"k": 7})]
    entries = [
        {"evaluator": name, "id": str(n), "settings": node, "network": "", "epochs": config["epochs"], "metrics": made}
        for n, (name, node, made) in enumerate(evaluated)
    ]
    results = {"config": config, "seconds": 1.0, "metrics": {}, "evaluations": entries}
    text = card(config, results | {"environment": {"torch": "2.15.0", "hostname": "SECRET"}}, {"run_id": "x"}, [])
    for words in ("bank: bank 1", "images: val", "on photos\n", "540", "c0ffee0123", "vit.safetensors (0123abcd)"):
        assert words in text
    assert "frozen" in text and "weights: 0123abcd" in text and "SECRET" not in text and "/home" not in text
    _, few, seven = yaml.safe_load(pieces(text, "yaml")[0])["evaluate"].items()
    assert few[1]["labels"] == "1f" and "labels" not in seven[1] and (few[1]["k"], seven[1]["k"]) == (200, 7)
    assert few[0].startswith("knn[") and f"| `{few[0]}/top1` | 25.0% |" in text and few[0] != seven[0]
