"""The configuration: every option composes and builds, what a command asks for, arguments, and text as it was typed."""

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import yaml
from msgspec import Meta
from omegaconf import DictConfig, OmegaConf
from PIL import Image

from ssl_bench.commands import train as of_training
from ssl_bench.config.build import build, directory, located, signature
from ssl_bench.config.command import Command
from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.config.ranges import Count, Positive, Probability, converted, in_range
from ssl_bench.config.reference import explained
from ssl_bench.config.schema import check
from ssl_bench.config.with_hydra import TEXT_KEY, as_typed, composed
from ssl_bench.errors import InvalidValue
from ssl_bench.launch.slurm import script
from ssl_bench.training import build as of_run
from tests.data.photos import photos
from tests.door.door import refused

# Those of these groups are composed where each is trained: methods/test_contrastive.py and test_base.py.
TRAINED = {"loss", "negatives", "temperature", "positives", "framework"}
ALL = {path.parent.name for path in directory().glob("*/*.yaml")} - {"experiment", "local"}
GROUPS = sorted(ALL - {"evaluate"} - TRAINED)


def options(group: str) -> list[str]:
    own = {"arrays", "folder", "hf"}  # which need images: tests/data/test_own.py
    return sorted({path.stem for path in directory().glob(f"{group}/*.yaml")} - own)


@pytest.mark.parametrize("chosen", [*itertools.zip_longest(*map(options, GROUPS))], ids=str)
def test_every_option_of_a_group_composes_and_builds(chosen: tuple[str | None, ...]) -> None:
    """Each composition has an option of every group that has so many."""
    choices = {group: option for group, option in zip(GROUPS, chosen, strict=True) if option}
    config = load([f"{group}={option}" for group, option in choices.items()])
    check(config)
    run = of_run.build(config)
    assert run.views and run.recipe and run.dataset
    assert choices.items() <= config["choices"].items()


def test_every_evaluator_composes_and_builds(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png")
    images = [f"evaluate.local_features.images={tmp_path}", "evaluate.local_features.annotations=null"]
    objective = ["framework=frozen", "loss=infonce", "temperature=fixed"]  # which some of them measure
    config = load([f"evaluate=[{','.join(options('evaluate'))}]", *images, *objective])
    check(config)
    nodes = [name for name, node in config["evaluate"].items() if isinstance(node, dict)]
    assert list(of_run.evaluators(config)) == nodes
    assert {*options("evaluate")} - {"auto", "protocols"} <= {*nodes}


def test_a_dataset_selects_other_options_and_the_command_line_overrides_them() -> None:
    chosen = load(["dataset=cifar10", "augment=moco_v2"])
    assert chosen["choices"]["backbone"] == "resnet18_cifar"
    assert chosen["choices"]["augment"] == "moco_v2"
    assert chosen["augment"]["size"] == 32 and chosen["evaluate"]["knn"]["k"] == 200
    assert chosen["batch_size"]["size"] == 256 and chosen["epochs"] == 200


@pytest.mark.parametrize(("typed", "gpus", "cpus"), [([], 8, 64), (["launcher.nodes=2"], 4, 32)])
def test_slurm_is_asked_for_the_gpus_of_a_node_and_eight_cores_for_each(
    typed: list[str], gpus: int, cpus: int, tmp_path: Path
) -> None:
    settings = Command.of(["launcher=slurm", "devices=8", *typed]).settings
    sbatch, srun = script(settings, tmp_path, 1).split("# command\n")
    assert f"#SBATCH --gpus-per-node={gpus}\n" in sbatch and f"#SBATCH --cpus-per-task={cpus}\n" in sbatch
    assert f" --cpus-per-task={cpus} " in srun  # which does not know it from sbatch


def test_the_written_configuration_is_that_of_the_run(trained: Path) -> None:
    written: dict[str, Any] = yaml.safe_load((trained / "config.yaml").read_text())
    assert run_id(written) == trained.name
    assert json.loads((trained / "results.json").read_text())["config"] == written


# ---- a run or a grid, and where it is carried out

LOCAL = ["launcher=local", "launcher.jobs=3"]


def test_the_launcher_is_no_part_of_the_runs() -> None:
    command = Command.of([*LOCAL, "loss=dcl,eqco", "seed=range(0,2)", "epochs=1"], multirun=True)
    assert (command.launcher, command.settings) == ("local", {"jobs": 3, "runs_per_gpu": 1})
    assert command.many and command.swept == ["loss", "seed"]
    losses = [(f"loss={loss}", f"seed={seed}", "epochs=1") for loss in ("dcl", "eqco") for seed in (0, 1)]
    assert command.combinations() == losses
    alone = Command.of([*LOCAL, "loss=dcl"])
    assert not alone.many and alone.overrides == ("loss=dcl",) and alone.cfg.launcher.jobs == 3
    assert Command.of([]).launcher == "here" and load([*LOCAL])["choices"]["launcher"] == "local"


def test_an_experiment_asks_for_a_grid_and_a_launcher_and_the_command_line_comes_first(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [override /launcher: local]\nlauncher: {jobs: 2}\n"
        "hydra: {mode: MULTIRUN, sweeper: {params: {temperature.tau: '0.1,0.2', seed: '0,1'}}}\n"
    )
    command = Command.of(["experiment=mine", "seed=4"], tmp_path)
    assert command.many and (command.launcher, command.settings["jobs"]) == ("local", 2)
    assert [run[:2] for run in command.combinations()] == [(f"temperature.tau={t}", "seed=4") for t in (0.1, 0.2)]


def test_globs_have_the_options_of_a_folder_too_and_equal_runs_are_one(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "dcl_mine.yaml").write_text("_target_: ssl_bench.objective.losses.DCL\n")
    command = Command.of(["loss=glob(dcl*)", "seed=1,1"], tmp_path, True)
    assert command.combinations() == [(f"loss={loss}", "seed=1") for loss in ("dcl", "dcl_mine", "dclw")]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("batch_size=48", "batch_size.size=48"),
        ("temperature=0.3", "temperature.tau=0.3"),
        ("negatives.k=4", "negatives=random_k negatives.k=4"),
        ("negatives=4", "negatives=random_k negatives.k=4"),
        ("dataset=photos", "dataset=folder dataset.root=photos"),
        ("framework=moco_v2 negatives.k=64", "framework=moco_v2 negatives=queue negatives.k=64"),
    ],
)
def test_a_short_form_is_the_same_configuration(short: str, long: str) -> None:
    photos(Path("photos"), "a", "b")
    one, other = (load(words.split()) for words in (short, long))
    assert one == other and run_id(one) == run_id(other)


