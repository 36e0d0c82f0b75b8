"""The papers' experiments: they are the runs of the tables, and Hydra finds, lists and trains them."""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ssl_bench.commands.experiments import register
from ssl_bench.commands.train import main
from ssl_bench.config import with_hydra
from ssl_bench.papers import grids, tables
from tests.papers.conftest import cell_run_id

TABLES = {table.name: table for table in tables.every()}
Train = Callable[..., tuple[int, str]]
Cli = Callable[..., Any]


def grid(content: dict[str, Any]) -> Iterator[list[str]]:
    """The overrides of every run of an experiment."""
    params = content["hydra"]["sweeper"]["params"]
    values = [re.findall(r"\[[^\]]*\]|[^,\[\]]+", value) for value in params.values()]  # a list is one value
    for combination in itertools.product(*values):
        yield [f"{key}={value}" for key, value in zip(params, combination, strict=True)]


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_experiments_of_a_table_have_each_of_its_runs_once(name: str) -> None:
    table = TABLES[name]
    contents = grids.of_table(table)
    made = [frozenset(overrides) for content in contents.values() for overrides in grid(content)]
    cells = {c.overrides: c.seeds for c in table.cells if c.available}
    expected = [frozenset([*overrides[1:], f"seed={seed}"]) for overrides, seeds in cells.items() for seed in seeds]
    assert {overrides[0] for overrides in cells} <= {f"name={table.paper}"}
    if contents:
        assert len(made) == len(expected) and set(made) == set(expected)
    for content in contents.values():
        assert set(content) == {"name", "hydra"} and content["name"] == table.paper
        head = content["hydra"]["help"]["header"]
        assert table.cite.split(",")[0] in head and f"{len(list(grid(content)))} runs" in head


def test_names() -> None:
    names = grids.names()
    assert len(names) == len(set(names)) >= 94
    assert {"dcl/table1_cifar10-cifar100", "eqco/fig2b_alpha4096", "macl/table4", "less/fig4b"} <= set(names)
    assert grids.content("dcl/table1") is None and grids.content("nobody/table1") is None


FIRST = {name.partition("/")[0]: name for name in reversed(grids.names())}  # of each paper


ALL = pytest.param(grids.names(), marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("names", [list(FIRST.values()), ALL])
def test_hydra_composes_every_experiment(names: list[str]) -> None:
    register()
    register()
    with initialize_config_dir(str(with_hydra.directory()), **with_hydra.VERSION_BASE):
        for name in names:
            cfg = compose("train", [f"experiment={name}"], return_hydra_config=True)
            content = grids.content(name)
            assert content is not None and cfg.name == name.partition("/")[0] and cfg.hydra.mode.name == "MULTIRUN"
            assert OmegaConf.to_container(cfg.hydra.sweeper.params) == content["hydra"]["sweeper"]["params"]
            assert cfg.hydra.runtime.choices["experiment"] == name


@pytest.mark.slow
def test_an_experiment_is_trained_and_the_command_line_overrides_it(tiny: None, train: Train) -> None:
    code, printed = train("experiment=tiny/table2", small=False)
    assert code == 0 and "4 runs: 4 trained" in printed
    paths = list(Path("outputs/tiny").glob("*/config.yaml"))
    assert {yaml.safe_load(path.read_text())["choices"]["experiment"] for path in paths} == {"tiny/table2"}
    cells = tables.find("tiny/table2")[0].cells
    assert {path.parent.name for path in paths} == {cell_run_id(cell, seed) for cell in cells for seed in (0, 1)}
    code, printed = train("-m", "experiment=tiny/table2", "loss=dcl", "seed=1", small=False)
    assert code == 0 and "1 run: 0 trained, 1 done before" in printed


def test_experiments_of_a_user_stand_beside_the_papers(tiny: None, train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "experiment" / "tiny"
    folder.mkdir(parents=True)
    (folder / "own.yaml").write_text("# @package _global_\nname: mine\nmax_steps: 1\n")
    code, printed = train("--config-dir", str(tmp_path / "mine"), "experiment=tiny/own")
    assert code == 0 and "outputs/mine" in printed


def help_of(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Output of ``ssl-bench train --help``."""
    capfd.readouterr()
    assert main([*arguments, "--help"]) == 0
    return capfd.readouterr().out


@pytest.mark.slow
def test_help_lists_the_experiments_and_describes_one(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    (line,) = [line for line in help_of(capfd).splitlines() if line.startswith("experiment: ")]
    assert line.removeprefix("experiment: ").split(", ") == sorted([*grids.names(), "growing_k", "own_vit"])
    described = help_of(capfd, "experiment=macl/table4")
    assert described.startswith("Huang et al., Model-Aware Contrastive Learning (arXiv 2207.07874), table4: ")
    assert "MACL-c LE: CIFAR-10 86.34, CIFAR-100 59.64, STL-10 81.71\n" in described
    assert "6 runs: ssl-bench train experiment=macl/table4\n" in described
    _, params = train("experiment=macl/table4", "--cfg", "hydra", "--package=hydra.sweeper.params", small=False)
    assert yaml.safe_load(params)["dataset"] == "cifar10,cifar100,stl10"


def test_a_title_with_a_dollar_can_be_shown(tiny: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert help_of(capfd, "experiment=tiny/table2").startswith("nobody, table2: costs 5.")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("dcl/tabel3", "experiment=dcl/tabel3: there is no such option (did you mean dcl/table"),
        ("dcl/table1", "dcl/table1 is several grids: set it to one of dcl/table1_imagenet100, dcl/table1_cifar10-"),
        ("dcl/table2", "dcl/table2 has no grid of its own: train it by `ssl-bench reproduce dcl/table2`"),
        ("dlc/fig3a", "experiment=dlc/fig3a: there is no such option (did you mean dcl/fig3a?)"),
    ],
)
def test_an_unknown_experiment_is_refused_in_one_sentence(train: Train, name: str, sentence: str) -> None:
    code, printed = train(f"experiment={name}", small=False)
    assert code == 2 and printed.startswith("ssl-bench: ") and printed.count("\n") == 1
    assert sentence in printed


def test_the_papers_are_not_read_unless_an_experiment_is_asked_for(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.yaml").write_text("tables: [")
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path))
    assert train("--cfg", "job")[0] == 0
    code, printed = train("experiment=broken/table1")
    assert code == 2 and "broken.yaml cannot be read" in printed and printed.count("\n") == 1
