"""What the overrides of a command ask for: a run or a grid, its runs, and where they are carried out."""

from pathlib import Path

from ssl_bench.config.command import Command
from ssl_bench.config.compose import load

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
