"""No configuration runs code that was not asked for, or reads a secret."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ssl_bench.config.build import KINDS, find_target
from ssl_bench.config.compose import load
from ssl_bench.config.schema import directory
from ssl_bench.errors import ConfigError
from tests.conftest import SMALL
from tests.door.door import refuses

RUN = "torch.utils.collect_env.run"  # runs its argument in a shell

ATTACKS = {
    # targets that are no class of the kind that the group declares
    f"train loss._target_={RUN} '+loss.command=touch X'": f"loss._target_={RUN} Loss ssl_bench",
    "train loss._target_=ssl_bench.cli.main": "loss._target_=ssl_bench.cli.main no Loss",
    "train loss._target_=ssl_bench.launch.ranks.os.system +loss.command=true": "loss._target_ no such class",
    "train loss._target_=ssl_bench.objective.loss.Loss": "loss._target_=ssl_bench.objective.loss.Loss no Loss",
    "train 'loss._target_=ssl_bench..x'": "loss._target_ no such class",
    "train loss._target_=[os.system]": "loss._target_ Loss",
    "train ~loss._target_": "loss no _target_",
    "train evaluate=[] '+evaluate.x={_target_: os.system}'": "evaluate.x._target_=os.system Evaluator",
    "train temperature._target_=os.system": "temperature._target_=os.system Temperature",
    # what Hydra would make, or what nothing reads
    f"train '+hydra.callbacks.x._target_={RUN}' '+hydra.callbacks.x.command=touch X'": "hydra.callbacks leave it out",
    f"train hydra.launcher._target_={RUN}": f"hydra.launcher._target_={RUN}: leave it out",
    f"train -m seed=0,1 hydra/launcher=local +hydra.launcher.x._target_={RUN}": "there is no key hydra.launcher.x",
    f"train -m seed=0,1 hydra.sweeper._target_={RUN}": f"hydra.sweeper._target_={RUN}: leave it out",
    "train +hydra.job.env_set.LD_PRELOAD=evil.so": "hydra.job.env_set in the shell",
    "train '+hydra.job_logging.handlers.x={class: subprocess.Popen}'": "hydra.job_logging train.log",
    # a plugin that nobody allowed
    "train plugins=[antigravity]": "plugins=[antigravity] SSL_BENCH_PLUGINS=antigravity",
    "train plugins=antigravity": "plugins=antigravity a list",
}


@pytest.mark.parametrize("command", ATTACKS)
def test_a_configuration_that_would_run_code_is_refused(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    refuses(command, ATTACKS[command], capfd)
    assert not Path("X").exists()


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"_target_: {RUN}\ncommand: touch X", f"loss._target_={RUN} Loss"),
        ("# @package _global_\nhydra: {run: {dir: elsewhere}}", "hydra.run.dir"),
        (f"# @package _global_\nhydra: {{callbacks: {{x: {{_target_: {RUN}}}}}}}", "hydra.callbacks"),
        ("# @package _global_\nnew: 1", "no key new"),
        ("!!python/object/apply:os.system [touch X]", "conf/loss/mine.yaml python/object/apply:os.system"),
        ("_target_: ${oc.env:SSL_BENCH_TARGET}", "loss._target_=os.system Loss"),
        ("a: &a [x, *a]", "conf/loss/mine.yaml line 1 contains itself"),
        (LAUGHS, "conf/loss/mine.yaml anchors 1,000,000 values"),
    ],
)
def test_a_file_of_another_folder_is_checked_as_the_command_line(
    text: str, says: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_BENCH_TARGET", "os.system")
    Path("conf/loss").mkdir(parents=True)
    Path("conf/loss/mine.yaml").write_text(text)
    refuses("train loss=mine --config-dir conf", says, capfd)
    assert not Path("X").exists()


def test_only_variables_of_the_environment_that_are_ours_are_read(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AWS_SECRET_ACCESS_KEY", "SLURM_JWT", "PATH", "SSL_BENCHMARK", "XHOME"):
        monkeypatch.setenv(variable, "word")
        says = f'name: variable {variable} is not read: write "${variable}", which the shell replaces'
        refuses(f"train 'name=${{oc.env:{variable},none}}' seed=1", says, capfd)
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
    assert found == set(KINDS) - {"evaluate.on"}  # a dataset


@pytest.mark.parametrize("group", KINDS)
def test_a_class_of_another_group_is_refused(group: str) -> None:
    other = "ssl_bench.objective.losses.DCL" if group != "loss" else "ssl_bench.data.views.Views"
    with pytest.raises(ConfigError, match=f"^{group}._target_={other} is no "):
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
    grid = ["train", "-m", *SMALL, "max_steps=1", "seed=0,1", "hydra/launcher=local", "hydra.launcher.n_jobs=2"]
    shell = [program, *grid]
    environment = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(shell, capture_output=True, text=True, timeout=150, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
