"""No configuration runs code that was not asked for, or writes a secret to disk."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from ssl_bench.config.build import KINDS, find_target
from ssl_bench.config.compose import load
from ssl_bench.config.schema import directory
from ssl_bench.errors import ConfigError
from tests.conftest import SMALL
from tests.door.door import enter, refuses

RUN = "torch.utils.collect_env.run"  # runs its argument in a shell

ATTACKS = {
    # targets that are no class of the kind that the group declares
    f"train loss._target_={RUN} '+loss.command=touch X'": f"loss._target_={RUN} Loss ssl_bench",
    "train loss._target_=torch.load +loss.f=evil.pt +loss.weights_only=false": "loss._target_=torch.load Loss",
    "train loss._target_=ssl_bench.cli.main": "loss._target_=ssl_bench.cli.main no Loss",
    "train loss._target_=ssl_bench.launch.ranks.os.system +loss.command=true": "loss._target_ no such class",
    "train loss._target_=ssl_bench.objective.loss.Loss": "loss._target_=ssl_bench.objective.loss.Loss no Loss",
    "train loss._target_=ssl_bench.objective.temperature.Fixed": "loss._target_ no Loss",
    "train loss._target_=ssl_bench.networks.heads.MLP": "loss._target_ no Loss",
    "train loss._target_=eval": "loss._target_=eval Loss",
    "train loss._target_=": "loss._target_ Loss",
    "train loss._target_=ssl_bench": "loss._target_ Loss",
    "train 'loss._target_=ssl_bench..x'": "loss._target_ no such class",
    "train loss._target_=null": "loss no _target_",
    "train loss._target_=3": "loss._target_=3 Loss",
    "train loss._target_=[os.system]": "loss._target_ Loss",
    "train 'loss={_target_: os.system, command: true}'": "loss",
    "train ~loss._target_": "loss no _target_",
    "train backbone._target_=torch.hub.load": "backbone._target_=torch.hub.load Backbone",
    "train backbone._target_=torchvision.models.resnet18": "backbone._target_ Backbone",
    "train backbone._target_=ssl_bench.training.parts.load_run": "backbone._target_ no Backbone",
    "train backbone._target_=ssl_bench.networks.heads.MLP": "backbone._target_ no Backbone",
    "train head._target_=ssl_bench.networks.backbones.ConvN": "head._target_ no Head",
    "train dataset._target_=os.listdir": "dataset._target_=os.listdir Dataset",
    "train dataset._target_=ssl_bench.data.folder.Folder": "dataset._target_ no Dataset",
    "train augment._target_=subprocess.Popen": "augment._target_=subprocess.Popen Views",
    "train framework._target_=ssl_bench.launch.job.Job": "framework._target_ no Framework or Method",
    "train negatives._target_=builtins.exec": "negatives._target_=builtins.exec Negatives",
    "train temperature._target_=timm.create_model": "temperature._target_ Temperature",
    "train optimizer._target_=torch.optim.SGD": "optimizer._target_=torch.optim.SGD Recipe",
    "train evaluate.knn._target_=shutil.rmtree": "evaluate.knn._target_=shutil.rmtree Evaluator",
    "train evaluate=[] '+evaluate.x={_target_: os.system}'": "evaluate.x._target_=os.system Evaluator",
    "mi loss._target_=os.system": "loss._target_=os.system Loss",
    "weight temperature._target_=os.system": "temperature._target_=os.system Temperature",
    # what Hydra would make
    f"train '+hydra.callbacks.x._target_={RUN}' '+hydra.callbacks.x.command=touch X'": "hydra.callbacks leave it out",
    "train '+hydra.callbacks.x._target_=hydra.experimental.callbacks.LogJobReturnCallback'": "hydra.callbacks",
    f"train hydra.launcher._target_={RUN}": f"hydra.launcher._target_={RUN} BasicLauncher",
    f"train -m seed=0,1 hydra.launcher._target_={RUN}": f"hydra.launcher._target_={RUN} JoblibLauncher",
    f"train -m seed=0,1 hydra/launcher=local +hydra.launcher.x._target_={RUN}": "hydra.launcher.x._target_",
    f"train -m seed=0,1 hydra.sweeper._target_={RUN}": f"hydra.sweeper._target_={RUN} BasicSweeper",
    "train +hydra.job.env_set.LD_PRELOAD=evil.so": "hydra.job.env_set in the shell",
    "train hydra/job_logging=default": "hydra.job_logging train.log",
    "train hydra/hydra_logging=default": "hydra.hydra_logging train.log",
    "train '+hydra.job_logging.handlers.x={class: subprocess.Popen}'": "hydra.job_logging",
    "train '+hydra.job_logging.formatters.x={\"()\": os.system}'": "hydra.job_logging",
    "train 'hydra.searchpath=[pkg://antigravity]'": "hydra.searchpath --config-dir",
    "train '+hydra.searchpath=[file:///tmp]'": "hydra.searchpath --config-dir",
    # keys that nothing reads
    "train +foo=3": "no key foo",
    "train +sede=3": "no key sede did you mean seed?",
    "train +tracking.foo=3": "no key tracking.foo",
    "train +batch_size.sise=3": "no key batch_size.sise did you mean batch_size.size?",
    "train +paths.cache=x": "no key paths.cache",
    "train +loss.foo=3": "loss.foo InfoNCE has no such argument",
    "train '+loss={foo: 3}'": "loss",
    "train +dataset.root=/etc": "dataset.root ScatteredDigits has no such argument",
    "train +framework.backbone=null": "framework.backbone Siamese has no such argument",
    "train +evaluate.foo=3": "evaluate.foo=3 evaluator",
    "train +evaluate.knn.foo=3": "evaluate.knn.foo KNN has no such argument",
    "train +choices.loss=dcl": "no key choices",
    "train -m +foo=1,2": "no key foo",
    "train ~seed": "seed is missing",
    "train ~batch_size.size": "batch_size.size deletion",
    "train ~optimizer": "optimizer",
    "train ~paths": "paths",
    "mi +foo=1": "no key foo",
    "weight +foo=1": "no key foo",
    # secrets
    "train +WANDB_API_KEY=abc": "WANDB_API_KEY secret",
    "train +tracking.api_key=abc": "tracking.api_key secret",
    "train +loss.token=abc": "loss.token secret",
    "train +evaluate.password=abc": "evaluate.password secret",
    "train +evaluate.db_pass=abc": "evaluate.db_pass secret",
    "train '+dataset={aws_secret_access_key: abc}'": "dataset",
    "train +dataset.aws_secret_access_key=abc": "dataset.aws_secret_access_key secret",
    "train -m seed=0,1 +hf-token=abc": "hf-token secret",
    "train +hydra.job.api_key=abc": "hydra.job",
    # a plugin that nobody allowed
    "train plugins=[antigravity]": "plugins=[antigravity] SSL_BENCH_PLUGINS=antigravity",
    "train plugins=antigravity": "plugins=antigravity a list",
    "train plugins=[3]": "plugins=[3] a list",
    "train '+plugins.antigravity=1'": "plugins",
    "mi plugins=[this]": "plugins=[this] SSL_BENCH_PLUGINS=this",
}


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[] if n % 9 == 0 else pytest.mark.slow) for n, c in enumerate(ATTACKS)]
)
def test_a_configuration_that_would_run_code_or_write_a_secret_is_refused(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    refuses(command, ATTACKS[command], capfd)
    assert not Path("X").exists()


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("loss/mine.yaml: _target_: os.system", "loss._target_=os.system Loss"),
        (f"loss/mine.yaml: '_target_: {RUN}\ncommand: touch X'", f"loss._target_={RUN} Loss"),
        ("loss/mine.yaml: '_target_: ssl_bench.objective.losses.DCL\napi_key: abc'", "loss.api_key secret"),
        (f"loss/mine.yaml: '# @package _global_\nhydra: {{callbacks: {{x: {{_target_: {RUN}}}}}}}'", "hydra.callbacks"),
        ("loss/mine.yaml: '# @package _global_\nhydra: {job: {env_set: {LD_PRELOAD: x}}}'", "hydra.job.env_set"),
        ("loss/mine.yaml: '# @package _global_\nnew: 1'", "no key new"),
        ("loss/mine.yaml: '# @package _global_\nplugins: [antigravity]'", "SSL_BENCH_PLUGINS=antigravity"),
        ("loss/mine.yaml: '!!python/object/apply:os.system [touch X]'", "loss/mine.yaml"),
        ("loss/mine.yaml: '_target_: ${oc.env:SSL_BENCH_TARGET}'", "loss._target_=os.system Loss"),
    ],
)
def test_a_file_of_another_folder_is_checked_as_the_command_line(
    file: str, says: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_BENCH_TARGET", "os.system")
    path, _, text = file.partition(": ")
    (Path("conf") / path).parent.mkdir(parents=True)
    (Path("conf") / path).write_text(text.strip("'"))
    refuses("train loss=mine --config-dir conf", says, capfd)
    assert not Path("X").exists()


UNREAD = ["PGPASSWORD", "DB_PASS", "MYSQL_PWD", "GITHUB_PAT", "OPENAI_KEY", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT"]


@pytest.mark.parametrize("variable", [*UNREAD, "SSL_BENCH_PASSWORD", "PATH", "SSL_BENCHMARK", "XHOME"])
def test_a_variable_of_the_environment_that_is_not_ours_is_not_read(
    variable: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "an-ordinary-looking-word")
    for command in (f"train 'name=${{oc.env:{variable}}}'", f"train 'name=${{oc.env:{variable},none}}' seed=1"):
        refuses(command, f'name: variable {variable} is not read: write "${variable}", which the shell replaces', capfd)


@pytest.mark.parametrize("variable", ["SSL_BENCH_X", "SLURM_JOB_ID", "HOME", "USER", "TMPDIR", "CUDA_VISIBLE_DEVICES"])
def test_a_variable_that_is_ours_is_read(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "some/place")
    assert load([f"name=${{oc.env:{variable}}}"])["name"] == "some/place"
    monkeypatch.delenv(variable)
    assert load([f"name=${{oc.env:{variable},other}}"])["name"] == "other"


@pytest.mark.parametrize("variable", UNREAD)
def test_a_secret_of_the_environment_is_not_written(
    variable: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "an-ordinary-looking-word")
    refuses("train name=x-an-ordinary-looking-word", f"name {variable}, a secret", capfd)
    assert "ordinary" not in enter("train name=x-an-ordinary-looking-word", capfd).err


def test_a_finished_run_is_refused_what_hydra_would_make(capfd: pytest.CaptureFixture[str]) -> None:
    small = "train max_steps=1 backbone.width=4 head.out=16 evaluate=[] evaluate.baselines=[] tracking=off"
    assert enter(small, capfd).code == 0
    assert enter(small, capfd).code == 0
    refuses(f"{small} '+hydra.callbacks.x._target_={RUN}'", "hydra.callbacks", capfd)


def test_every_target_of_the_configuration_is_of_the_kind_of_its_group() -> None:
    found = set()
    for path in directory().rglob("*.yaml"):
        group = path.relative_to(directory()).parts[0]
        node = yaml.safe_load(path.read_text())
        nodes = [node, *(value for value in node.values() if isinstance(value, dict))]
        for target in (each for each in nodes if group in KINDS and "_target_" in each):
            assert callable(find_target(target, group))
            found.add(group)
    assert found == set(KINDS)


@pytest.mark.parametrize("group", KINDS)
def test_a_class_of_another_group_is_refused(group: str) -> None:
    other = "ssl_bench.objective.losses.DCL" if group != "loss" else "ssl_bench.data.views.Views"
    with pytest.raises(ConfigError, match=f"^{group}._target_={other} is no "):
        find_target({"_target_": other}, group)


def test_a_pickled_configuration_is_not_read(capfd: pytest.CaptureFixture[str]) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, ("touch X",)

    torch.save(Evil(), "config.pickle")
    refuses("train --experimental-rerun config.pickle", "--experimental-rerun", capfd)
    assert not Path("X").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        f"train {shlex.join(SMALL)} max_steps=2 devices=2",
        f"train -m {shlex.join(SMALL)} max_steps=2 seed=0,1 hydra/launcher=local hydra.launcher.n_jobs=2",
        pytest.param("check --quick --only environment", marks=pytest.mark.exhaustive),
        pytest.param(
            "reproduce eqco/table9 'row=MI 2 NCE' col=64 seed=0 steps=2 evaluations=2 hydra/launcher=local",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["ranks", "grid", "check", "reproduce"],
)
def test_modules_in_the_working_directory_are_not_imported(command: str, tmp_path: Path) -> None:
    """The temporary folder has a long name, in which no socket could lie."""
    temporary = tmp_path / ("long" * 25)
    temporary.mkdir()
    for name in ("types", "token", "queue", "socket", "random", "multiprocessing", "torch", "wandb"):
        Path(f"{name}.py").write_text("raise SystemExit('imported from the working directory')")
    program = shutil.which("ssl-bench", path=str(Path(sys.executable).parent))
    assert program is not None
    shell = [program, *shlex.split(command)]
    environment = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(shell, capture_output=True, text=True, timeout=150, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
