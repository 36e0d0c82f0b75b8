"""Configurations composed in a faster way than Hydra's equal Hydra's own."""

import contextlib
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.utils import create_config_search_path
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ssl_bench.config import compose, compositions
from ssl_bench.config.compose import Composer
from ssl_bench.config.compositions import Composition
from ssl_bench.config.guard import GuardedLoader
from ssl_bench.config.identity import run_id
from ssl_bench.config.schema import directory
from ssl_bench.errors import ConfigError
from ssl_bench.papers import runs, tables

CELLS = list({runs.request(cell): cell for t in tables.every() for cell in t.cells if cell.available})
# Overrides of every kind: values of each type, groups, lists of options, and those that only Hydra itself can apply.
OVERRIDES = [
    ["epochs=3", "optimizer.lr=1", "temperature.tau=1e-1"],
    ["max_steps=null", "name='a b'", 'name="it\\"s"', "precision=fp64"],
    ["dataset.mean=[0.1,0.2,0.3]", "evaluate.baselines=[]", "evaluate=[]"],
    ["epochs=${seed}", "temperature.tau=${optimizer.lr}"],
    ["loss=dcl", "loss=eqco", "loss.alpha=7", "epochs=2", "epochs=4"],
    ["framework=byol", "dataset=randbit_cifar10", "dataset.bits=7"],
    ["+dataset.extra=1", "dataset.extra=2", "~evaluate.knn"],
    ["hydra/launcher=local", "hydra.launcher.n_jobs=3", "devices=2"],
    ["evaluate=[knn]", "evaluate.knn={k: 3}"],
]


@pytest.mark.parametrize("overrides", OVERRIDES, ids=" ".join)
def test_the_composer_gives_hydras_own_configuration(overrides: list[str]) -> None:
    composer = Composer()
    for seed in (0, 3):
        assert composer.load([*overrides, f"seed={seed}"]) == compose.load([*overrides, f"seed={seed}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["epoch=3"],
        ["loss.tua=1"],
        ["epochs=many"],
        ["batch_size.size=1.5"],
        ["loss=dlc"],
        ["seed=0,1"],
        ["epochs=[1"],
        ["loss.form=${nowhere}", "loss=decoupled_nt_xent"],
        ["los=dcl"],
    ],
    ids=" ".join,
)
def test_the_composer_gives_hydras_own_error(overrides: list[str]) -> None:
    with pytest.raises(ConfigError) as expected:
        compose.load(overrides)
    with pytest.raises(ConfigError) as error:
        Composer().load(overrides)
    assert str(error.value) == str(expected.value)


@pytest.mark.parametrize("mode", RunMode)
@pytest.mark.parametrize("overrides", [OVERRIDES[7], ["seed=0,1"], ["hydra.mode=MULTIRUN"], ["loss=dlc"]], ids=" ".join)
def test_a_command_composes_once_what_hydra_would_compose_twice(overrides: list[str], mode: RunMode) -> None:
    """Hydra reads hydra.mode from one configuration, and uses another one that has the mode."""

    def composed(loader: GuardedLoader) -> Any:
        try:
            return loader.load_configuration("train", [*overrides, f"hydra.mode={mode.name}"], mode)
        except HydraException as error:
            return str(error)

    JobRuntime().set("name", "train")
    loader, plain = (GuardedLoader(create_config_search_path(str(directory()))) for _ in range(2))
    with contextlib.suppress(HydraException):
        asked = loader.load_configuration("train", overrides, RunMode.MULTIRUN, validate_sweep_overrides=False)
    found, expected, again = composed(loader), composed(plain), composed(loader)
    assert found == expected == again
    if isinstance(found, DictConfig):
        assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)
        assert (found is asked) == ("hydra.mode=MULTIRUN" not in overrides) and again is not found