# ---- arguments of constructors


FIXED = {"_target_": "ssl_bench.objective.temperature.Fixed"}


@pytest.mark.parametrize(
    ("node", "key", "names"),
    [
        (FIXED, "temperature", "temperature.tau"),
        (FIXED | {"tau": True}, "temperature", "temperature.tau=true"),
        (FIXED | {"tau": float("nan")}, "temperature", "temperature.tau=nan"),
        ({"_target_": "ssl_bench.objective.temperature.Fixd"}, "temperature", "temperature._target_ Temperature"),
        ({"rule": "cubic"}, "optimizer", "optimizer.rule=cubic linear sqrt none"),
        ({"betas": [0.9, 0.99]}, "optimizer", "optimizer.betas SGD"),
        ({"layers": 3, "hidden": 20_000_000}, "head", "head"),  # 4e14 weights are beyond the address space
    ],
)
def test_arguments_are_checked_against_the_constructor_and_its_base_class(
    node: dict[str, Any], key: str, names: str
) -> None:
    with refused(names):
        build(node if "_target_" in node else load()[key] | node, key, **({"inputs": 1} if key == "head" else {}))
    assert float(build({**FIXED, "tau": 1}, "temperature").tau) == 1.0  # an integer where a number is expected


# ---- text; a YAML file has to quote it

WORDS = ["1e5", "12e45", "1.10", "2024_01_15", "0123", "0x10", "1_000", ".5", "null", "True", "nan", "-inf", "grid-1"]
WORDS += ["a b", "x=y", "a#b", "café", "~", "100%", "${seed}"]


@pytest.mark.parametrize("word", WORDS)
def test_a_name_is_the_text_that_was_typed(word: str) -> None:
    meant = "7" if word == "${seed}" else word
    assert load([f"name={word}", "seed=7"])["name"] == meant
    grid = Command.of([as_typed(f"name=first,{word}"), "seed=7"], multirun=True)
    names = [load(run)["name"] for run in grid.combinations()]
    assert names == ["first", meant]


def test_text_with_quotes_or_brackets_is_as_hydra_reads_it() -> None:
    assert load(["name=1e5"])["name"] == "1e5"
    tracking = load(["tracking.tags=['2024_01','a,b']", "tracking.project=1e5", "tracking.entity=null"])["tracking"]
    assert tracking["tags"] == ["2024_01", "a,b"] and (tracking["project"], tracking["entity"]) == ("1e5", None)
    for word in ("name=choice(1e5,b)", "loss.alpha=1e5", r"name=a\,b", "tracking.tags=[1e5]"):
        assert as_typed(word) == word
    for word in ("tracking.tags=[1e5]", "paths={data: 1e5, outputs: a}", "name=it's"):
        with refused("quotes"):
            check(load([word]))
    with refused("init="):
        load(["init=1e5"])


def is_text(hint: Any) -> bool:
    """Whether an annotation is that of text, of none, or of several texts."""
    inner = get_args(hint)
    kinds = {hint, *inner, *(kind for part in inner for kind in get_args(part))}
    return bool(kinds & {str, Path}) and not kinds & {int, float, bool, Any}


def test_every_argument_that_is_text_is_a_text_key() -> None:
    """The table of keys and the annotations of the classes say the same."""
    wrong = set()
    for path in sorted(directory().glob("*/*.yaml")):
        content: Any = yaml.safe_load(path.read_text())
        nodes = {path.parent.name: content or {}} | {f"evaluate.{k}": v for k, v in (content or {}).items()}
        nodes |= {path.parent.name: content[path.parent.name]} if path.parent.name in (content or {}) else {}
        for key, node in nodes.items():
            target = node.get("_target_", "") if isinstance(node, dict) else ""
            if not target.startswith("ssl_bench.") or key.split(".")[0] != path.parent.name:
                continue
            for argument, hint in signature(located(target))[1].items():
                listed = bool(TEXT_KEY.fullmatch(f"{key}.{argument}"))
                if is_text(hint) != listed and get_origin(hint) is not Literal:
                    wrong.add((f"{key}.{argument}", str(hint)))
    assert wrong == set()


