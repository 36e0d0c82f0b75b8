"""No configuration runs code that was not asked for, or reads a secret."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ssl_bench.config.build import KINDS, directory, find_target
from ssl_bench.config.compose import load
from ssl_bench.errors import ConfigError
from tests.conftest import SMALL


def test_variables_of_the_environment_that_are_ours_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SSL_BENCH_X", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(variable, "some/place")
        assert load([f"name=${{oc.env:{variable}}}"])["name"] == "some/place"
        monkeypatch.delenv(variable)
        assert load([f"name=${{oc.env:{variable},other}}"])["name"] == "other"


def test_every_target_of_the_configuration_is_of_the_kind_of_its_group() -> None:
    found = set()
    for path in directory().rglob("*.yaml"):
        group = path.relative_to(directory()).parts[0]
        node = yaml.safe_load(path.read_text())
        nodes = [node, *(value for value in node.values() if isinstance(value, dict))]
        for target in (each for each in nodes if group in KINDS and "_target_" in each):
            assert callable(find_target(target, group))
            found.add(group)
    assert found == set(KINDS) - {"evaluate.on", "tracking"}  # a dataset, and what only plugins have


@pytest.mark.parametrize("group", KINDS)
def test_a_class_of_another_group_is_refused(group: str) -> None:
    other = "ssl_bench.objective.losses.DCL" if group != "loss" else "ssl_bench.data.views.Views"
    with pytest.raises(ConfigError, match=f"^{group}._target_={other} "):
        find_target({"_target_": other}, group)


@pytest.mark.slow
def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    """The temporary folder has a long name, in which no socket could lie."""
    temporary = tmp_path / ("long" * 25)
    temporary.mkdir()
    for name in ("types", "token", "queue", "socket", "random", "multiprocessing", "torch", "wandb"):
        Path(f"{name}.py").write_text("raise SystemExit('imported from the working directory')")
    program = shutil.which("ssl-bench", path=str(Path(sys.executable).parent))
    assert program is not None
    grid = ["train", "-m", *SMALL, "max_steps=1", "seed=0,1", "launcher=local", "launcher.jobs=2"]
    shell = [program, *grid]
    environment = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(shell, capture_output=True, text=True, timeout=150, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