@pytest.fixture
def files_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hydra parse each file of conf/ once instead of once for every composition."""
    load, found = FileConfigSource.load_config, dict[tuple[str, str], Any]()

    def load_once(source: FileConfigSource, config_path: str) -> Any:
        key = source.path, config_path
        if key not in found:
            found[key] = load(source, config_path)
        return copy.deepcopy(found[key])

    monkeypatch.setattr(FileConfigSource, "load_config", load_once)


def compare_with_hydra(requests: list[compositions.Request], seed: int) -> None:
    composed = compositions.compositions(requests)
    for command, overrides in requests:
        expected = compose.load([*overrides, f"seed={seed}"], command)
        each = composed[command, overrides]
        assert each.config(seed) == expected
        assert each.run_ids([5, seed]) == {seed: run_id(expected), 5: run_id(expected | each.config(5))}


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("files_read_once")
def test_every_cell_of_every_paper_equals_hydras_own_configuration() -> None:
    assert len(CELLS) > 800
    compare_with_hydra(CELLS, 3)


@pytest.mark.slow
def test_cells_of_every_paper_equal_hydras_own_configuration() -> None:
    first = {(command, overrides[0]): (command, overrides) for command, overrides in reversed(CELLS)}
    assert len(first) == 7  # five papers; eqco and macl have cells of `mi` or `weight` too
    compare_with_hydra(list(first.values()), 0)


def test_a_seed_is_put_in_wherever_it_occurs() -> None:
    overrides = ("framework=npid", "dataset=randbit_mnist")
    (composed,) = compositions.compositions([("train", overrides)]).values()
    for seed in (0, 7):
        config = composed.config(seed)
        assert config == compose.load([*overrides, f"seed={seed}"]) and config["framework"]["seed"] == seed
        assert composed.run_ids([seed]) == {seed: run_id(config)}


# ---- the cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache file, in a folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compositions._read_cache.cache_clear()
    return tmp_path / "cache" / "ssl_bench" / "compositions.jsonl"


def composed(*overrides: str) -> Any:
    """The composition of ``train`` as another process would make or read it."""
    compositions._read_cache.cache_clear()
    return compositions.compositions([("train", overrides)])["train", overrides]


def test_a_kept_configuration_is_read_without_hydra(cache: Path) -> None:
    text = composed("loss=dcl").text
    code = "import sys; from ssl_bench.config.compositions import compositions\n"
    code += "(made,) = compositions([('train', ('loss=dcl',))]).values()\nassert 'hydra' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code + "print(made.text)"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == text, done.stderr


def test_lines_that_cannot_be_read_are_made_again(cache: Path) -> None:
    expected = composed("loss=dcl")
    good = cache.read_text()
    inputs, *rest = json.loads(good)
    wrong = ["", "{", "[]", good[:-40], '"a"', "\x00\xff", json.dumps(["other inputs", *rest])]
    wrong += [
        json.dumps([inputs, *entry]) for entry in (["train"], ["train", "loss=dcl", "{}"], [1, ["loss=dcl"], "{}"])
    ]
    for text in wrong:
        cache.write_text(text + "\n")
        assert composed("loss=dcl") == expected
        assert cache.read_text() == f"{text}\n{good}"
        assert composed("loss=dcl") == expected and cache.read_text() == f"{text}\n{good}"


def test_a_cache_that_is_too_large_begins_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composed("loss=dcl")
    monkeypatch.setattr(compositions, "LARGEST", 100)
    composed("loss=eqco")
    assert [json.loads(line)[2] for line in cache.read_text().splitlines()] == [["loss=eqco"]]


def test_a_cache_that_cannot_be_written_is_left_out(cache: Path) -> None:
    cache.parent.parent.write_text("a file in place of the folder")
    assert composed("loss=dcl").config(0) == compose.load(["loss=dcl"])


def test_an_environment_variable_of_the_configuration_counts(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b", "a"):
        monkeypatch.setenv("SSL_BENCH_DATA", folder)
        assert composed().config(0)["paths"]["data"] == folder


def test_a_changed_source_makes_the_cache_invalid(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composed("loss=dcl")
    before = compositions._inputs()
    monkeypatch.setattr(compositions, "_sources", lambda: ("other files", []))
    assert compositions._inputs() != before
    compositions._read_cache.cache_clear()
    assert compositions._read_cache(compositions._inputs()) == {}


def test_errors_are_not_kept(cache: Path) -> None:
    assert isinstance(composed("loss=dlc"), ConfigError) and not cache.exists()


@pytest.mark.slow
def test_several_processes_give_the_same_compositions(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [("train", (f"loss={loss}", f"epochs={n}")) for loss in ("dcl", "infonce", "dlc") for n in (1, 2)]
    one = compositions.compositions(requests)
    compositions._read_cache.cache_clear()
    cache.unlink()
    monkeypatch.setattr(compositions, "PARALLEL", 1)
    monkeypatch.setattr(compositions, "available_cores", lambda: 2)
    several = compositions.compositions(requests)
    assert (
        list(several) == requests and [isinstance(e, Composition) for e in several.values()] == [True] * 4 + [False] * 2
    )
    assert {r: str(e) for r, e in several.items()} == {r: str(e) for r, e in one.items()}