# ---- help describes every key

OF_GROUP = {
    group.name: sorted(path.stem for path in group.glob("*.yaml"))
    for group in directory().iterdir()
    if group.is_dir() and group.name not in ("local", "experiment")
}


def described(root: DictConfig) -> dict[str, str]:
    """The line of each key."""
    lines = explained(root).split("\n")
    return {match[1]: line for line in lines if (match := re.match(r"([\w.]+)=\S", line))}


def test_a_key_has_its_value_and_what_its_option_its_class_or_another_option_says_of_it() -> None:
    lines = described(composed(["framework=moco_v2", "batch_size.size=48", "evaluate=[knn]"]))
    for setting in ("batch_size.size=48", "negatives.k=65536", "head.layers=2", "dataset.channels=1"):
        assert re.fullmatch(rf"{setting} {{2,}}\w.+", lines[setting.partition("=")[0]])
    assert lines["loss"].startswith("loss=infonce: ") and "NT-Xent" in lines["loss"]


# Several evaluators are in one configuration, and a loss is put into one: a composition takes a tenth of a second.
EVALUATORS, LOSSES = OF_GROUP.pop("evaluate"), OF_GROUP.pop("loss")
COUNT = max(len(options) for options in OF_GROUP.values())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(COUNT))
def test_every_key_of_every_option_has_a_meaning(number: int) -> None:
    """The first option of every group, then the second of every group, and so on."""
    chosen = [f"{group}={options[number % len(options)]}" for group, options in OF_GROUP.items()]
    root = composed([*chosen, f"evaluate=[{','.join(EVALUATORS[number::COUNT])}]"])
    for loss in LOSSES[number::COUNT] or LOSSES[:1]:
        root.loss = OmegaConf.load(directory() / "loss" / f"{loss}.yaml")
        root.hydra.runtime.choices.loss = loss
        lines = described(root)
        assert f"loss={loss}" in lines["loss"]
        keys = {key: line for key, line in lines.items() if key not in (*OF_GROUP, "evaluate", "loss")}
        assert [line for line in keys.values() if not re.search(r"=\S.*  \S", line)] == []


def test_options_of_the_papers_are_listed_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert of_training.main(["--help", "--all"]) == 0
    usual, of_papers = capsys.readouterr().out.split("\nof the papers\n")
    listed = [dict(re.findall(r"^(\w+): (.+)", part, re.MULTILINE)) for part in (usual, of_papers)]
    assert "finetune, geometry" in listed[0]["evaluate"] and "contrast_statistics" in listed[1]["evaluate"]
    assert "loss" in listed[0] and "loss" not in listed[1]


# ---- ranges in annotations


INSIDE: list[tuple[Any, Any, Any]] = [
    (Positive, 1, 1.0),
    (Count | None, None, None),
    (Sequence[Positive], (1, 2.5), [1.0, 2.5]),
    (tuple[Probability, Probability], [0, 1], (0.0, 1.0)),
]
OUTSIDE: list[tuple[Any, Any, str]] = [
    (Positive, 0, "above 0"),
    (Positive, math.nan, "above 0"),
    (Positive, math.inf, "finite"),
    (Count, 2**32, "smaller"),
    (Count, True, "1 or more"),
    (Probability, 1.5, "from 0 up to 1"),
    (Annotated[float, Meta(gt=0, lt=1)], 1, "above 0 and below 1"),
    (Annotated[Sequence[Positive], Meta(min_length=1)], [], "1 or more"),
    (Sequence[Positive], [1, -1], "above 0"),
]


@pytest.mark.parametrize(("hint", "value", "made"), INSIDE)
def test_a_value_in_its_range_gets_the_annotated_type(hint: Any, value: Any, made: Any) -> None:
    assert converted(value, hint, "key") == made


@pytest.mark.parametrize(("hint", "value", "numbers"), OUTSIDE)
def test_a_value_outside_is_refused_with_the_range(hint: Any, value: Any, numbers: str) -> None:
    with pytest.raises(InvalidValue, match=numbers) as refusal:
        converted(value, hint, "key")
    assert refusal.value.key == "key"


def test_constructors_of_functions_and_dataclasses_are_checked_by_position_and_by_name() -> None:
    @in_range
    @dataclass
    class Recipe:
        lr: Positive
        epochs: Count = 1

    assert Recipe(0.1, epochs=2) == Recipe(lr=0.1, epochs=2)
    for given, key in (({"lr": -1.0}, "lr"), ({"lr": 1.0, "epochs": 0}, "epochs")):
        with pytest.raises(InvalidValue) as refusal:
            Recipe(**given)  # type: ignore[arg-type]
        assert refusal.value.key == key
