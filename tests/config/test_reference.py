"""``--help`` describes every key."""

import re

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from ssl_bench.commands import evaluate, train
from ssl_bench.config.build import directory
from ssl_bench.config.reference import explained

GROUPS = {
    group.name: sorted(path.stem for path in group.glob("*.yaml"))
    for group in directory().iterdir()
    if group.is_dir() and group.name not in ("local", "experiment")
}


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(directory()), version_base="1.3"):
        return compose("train", list(overrides), return_hydra_config=True)


def described(root: DictConfig) -> dict[str, str]:
    """The line of each key."""
    lines = explained(root).split("\n")
    return {match[1]: line for line in lines if (match := re.match(r"([\w.]+)=\S", line))}


def test_a_key_has_its_value_and_what_its_option_its_class_or_another_option_says_of_it() -> None:
    lines = described(composed("framework=moco_v2", "batch_size.size=48", "evaluate=[knn]"))
    for setting in ("batch_size.size=48", "negatives.k=65536", "head.layers=2", "dataset.channels=1"):
        assert re.fullmatch(rf"{setting} {{2,}}\w.+", lines[setting.partition("=")[0]])
    assert lines["loss"].startswith("loss=infonce: ") and "NT-Xent" in lines["loss"]


# Several evaluators are in one configuration, and a loss is put into one: a composition takes a tenth of a second.
EVALUATORS, LOSSES = GROUPS.pop("evaluate"), GROUPS.pop("loss")
COUNT = max(len(options) for options in GROUPS.values())


@pytest.mark.parametrize("number", range(COUNT))
def test_every_key_of_every_option_has_a_meaning(number: int) -> None:
    """The first option of every group, then the second of every group, and so on."""
    chosen = [f"{group}={options[number % len(options)]}" for group, options in GROUPS.items()]
    root = composed(*chosen, f"evaluate=[{','.join(EVALUATORS[number::COUNT])}]")
    for loss in LOSSES[number::COUNT] or LOSSES[:1]:
        root.loss = OmegaConf.load(directory() / "loss" / f"{loss}.yaml")
        root.hydra.runtime.choices.loss = loss
        lines = described(root)
        assert f"loss={loss}" in lines["loss"]
        keys = {key: line for key, line in lines.items() if key not in (*GROUPS, "evaluate", "loss")}
        assert [line for line in keys.values() if not re.search(r"=\S.*  \S", line)] == []


def test_options_of_the_papers_are_listed_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--help"]) == 0
    usual, of_papers = capsys.readouterr().out.split("\nof the papers\n")
    assert "\nevaluate: auto, finetune, geometry, knn, knn_val, linear, protocols, spectrum\n" in usual
    assert "\nevaluate: contrast_statistics, detection, " in of_papers and "\nloss: " not in of_papers
    with pytest.raises(SystemExit):
        evaluate.main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.index(" spectrum; ") < printed.index("of the papers, evaluate: contrast_statistics, ")
