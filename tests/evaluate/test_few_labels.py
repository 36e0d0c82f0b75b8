"""The labels of the images that a file lists, and evaluations on several data sets."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ssl_bench.commands.evaluate import main
from ssl_bench.config import identity, schema
from ssl_bench.config.compose import load
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.few_labels import FewLabels
from ssl_bench.record import evaluations
from ssl_bench.training import build
from ssl_bench.training.validate import validate
from tests.conftest import only_run
from tests.evaluated import targets_of


def photos(root: str, classes: int = 2, count: int = 12) -> list[str]:
    words = ["dataset=folder", f"dataset.root={root}", "dataset.size=16", "backbone=resnet_digits", "backbone.width=4"]
    for split, c in itertools.product(("train", "test"), range(classes)):
        Path(root, split, f"c{c}").mkdir(parents=True)
        for i in range(count):
            generator = np.random.default_rng([100 * c + i, split == "test"])
            pixels = generator.integers(0, 256, (20, 20 + i, 3), dtype=np.uint8) // (c + 1)
            Image.fromarray(pixels).save(f"{root}/{split}/c{c}/{c}_{i:02}.png")
    return [*words, "tracking=off"]


def trained_on(words: list[str]) -> list[str]:
    """The names of the training images."""
    source: Any = build.dataset(load(words)).split("train")
    return [Path(source.name(i)).name for i in range(len(source))]


def test_a_file_lists_the_images_that_have_labels(capfd: pytest.CaptureFixture[str]) -> None:
    words = photos("photos")
    names = trained_on(words)
    chosen = [names[13], names[2], names[7], names[20]]
    Path("few.txt").write_text("\n".join([*chosen[:2], "", f"c0/{chosen[2]} ", chosen[3], ""]))
    config = load([*words, "framework=frozen", "evaluate=knn", "evaluate.knn.k=2", "evaluate.labels=[few.txt,1.0]"])
    schema.check(config)
    run = build.build(config)
    targets = targets_of(run, {"": build.method(run).encoder})
    few, whole = targets["/labels_few/"], targets["/"]
    assert isinstance(few, FewLabels) and few.train.ids.tolist() == [2, 7, 13, 20]  # type: ignore[attr-defined]
    assert torch.equal(few.features("train")["backbone"], whole.features("train")["backbone"][[2, 7, 13, 20]])

    command = ["--weights", "random", *words, "evaluate=knn", "evaluate.knn.k=2"]
    assert main([*command, "evaluate.labels=[few.txt]"]) == 0
    metrics = json.loads((only_run() / "results.json").read_text())["metrics"]
    assert metrics.keys() == {"knn/labels_few/top1"}
    Path("moved").mkdir()
    Path("few.txt").rename("moved/few.txt")
    assert main([*command, "evaluate.labels=[moved/few.txt]"]) == 0 and "already done" in capfd.readouterr().out
    Path("moved/few.txt").write_text("\n".join(names[:3]))
    assert main([str(only_run()), "evaluate.labels=[moved/few.txt]"]) == 0
    assert len(json.loads((only_run() / "results.json").read_text())["evaluations"]) == 2


def test_lists_that_cannot_be_used_are_refused() -> None:
    words = [*photos("photos"), "framework=frozen", "evaluate=knn", "evaluate.knn.k=2"]
    names = trained_on(words)
    Path("absent.txt").write_text("\n".join([names[0], "x.png", "y.png"]))
    Path("empty.txt").write_text("\n \n")
    Path("bytes.txt").write_bytes(b"\xff\xfe\x00")
    Path("good.txt").write_text(names[0])

    def refusal(*words: str) -> str:
        with pytest.raises(ConfigError, match=r"^evaluate\.labels") as refused:
            config = load([*words])
            schema.check(config)
            validate(config, 1)
        return str(refused.value)

    for given in ("[none.txt]", "[empty.txt]", "[bytes.txt]", "[good.txt,good.txt]", "good.txt"):
        assert re.sub(r"[\[\]]|,.*", "", given) in refusal(*words, f"evaluate.labels={given}")
    assert "2 of 3" in refusal(*words, "evaluate.labels=[absent.txt]")
    refusal("framework=frozen", "evaluate.labels=[good.txt]")  # images without files
    config = load([*words, "evaluate.labels=[good.txt]"])
    Path("good.txt").write_text(names[1])
    with pytest.raises(ConfigError, match=r"^evaluate\.labels.*good\.txt"):
        validate(config, 1)
    Path("photos/train/c1/1_00.png").rename("photos/train/c1/0_00.png")
    Path("good.txt").write_text("0_01.png\n0_00.png")
    assert "FOLDER/NAME" in refusal(*words, "evaluate.labels=[good.txt]")


def test_a_network_is_evaluated_on_several_data_sets(train: Callable[..., tuple[int, str]]) -> None:
    first, _, other = photos("first"), photos("second", classes=3), "{dataset: folder, root: second, size: 16}"
    words = [*first, "head.out=16", "batch_size.size=8", "epochs=1", "evaluate=knn", "evaluate.baselines=[]"]
    on = "evaluate.on=[{dataset: folder, root: third, size: 16}, " + other + "]"
    photos("third")
    assert train(*words, on, "evaluate.knn.k=3", small=False)[0] == 0
    run = only_run()
    results = json.loads((run / "results.json").read_text())
    assert {name for name in results["metrics"] if "_" not in name} == {"knn/third/top1", "knn/second/top1"}
    assert main([str(run), "evaluate.on=" + other]) == 0  # is there already
    assert len(json.loads((run / "results.json").read_text())["evaluations"]) == 2
    alone = json.loads((run / "results.json").read_text())["metrics"]["knn/second/top1"]
    assert main([str(run), "evaluate.on=null"]) == 0
    metrics = json.loads((run / "results.json").read_text())["metrics"]
    assert "knn/top1" in metrics and len(metrics) == 6
    assert metrics["knn/second/top1"] == alone == results["metrics"]["knn/second/top1"]
    assert metrics["knn/third/top1"] == metrics["knn/top1"]  # the same images
    with pytest.raises(ConfigError, match=r"^evaluate\.on"):
        schema.check(load([*words, f"evaluate.on=[{other},{other}]"]))


def test_a_share_has_a_k_of_its_own() -> None:
    """A fiftieth of the labelled images, at most; all labels keep theirs, and so does a k that is set."""
    words = ["evaluate=knn", "evaluate.labels=[0.01,0.1,1.0]"]
    config = load(words)
    entries = [entry for entry in evaluations.asked(config) if not entry["network"]]
    assert [entry["settings"]["k"] for entry in entries] == [1, 2, 20]  # of 13, 134 and 1347 images
    assert entries[2]["id"] == evaluations.asked(load(["evaluate=knn"]))[0]["id"]
    assert [build.evaluators(config, None, labels)["knn"].k for labels in (0.01, 0.1, 1.0)] == [1, 2, 20]  # type: ignore[attr-defined]
    validate(config, 1)
    with pytest.raises(ConfigError, match=r"^evaluate.knn.k=\[?30\]?: .*1 to 1"):
        validate(load([*words, "evaluate.knn.k=30"]), 1)
    large = load(["dataset=cifar10", *words])
    assert [entry["settings"]["k"] for entry in evaluations.asked(large) if not entry["network"]] == [10, 100, 200]


def test_classes_without_a_label_are_named() -> None:
    words = photos("photos", classes=3)
    names = trained_on(words)
    Path("few.txt").write_text("\n".join([name for name in names if name.startswith("1_")][:3]))
    command = ["--weights", "random", *words, "evaluate=knn", "evaluate.knn.k=2", "evaluate.labels=[few.txt,1.0]"]
    assert main(command) == 0
    said = json.loads((only_run() / "results.json").read_text())["warnings"]
    assert sum(sentence.startswith("labels_few: ") and " 2 of 3 classes (c0, c2)" in sentence for sentence in said) == 1


def held_out(*words: str) -> dict[str, tuple[str, str | None]]:
    """Identity and ``hold_out`` of the linear probe of each of the labels."""
    entries = [entry for entry in evaluations.asked(load(["evaluate=linear", *words])) if not entry["network"]]
    named = {identity.name_of_labels(entry["settings"].get("labels", 1)): entry for entry in entries}
    return {name: (entry["id"], entry["settings"].get("hold_out")) for name, entry in named.items()}


def test_what_a_probe_holds_out_is_in_the_identity_of_few_labels_and_of_no_others() -> None:
    """Many labels have the identities of version 0.3.0."""
    shares = "evaluate.labels=[0.01,0.1,0.5,1.0]"
    many = {"labels0.1": ("a2a3559296", None), "labels0.5": ("0ad9da2482", None), "": ("fec1812694", None)}
    before = "12f2a20314"  # of a hundredth
    cifar10, digits, stl10 = (held_out(f"dataset={name}", shares) for name in ("cifar10", "scattered_digits", "stl10"))
    assert cifar10 == {"labels0.01": (before, None), **many}
    few = digits["labels0.01"]
    assert few[1] == digits["labels0.1"][1] == "none" and few[0] != before
    assert {name: digits[name] for name in ("labels0.5", "")} == {name: many[name] for name in ("labels0.5", "")}
    assert stl10 == {"labels0.01": few, **many}  # of 5,000 images, and not of 105,000
    kept = held_out("dataset=scattered_digits", "evaluate.labels=[0.01]", "evaluate.linear.hold_out=images")
    assert kept == {"labels0.01": (before, None)}


def test_a_number_of_an_earlier_version_stays_another_one() -> None:
    """It is not asked for any more, and has its own name beside the one that is."""
    config = load(["dataset=scattered_digits", "evaluate=linear", "evaluate.labels=[0.01]", "evaluate.baselines=[]"])
    (now,) = evaluations.asked(config)
    settings = {key: value for key, value in now["settings"].items() if key != "hold_out"}
    then = {**now, "settings": settings, "id": identity.evaluation_id("linear", settings)}
    name = "linear/labels0.01/top1"
    recorded = [{**then, "metrics": {name: 0.2}}]
    assert evaluations.missing(recorded, config) == [now] and evaluations.of(recorded, config) == {}
    recorded.append({**now, "metrics": {name: 0.6}})
    assert evaluations.of(recorded, config) == {name: 0.6}
    assert evaluations.flat(recorded, config["epochs"]) == {name: 0.2, "linear[hold_out=none]/labels0.01/top1": 0.6}


def test_small_classes_of_ones_own_images_are_known() -> None:
    words = photos("few")
    assert held_out(*words)[""][1] == "none"  # 24 images of 2 classes
    rare = photos("rare", count=40)
    for path in sorted(Path("rare/train/c1").iterdir())[2:]:
        path.unlink()
    for path in sorted(Path("rare/train/c0").iterdir()):
        path.with_name(f"more_{path.name}").write_bytes(path.read_bytes() + b"more")
    assert held_out(*rare)[""][1] == "classes"  # 82 images, of which 2 are of the second class
    names = [str(path.relative_to("rare/train")) for path in Path("rare/train").glob("c*/*")]
    Path("few.txt").write_text("\n".join(names[:39]))
    assert held_out(*rare, "evaluate.labels=[few.txt]")["labels_few"][1] == "none"
    Path("many.txt").write_text("\n".join(names[:40]))
    assert held_out(*rare, "evaluate.labels=[many.txt]")["labels_many"][1] is None
