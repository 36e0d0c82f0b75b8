"""Configurations composed in a faster way than Hydra's equal Hydra's own."""

import copy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from omegaconf import OmegaConf

from ssl_bench.config import compose, compositions, with_hydra
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError
from ssl_bench.papers import tables

CELLS = list({cell.overrides: cell for t in tables.every() for cell in t.cells if cell.available})
OVERRIDES = yaml.safe_load(Path(__file__).with_name("overrides.yaml").read_text())


def by_hydra(overrides: list[str]) -> dict[str, Any]:
    return compose.resolved(with_hydra.by_hydra(with_hydra.as_hydra_takes(overrides), None))


@pytest.mark.parametrize("overrides", OVERRIDES, ids=" ".join)
def test_configurations_are_hydras_own(overrides: list[str]) -> None:
    words = [*overrides, "seed=3"]
    assert compose.load(words) == compose.resolved(hydras_own(with_hydra.as_hydra_takes(words)))


def test_combinations_put_together_are_hydras_own() -> None:
    """Of options that fill their group's key, beside others that choose options and set keys of other groups."""
    with_hydra._COMPOSED.clear()
    besides = (["framework=moco_v2"], ["dataset=randbit_cifar10", "epochs=3"])
    others = ["backbone=resnet18", "optimizer=adam"]
    requests = [[*beside, *others, loss] for beside in besides for loss in ("loss=dcl", "loss=eqco")]
    with patch.object(with_hydra, "by_hydra", wraps=with_hydra.by_hydra) as by_hydra:
        assert len([with_hydra.composed(words) for words in requests]) == 4 and by_hydra.call_count == 2
    for words in (*requests, ["augment=moco_v2", "augment=byol"]):
        hydras_own(words)


@pytest.mark.exhaustive
def test_each_group_beside_every_option_of_others_is_hydras_own() -> None:
    options = [f"{group}={one}" for group in sorted(with_hydra.groups()) for one in with_hydra.options(group)]
    filling = {option.partition("=")[0]: option for option in options if with_hydra._filled(option) is not None}
    others = [option for option in options if with_hydra._filled(option) is None and not option.startswith("local=")]
    assert len(filling) == 12 and len(others) > 40
    for other in others:
        hydras_own([other, *(option for group, option in filling.items() if group != other.partition("=")[0])])


def hydras_own(words: list[str]) -> Any:
    """Assert that a composition has Hydra's nodes and options; return Hydra's."""
    hydras = with_hydra.by_hydra(words, None)
    first, second = (with_hydra.parted(copy.deepcopy(cfg)) for cfg in (with_hydra.composed(words), hydras))
    assert nodes(first[0]) == nodes(second[0]) and first[1] == second[1]
    return hydras


def nodes(cfg: Any, place: str = "") -> list[tuple[Any, ...]]:
    """Each node's place, value, flags and types, in their order."""
    value, metadata = cfg._value(), cfg._metadata
    below = OmegaConf.is_config(cfg) and not isinstance(value, str | None)
    seen = [(place, metadata.flags, metadata.ref_type, metadata.object_type, None if below else value)]
    if below:
        for key in cfg if OmegaConf.is_dict(cfg) else range(len(cfg)):
            seen += nodes(cfg._get_node(key), f"{place}.{key}")
    return seen


def test_an_option_that_changes_is_read_again(tmp_path: Path) -> None:
    file, folder = tmp_path / "loss" / "own.yaml", tmp_path
    file.parent.mkdir()
    for alpha, values in ((2, []), (30, []), (400, ["epochs=3"])):
        file.write_text(f"_target_: ssl_bench.objective.losses.EqCo\nalpha: {alpha}\n")
        assert compose.load(["loss=own", *values], folder=folder)["loss"]["alpha"] == alpha
    file.unlink()
    with pytest.raises(ConfigError, match=r"^loss=own"):
        compose.load(["loss=own"], folder=folder)


EVERY = [pytest.mark.exhaustive, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "every", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=EVERY)], ids=["first", "all"]
)
def test_cells_of_every_paper_equal_hydras_own_configuration(every: bool) -> None:
    first = {overrides[0]: overrides for overrides in reversed(CELLS)}
    assert len(first) == 5 and len(CELLS) > 800  # papers and cells
    requests = CELLS if every else list(first.values())
    composed = compositions.compositions(requests)
    for overrides in requests:
        expected, found = by_hydra([*overrides, "seed=3"]), composed[overrides].config(3)
        assert found == expected and run_id(found) == run_id(expected)


def test_a_seed_is_put_in_wherever_it_occurs() -> None:
    overrides = ("framework=npid", "dataset=randbit_mnist")
    (composed,) = compositions.compositions([overrides]).values()
    for seed in (0, 7):
        config = composed.config(seed)
        assert config == compose.load([*overrides, f"seed={seed}"]) and config["framework"]["seed"] == seed
        assert run_id(composed.config(seed)) == run_id(config)


def test_runs_that_differ_in_the_seed_have_hydras_own_configurations() -> None:
    runs = [("loss=dcl", f"seed={seed}", "name=a${seed}") for seed in (0, 7, 30)] + [("loss=dcl", "seed=5")]
    assert compositions.with_seeds(runs) == {run: compose.load(run) for run in runs[:3]}  # of others there are too few
    assert compositions.with_seeds([("epochs=${add:${seed},1}", f"seed={seed}") for seed in range(3)]) == {}


# ---- the cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, one of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ssl_bench"


def composed(*overrides: str) -> Any:
    return compositions.compositions([overrides])[overrides]


def test_a_configuration_is_kept_and_a_damaged_cache_is_made_again(cache: Path) -> None:
    expected = composed("loss=dcl")
    (file,) = cache.iterdir()
    good = file.read_text()
    with patch.object(compositions, "_compose", None):  # it is kept
        assert composed("loss=dcl") == expected
    for text in ("", "[]", good[:-40], good.replace("{", "[")):
        file.write_text(text)
        assert composed("loss=dcl") == expected and file.read_text() == good
    assert isinstance(composed("loss=dlc"), ConfigError) and file.read_text() == good  # errors are not kept


def test_a_cache_is_of_one_environment_and_may_be_impossible(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b", "a"):
        monkeypatch.setenv("SSL_BENCH_DATA", folder)
        assert composed().config(0)["paths"]["data"] == folder
        assert len(list(cache.iterdir())) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert composed("loss=dcl").config(0) == compose.load(["loss=dcl"])
