"""Data that count as the same: images in two places, lists of labels, renamed folders, conditions in no run_id."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ssl_bench
from ssl_bench.config.identity import evaluation_id, run_id
from ssl_bench.record import evaluations, runs
from tests.door.door import enter
from tests.papers.conftest import composed

Capture = pytest.CaptureFixture[str]
KNN = {"_target_": "ssl_bench.evaluate.knn.KNN", "k": 20}


def entry(value: float, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    settings = KNN | ({"labels": labels} if labels else {})
    metric = f"knn/{evaluations.name_of_labels(labels)}/top1" if labels else "knn/top1"
    made = {"evaluator": "knn", "id": evaluation_id("knn", settings), "settings": settings, "images": None}
    return made | {"network": "", "epochs": 200, "metrics": {metric: value}}


def write(loss: str, seed: int, *entries: dict[str, Any], environment: Any = None, **changes: Any) -> Path:
    """A finished run; ``changes`` are those of its configuration."""
    config = composed(["name=g", f"loss={loss}", "epochs=200"], seed=seed)
    config |= {key: config[key] | value if isinstance(value, dict) else value for key, value in changes.items()}
    folder = Path("outputs/g") / run_id(config)
    folder.mkdir(parents=True)
    content = {"run_id": folder.name, "config": config, "seconds": 1.0, "evaluations": [*entries]}
    content |= {"metrics": evaluations.flat(entries, 200), "environment": environment or {}}
    (folder / "results.json").write_text(json.dumps(content))
    return folder


def own(root: str, content: str = "0123456789") -> dict[str, Any]:
    dataset = {"_target_": "ssl_bench.data.own.OwnFolder", "root": root, "content": content}
    return {"dataset": dataset, "choices": {"dataset": f"folder:{Path(root).name}"}}


def rows(command: str, capfd: Capture) -> list[dict[str, Any]]:
    answer = enter(f"{command} --format json", capfd)
    assert answer.code == 0, answer
    content = json.loads(answer.out)
    return content["cells"] if isinstance(content, dict) and "cells" in content else [
        row for table in (content if isinstance(content, list) else [content]) for row in table["rows"]
    ]  # fmt: skip


@pytest.mark.parametrize("moved", ["/there/photos", "/there/pictures"])
def test_equal_images_in_two_places_are_one_dataset(moved: str, capfd: Capture) -> None:
    for seed in (0, 1):
        folders = [write("infonce", seed, entry(0.5), **own("/here/photos"))]
        folders.append(write("dcl", seed, entry(0.6 + 0.1 * seed), **own(moved)))
        for folder, place in zip(folders, ("/here/photos", moved), strict=True):
            (folder / "command.txt").write_text(f"ssl-bench train dataset=folder dataset.root={place}")
            (folder / "config.yaml").write_text(json.dumps(json.loads((folder / "results.json").read_text())["config"]))
    (cell,) = rows("compare --by loss --to infonce g", capfd)
    assert (cell["n"], cell["where"], cell["difference"]) == (2, "", pytest.approx(15))
    for words in ("", "--rows loss"):
        means = {row["loss"]: (row["mean"], row["n"]) for row in rows(f"table g {words}", capfd)}
        assert means == {"infonce": (pytest.approx(50), 2), "dcl": (pytest.approx(65), 2)}
    assert "there" not in enter("table g --format md", capfd).out
    table: Any = ssl_bench.compare(by="loss", to="infonce")
    assert table["n"].tolist() == [2]
    assert sorted(ssl_bench.table("outputs/g")["mean"].round(9)) == [50, 65]


def of_list(content: str, folder: str = "") -> dict[str, str]:
    return {"file": f"{folder}/few.txt", "content": content * 16}


def test_a_list_of_labels_is_its_content(capfd: Capture) -> None:
    for seed in (0, 1):
        write("infonce", seed, entry(0.5, of_list("a")))
        write("dcl", seed, entry(0.7, of_list("b")), entry(0.4, of_list("a", "/moved")))
    names = [f"knn[labels={content * 16}]/labels_few/top1" for content in "ab"]
    for command in ("compare --by loss", "table loss=dcl,infonce --rows loss"):
        answer = enter(f"{command} --metric {names[0]} --format json", capfd)
        assert answer.code == 0 and "0.7" not in answer.out and "70" not in answer.out, answer
    (cell,) = rows(f"compare --by loss --to infonce --metric {names[0]}", capfd)  # which both have
    assert cell["difference"] == pytest.approx(-10)
    for folder in Path("outputs/g").iterdir():
        content = json.loads((folder / "results.json").read_text())
        content["evaluations"] = [
            one for one in content["evaluations"] if one["metrics"] != {"knn/labels_few/top1": 0.4}
        ]
        content["metrics"] = evaluations.flat(content["evaluations"], 200)
        (folder / "results.json").write_text(json.dumps(content))
    for command in ("compare --by loss", "table loss=dcl,infonce --rows loss"):
        answer = enter(f"{command} --metric knn/labels_few/top1", capfd)
        assert answer.code == 2 and all(name in answer.err for name in names), answer


def test_a_run_with_two_lists_of_one_name_has_a_name_for_each() -> None:
    folder = write("dcl", 0, entry(0.5, of_list("a")), entry(0.7, of_list("b", "/other")))
    content = runs.read_results(folder) or {}
    second = f"knn[labels={'b' * 16}]/labels_few/top1"
    assert content["metrics"] == {"knn/labels_few/top1": 0.5, second: 0.7}
    content["metrics"] = {"knn/labels_few/top1": 0.7}  # as version 0.3.0 wrote it
    (folder / "results.json").write_text(json.dumps(content))
    assert runs.read_results(folder) == content


def test_what_changes_bits_and_is_in_no_run_id_is_named(capfd: Capture) -> None:
    cpu, gpu = {"torch": "2.6.0"}, {"torch": "2.6.0", "cuda": "12.6", "precision": "bf16"}
    write("dcl", 0, entry(0.5), cosines="dense", compile_views=True, environment=cpu)
    write("dcl", 1, entry(0.5), cosines="tiled", compile_views=False, environment=cpu)
    write("infonce", 0, entry(0.6), graph=True, environment=gpu)
    write("infonce", 1, entry(0.6), graph="auto", environment=gpu | {"precision": "fp16", "cuda": "12.8"})
    notes = {row["loss"]: row["notes"] for row in rows("table g --rows loss", capfd)}
    assert notes["dcl"].endswith(" cosines (dense, tiled)")
    of_gpus = "versions of CUDA (12.6, 12.8), precision (bf16, fp16), graph (True, auto)"
    assert notes["infonce"].endswith(of_gpus)
    (cell,) = rows("compare --by loss --to infonce g", capfd)
    cuda, formats, graph = of_gpus.replace("), ", ")/").split("/")
    assert cell["differ"] == [cuda, formats, "cosines (auto, dense, tiled)", graph]
