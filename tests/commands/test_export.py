"""``ssl-bench export``: timm itself loads a card's folder with the features of the run; its texts, and refusals."""

import json
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
import yaml
from torch import Tensor

from ssl_bench.commands.export import main
from ssl_bench.config.identity import run_id
from ssl_bench.papers.card import card
from tests.door.door import refuses
from tests.evaluated import with_evaluations
from tests.networks.test_export import run_directory

SMALL = ["backbone=timm", "backbone.name=test_resnet"]  # half a million weights


def exported(folder: Path, *flags: str) -> Path:
    """Export a card; return the folder that has it."""
    assert main([str(folder), "--format", "card", *flags]) == 0
    return folder / "export" / "card"


def pieces(card: Path, language: str) -> list[str]:
    """The blocks of one language in a card."""
    return re.findall(rf"```{language}\n(.*?)\n```", (card / "README.md").read_text(), re.S)


def head(card: Path) -> dict[str, Any]:
    """The YAML head, as the client of the hub reads it."""
    content: dict[str, Any] = huggingface_hub.ModelCard.load(card / "README.md").data.to_dict()
    return content


def images(channels: int, size: int) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "channels", "load"),
    [
        (SMALL, 3, "local-dir:."),
        (["dataset=mnist", "backbone=resnet18_cifar"], 1, "model.conv1 = torch.nn.Conv2d(1, 64, 3, 1, 1"),
        (["backbone=timm", "backbone.name=test_vit"], 3, "local-dir:."),
        (["dataset=randbit_cifar10", "dataset.bits=2", *SMALL], 5, "local-dir:."),
    ],
)
def test_timm_loads_a_card_with_the_lines_in_it(
    overrides: list[str], channels: int, load: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = run_directory(tmp_path / "run", *overrides)
    card = exported(tmp_path / "run")
    assert sorted(path.name for path in card.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    monkeypatch.chdir(card)
    (block,) = pieces(card, "python")
    assert load in block
    scope: dict[str, Any] = {}
    exec(block, scope)
    with torch.no_grad():
        assert torch.equal(scope["model"](images(channels, 32)), network(images(channels, 32)))


def test_timm_gives_the_weights_a_new_classifier_and_reads_the_images_of_the_run(tmp_path: Path) -> None:
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


def test_timm_refuses_the_weights_of_a_replaced_stem_without_the_lines_of_the_card(tmp_path: Path) -> None:
    run_directory(tmp_path / "run", "backbone=resnet18_cifar")
    card = exported(tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"size mismatch for conv1\.weight"):
        timm.create_model(f"local-dir:{card}", pretrained=True)


def finished(folder: Path) -> None:
    """Add what a run writes at its start and its end."""
    metrics = {"knn/top1": 0.5, "knn_init/top1": 0.25, "knn_raw/top1": 0.125, "linear/lr": 0.003, "linear/top1": 0.75}
    record = {
        "run_id": folder.name,
        "config": yaml.safe_load((folder / "config.yaml").read_text()),
        "metrics": metrics,
        "seconds": 61.5,
        "name": "default",
    }
    record |= {"environment": {"torch": "2.15.0", "cuda": None}, "classes": ["2", "11"], "classes/other": ["a\n"]}
    (folder / "results.json").write_text(json.dumps(with_evaluations(record)))


def test_a_card_says_what_the_weights_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run_directory(run, *SMALL, "loss=dcl", "scale=reduced", "paths.data=/home/me/data")
    finished(run)
    card = exported(run)
    assert capsys.readouterr().out == f"{card / 'README.md'}\n"
    text = (card / "README.md").read_text()
    assert head(card) == {
        "library_name": "timm",
        "pipeline_tag": "image-feature-extraction",
        "license": "unknown",
        "tags": ["image-feature-extraction", "timm", "representation-learning", "ssl_bench", "simclr", "dcl"],
    }
    assert "\n# test_resnet: simclr, dcl on cifar10\n" in text and "(`scale=reduced`)" in text
    config = yaml.safe_load((run / "config.yaml").read_text())
    (recipe,) = pieces(card, "yaml")
    settings = yaml.safe_load(recipe)
    assert run_id(settings) == run_id(config) and settings["evaluate"]["knn"] == config["evaluate"]["knn"]
    assert not {"paths", "tracking", "name", "devices"} & settings.keys()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows == [
        "| metric | pre-trained | random initialisation | raw pixels |",
        "| --- | ---: | ---: | ---: |",
        "| `knn/top1` | 50.0% | 25.0% | 12.5% |",
        "| `linear/lr` | 0.003 |  |  |",
        "| `linear/top1` | 75.0% |  |  |",
    ]
    facts = dict(line[2:].split(": ", 1) for line in text.split("## How it was made")[1].splitlines() if "- " in line)
    assert facts["run_id"] == "run" and facts["optimiser step"] == "1" and facts["seconds"] == "61.5"
    assert facts["torch"] == "2.15.0" and "cuda" not in facts and len(facts["SHA-256 of the weights"]) == 64
    assert "/home/me" not in text and str(tmp_path) not in text + (card / "config.json").read_text()


def test_a_card_of_an_unfinished_run_has_no_results(tmp_path: Path) -> None:
    run_directory(tmp_path / "run", *SMALL, "framework=supervised")
    text = (exported(tmp_path / "run") / "README.md").read_text()
    assert "has not finished, so that there are no results yet" in text and "## Results" not in text
    assert "\n# test_resnet: supervised on cifar10\n" in text


def test_an_export_goes_where_it_is_told_and_replaces_no_file_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "a" / "b"
    run_directory(run, *SMALL)
    card = ["--format", "card"]
    for flags in (card, []):
        for _ in range(2):  # in its own folder an export takes the place of the earlier one
            assert main([str(run), *flags]) == 0
        assert main([str(run), *flags, "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "backbone_timm.json")
    names = {"README.md", "config.json", "model.safetensors", "backbone_timm.pt", "backbone_timm.json"}
    assert {path.name for path in out.iterdir()} == names
    for flags, name in ((card, "README.md"), (card, "config.json"), ([], "backbone_timm.pt")):
        mine = tmp_path / name
        mine.mkdir()
        (mine / name).write_text("mine")
        assert main([str(run), *flags, "--out", str(mine)]) == 2
        refused = capsys.readouterr().err
        assert refused.startswith(f"ssl-bench: --out={mine}: ") and name in refused and refused.count("\n") == 1
        assert [(path.name, path.read_text()) for path in mine.iterdir()] == [(name, "mine")]
    assert main([str(run), "--out", "/proc/nowhere"]) == 1 and "/proc/nowhere" in capsys.readouterr().err


def test_what_cannot_be_exported_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_directory(tmp_path / "digits", "dataset=scattered_digits")
    (tmp_path / "mi").mkdir()
    (tmp_path / "mi" / "config.yaml").write_text("choices: {loss: dcl}\n")
    refuses(f"export {tmp_path}/digits --format timm", "--format backbone=resnet_digits card ssl_bench", capfd)
    refuses(f"export {tmp_path}/mi", f"{tmp_path}/mi/config.yaml", capfd)
    refuses(f"export {tmp_path}/none", f"{tmp_path}/none paths.outputs", capfd)


@pytest.mark.parametrize("form", [(), ("--format", "card")])
def test_a_network_that_timm_does_not_have_is_loaded_with_this_package(
    form: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = run_directory(tmp_path / "run", "dataset=scattered_digits", "backbone.width=4")
    assert main([str(tmp_path / "run"), *form]) == 0
    path = Path(capsys.readouterr().out.strip())
    lines = pieces(path.parent, "python")[0] if form else "\n".join(json.loads(path.read_text())["load"])
    monkeypatch.chdir(path.parent)
    scope: dict[str, Any] = {}
    exec(lines, scope)
    with torch.no_grad():
        assert torch.equal(scope["model"](images(1, 20)), network(images(1, 20)))
    if form:
        assert head(path.parent)["library_name"] == "ssl_bench"
        assert "# resnet_digits: simclr, infonce on scattered_digits\n" in path.read_text()
        assert sorted(each.name for each in path.parent.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_a_card_names_own_images_and_the_weights_that_it_started_from(tmp_path: Path) -> None:
    run_directory(tmp_path / "run", *SMALL)
    path = tmp_path / "run" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["choices"]["dataset"] = "folder:photos"
    config["dataset"] |= {
        "_target_": "ssl_bench.data.own.OwnFolder",
        "root": "/home/me/photos",
        "content": "c0ffee0123",
    }
    for key in ("name", "torchvision", "pretrain", "held_out"):
        del config["dataset"][key]
    config["dataset"]["train_images"] = 540
    config["init"] = {"path": "/home/me/vit.safetensors", "weights": "0123abcd"}
    config["backbone"]["freeze"] = True
    path.write_text(yaml.safe_dump(config))
    card = (exported(tmp_path / "run") / "README.md").read_text()
    assert "on photos\n" in card and "pre-trained on photos (540 images, content c0ffee0123) with ssl_bench." in card
    assert (
        "It started from vit.safetensors (0123abcd). The backbone was frozen." in card and "weights: 0123abcd" in card
    )
    assert "/home/me" not in card


def test_a_card_has_no_place_name_or_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_directory(tmp_path / "run", *SMALL, "loss=dclw")
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    config["evaluate"]["local_features"] = {"_target_": "ssl_bench.evaluate.local_features.LocalFeatures"}
    config["evaluate"]["local_features"] |= {"data": "/home/SECRET/coco", "images": "C:\\SECRET\\val\\", "k": [4]}
    (tmp_path / "mine.py").write_text(
        "from ssl_bench.objective.negatives import InBatch\nclass Bank(InBatch):\n    'Mine.'\n"
        "    def __init__(self, bank):\n        super().__init__()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "mine")
    config["negatives"] = {"_target_": "mine.Bank", "bank": "/home/SECRET/bank 1"}
    config["plugins"] = {"mine": "1.0"}
    config |= {
        "name": "SECRET",
        "paths": {"data": "/home/SECRET", "outputs": "SECRET"},
        "tracking": {"entity": "SECRET"},
    }
    knn = {"on": {"dataset": "folder", "root": "SECRET"}, "labels": {"file": "SECRET", "content": "1f"}}
    evaluated = [("local_features", config["evaluate"]["local_features"], {"local_features/k4": 0.5})]
    evaluated += [("knn", {**config["evaluate"]["knn"], **more}, {"knn/few/top1": 0.25}) for more in (knn, {"k": 7})]
    entries = [
        {"evaluator": name, "id": str(n), "settings": node, "network": "", "epochs": config["epochs"], "metrics": made}
        for n, (name, node, made) in enumerate(evaluated)
    ]
    results = {"config": config, "seconds": 1.0, "metrics": {}, "evaluations": entries}
    results["environment"] = {"torch": "2.15.0", "hostname": "SECRET"}
    text = card(config, results, {"run_id": "x"}, [])
    assert "bank: bank 1" in text and "images: val" in text and "SECRET" not in text and "/home" not in text
    assert "## How it was made\n\n- run_id: x\n- seconds: 1.0\n- torch: 2.15.0\n" in text
    _, few, seven = yaml.safe_load(re.findall(r"```yaml\n(.*?)\n```", text, re.S)[0])["evaluate"].items()
    assert few[1]["labels"] == "1f" and "labels" not in seven[1] and (few[1]["k"], seven[1]["k"]) == (200, 7)
    assert few[0].startswith("knn[") and f"| `{few[0]}/top1` | 25.0% |" in text and few[0] != seven[0]
