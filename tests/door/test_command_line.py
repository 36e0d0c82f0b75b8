"""Command lines: their exit codes, and the one sentence with which a wrong one is refused."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ssl_bench import __version__
from ssl_bench.commands import table
from ssl_bench.commands.sweeper import GridSweeper
from tests.door.door import enter, refuses

Capture = pytest.CaptureFixture[str]
FLAGS = "flags of ssl-bench"

REFUSED = {
    # the command
    "statu": "no command 'statu' did you mean status? commands are train, evaluate, status",
    "STATUS": "no command 'STATUS' did you mean status?",
    "''": "no command ''",
    "-x": "no command '-x'",
    "seed=3": "no command 'seed=3' did you mean ssl-bench train?",
    "--shell-completion": "no command '--shell-completion'",
    "help nope": "no command 'nope'",
    # words, flags and overrides of Hydra's commands
    "train dcl": "dcl is no key=value did you mean loss=dcl? group=option",
    "train seed": "seed is no key=value seed=3",
    "train ''": "an empty argument is no key=value",
    "train 'loss dcl'": "loss dcl is no key=value",
    "train =3": "=3: write key=value",
    "train =": "=: write key=value",
    "train epochs==3": "epochs==3: cannot be read: write key=value",
    "train -m seed=0,": "seed=0,: cannot be read",
    "train 'seed=['": "seed=[: cannot be read",
    "train --seed=3": f"unrecognized arguments: --seed=3; a setting has no dashes, such as seed=3; {FLAGS} train",
    "train -x": f"unrecognized arguments: -x; {FLAGS} train are --help",
    "train --Help": f"unrecognized arguments: --Help; {FLAGS} train",
    "train --multi": f"unrecognized arguments: --multi; {FLAGS} train",
    "train --cfg": "argument --cfg/-c: expected one argument",
    "train --cfg nope": "invalid choice: 'nope' 'job'",
    "train --info nope": "invalid choice: 'nope' 'searchpath'",
    "train --resolve": "--resolve is part of --cfg: add --cfg job",
    "train --package loss": "--package is part of --cfg: add --cfg job",
    "train --package los --cfg job": "--package=los: no such key did you mean loss?",
    "train --config-dir nowhere": "--config-dir=nowhere: set --config-dir to a folder that exists",
    "train --config-dir=nowhere": "--config-dir=nowhere: set --config-dir to a folder that exists",
    "train --config-dir": "argument --config-dir/-cd: expected one argument",
    "train --config-path /tmp": "--config-path: leave it out: --config-dir FOLDER",
    "train --config-path=/tmp": "--config-path=/tmp: leave it out: --config-dir FOLDER",
    "train --config-name mi": "--config-name: leave it out: --config-dir FOLDER",
    "train -cn mi": "-cn: leave it out",
    "train --shell-completion install=bash": "--shell-completion: leave it out: ssl-bench completion bash",
    "train --experimental-rerun x": "--experimental-rerun: leave it out: command.txt",
    "train -m seed=0,1 --cfg job": "seed=0,1: --cfg prints the configuration of one run: give one value",
    "train -m --run": "--run and --multirun exclude each other",
    # groups and their options
    "train loss=null": "loss=null: set loss to one of dcl, or leave the group out by ~loss",
    "train loss=": "loss=: no such option; set loss to one of align_uniform",
    "train loss=3": "loss=3: set loss to the name of an option",
    "train loss=[dcl,infonce]": "loss=[dcl,infonce]: set loss to one option; only evaluate takes a list",
    "train loss=../dataset/cifar10": "loss=../dataset/cifar10: set loss to the name of an option not to a path",
    "train loss=/etc/passwd": "loss=/etc/passwd: set loss not to a path",
    "train loss=dcl,infonce": "loss=dcl,infonce: several values make a grid: add -m",
    "train 'seed=range(0,3)'": "seed=range(0,3): several values make a grid: add -m",
    "train -m loss=dcl,null": "loss=dcl,null: set loss to the name of an option",
    "train -m loss=dcl,nope": "loss=nope: no such option",
    "train dataset=nope": "dataset=nope: no such option; set dataset to one of bits, cifar10",
    "train evaluate=[knn,nope]": "evaluate=nope: no such option; set evaluate to one of geometry, knn",
    "train evaluate=[knn,3]": "evaluate=[knn,3]: set evaluate to the name of an option",
    "train hydra=foo": "hydra=foo: leave it out: set keys in it",
    "train ~nope": "~nope: no key nope leave ~nope out",
    "train ~sead": "~sead: no key sead did you mean seed?",
    "train loss@x=dcl": "no key loss@x did you mean loss?",
    "mi loss=nope": "loss=nope: no such option",
    "mi epochs=3": "no key epochs ssl-bench mi --cfg job",
    "mi dcl": "dcl is no key=value did you mean loss=dcl?",
    "weight -x": f"unrecognized arguments: -x; {FLAGS} weight",
    "train name=grün": "name=grün: cannot be read: write key=value, with quotes as in 'name=\"grün\"'",
    "train 'name=${nowhere}'": "name: interpolation key 'nowhere' not found; set name to a value",
    "train 'epochs=${epochs}'": "epochs: recursive interpolation detected; set epochs to a value",
    "train 'loss=dclw' 'loss.sigma=${foo:1}'": "loss.sigma: unsupported interpolation type foo; set loss.sigma",
    "train 'epochs=${add:a,b}'": "epochs: unsupported operand set epochs to a value",
    "train 'epochs=${loss}'": "epochs: while dereferencing interpolation ${loss} set epochs to a value",
    "train 'name=${oc.env:SSL_BENCH_NOPE}'": "name: environment variable 'SSL_BENCH_NOPE' not found; set name",
    # values that were accepted, or named another key
    "train diagnostics.npc_histogram=-1": "diagnostics.npc_histogram=-1: set diagnostics.npc_histogram to true",
    "train compile=3": "compile=3: set compile to true or false",
    "train dataset.train_images=-1": "dataset.train_images=-1: set dataset.train_images to 1 or more, or null",
    "train dataset.epochs=-1 epochs=1": "dataset.epochs=-1: set dataset.epochs to 1 or more, or null",
    "train evaluate.linear.momentum=-1": "evaluate.linear.momentum=-1.0: set evaluate.linear.momentum to a number",
    "train evaluate.linear.momentum=99999999999": "evaluate.linear.momentum=99999999999.0: a number from 0 to below 1",
    "train evaluate.linear.weight_decay=99999999999": "evaluate.linear.weight_decay=99999999999.0: numbers from 0 to 1",
    "train evaluate.linear.weight_decay=[0,2]": "evaluate.linear.weight_decay=[0.0,2.0]: numbers from 0 to 1",
    "train evaluate=linear_moco evaluate.linear_moco.momentum=1": "evaluate.linear_moco.momentum=1.0: a number",
    "train framework=byol framework.predictor=-1": "framework.predictor=-1: 1 or more, or null",
    "train temperature.tau=1e-300": "temperature.tau=1e-300: a positive number from 1e-6 to 1e6",
    "train temperature.tau=100000000000": "temperature.tau=100000000000.0: a positive number from 1e-6 to 1e6",
    # grids, which are checked whole before the first run starts
    "train -m name=a,../b": "name=../b: set name to a folder name",
    "train -m max_steps=1,null,0": "max_steps=0: set max_steps to 1 or more",
    "train -m temperature.tau=0.1,-1": "temperature.tau=-1.0: a positive number",
    "train -m batch_size.size=64,63 devices=2": "batch_size.size=63: a multiple of devices=2",
    "train -m evaluate.knn.temperature=1,0": "evaluate.knn.temperature=0.0: set evaluate.knn.temperature",
    "mi -m information=2,0": "information=0: set information to a positive number",
    "train -m 'seed=range(0,1000000000)'": "seed: the grid has 1,000,000,000 runs: start 10,000 or less at a time",
    "train -m 'seed=shuffle(range(0,1000000000))'": "seed: the grid has 1,000,000,000 runs: start 10,000 or less",
    "train -m 'seed=range(0,400)' 'max_steps=range(1,400)'": "seed max_steps: the grid has 159,600 runs",
    "train -m 'seed=glob(*)'": "seed=glob(*): no values for a grid: write them, such as seed=0,1,2",
    "train -m 'seed=range(3,3)'": "seed=range(3,3): no values for a grid: write them, such as seed=0,1,2",
    "train -m 'seed=range(0,1,0)'": "seed=range(0,1,0): no values for a grid: write them, such as seed=0,1,2",
    "train -m 'seed=range(0,1e300,1e-300)'": "seed: the grid has inf runs: start 10,000 or less at a time",
    "train -m 'seed=interval(0,1)'": "seed=interval(0,1): no values for a grid: write them, such as seed=0,1,2",
    # Hydra's own settings
    "train -m seed=0,1 hydra/launcher=local hydra.launcher.n_jobs=0": "n_jobs=0: to 1 or more",
    "train -m seed=0,1 hydra/launcher=local hydra.launcher.timeout=0.001": "hydra.launcher.timeout=0.001: leave it out",
    "train -m seed=0,1 'hydra.launcher={timeout: 0.001}'": "hydra.launcher={timeout: 0.001}: leave it out: set keys in",
    "train -m seed=0,1 hydra.sweeper=null": "hydra.sweeper=null: leave it out: set keys in it",
    "train hydra=null": "hydra=null: leave it out: set keys in it",
    "train +hydra.job_logging.root.handlers=[x]": "hydra.job_logging is set: leave it out: a run writes train.log",
    "train -m +hydra.sweeper.params.loss=dcl": "+hydra.sweeper.params.loss=dcl: leave it out: grid as key=0,1,2",
    "train -m 'hydra.sweeper.params={a: 1}'": "hydra.sweeper.params={a: 1}: leave it out: grid as key=0,1,2",
    "train hydra.job.env_copy=[PATH]": "hydra.job.env_copy is set: leave it out",
    # experiments
    "train experiment=nope": "experiment=nope: no such option; set experiment to one of dcl/<table>, eqco/<table>",
    "train -m experiment=nope": "experiment=nope: no such option; set experiment to one of dcl/<table>",
    "train +experiment=nope": "experiment=nope: no such option",
    "train experiment=dcl": "experiment=dcl: no such option; set experiment to one of dcl/table1_imagenet100",
    "train experiment=dcl/tabel4": "experiment=dcl/tabel4: no such option did you mean dcl/table4",
    "train experiment=dcl/table1": "dcl/table1 is several grids: one of dcl/table1_ ssl-bench reproduce dcl/table1",
    "train -m experiment=dcl/fig3": "dcl/fig3 is several grids: set it to one of dcl/fig3a, dcl/fig3b",
    "train experiment=dcl/table2": "dcl/table2 has no grid of its own: train it by ssl-bench reproduce dcl/table2",
    "train experiment=[dcl/fig3a,dcl/fig3b]": "each experiment has a grid of its own: start one at a time",
    "train experiment=dcl/fig3a,dcl/fig3b": "each experiment has a grid of its own",
    "train experiment=[dcl/fig3a]": "each experiment has a grid of its own",
    "train experiment=null": "experiment=null: set experiment to leave experiment out",
    "train experiment=": "experiment=: no such option; set experiment to one of dcl/<table>",
    "train experiment=../train": "experiment=../train: not to a path",
    "train +experiment=dcl/fig3a": "experiment has a value already: leave the + before experiment out",
    "train ++experiment=dcl/fig3a": "leave ++ out: experiment=dcl/fig3a",
    # prepare
    "prepare": f"name a dataset dataset=cifar10; {FLAGS} prepare",
    "prepare cifar10": "unrecognized arguments: cifar10",
    "prepare dataset=": "dataset=: no such option; set dataset to one of",
    "prepare dataset=null": "dataset=null: set dataset to the name of an option, one of bits",
    "prepare dataset=mnist,cifar10": "dataset=mnist,cifar10: several values make a grid",
    "prepare -m dataset=mnist": "unrecognized arguments: -m",
    "prepare --source": "argument --source: expected one argument",
    "prepare dataset=mnist nope=3": "no key nope",
    "prepare dataset=mnist paths.data=": "paths.data=: set paths.data to a folder",
    "prepare --show x.txt dataset=scattered_digits": "--show=x.txt: set --show to a .png file",
    "prepare --show no/x.png dataset=bits": "--show=no/x.png: set --show to a folder that exists: no no",
    # tables of papers
    "table": "name a table: dcl/table1",
    "table dcl": "dcl has dcl/table1, name one, or add --all",
    "table dcl/": "dcl/ has dcl/table1, name one, or add --all",
    "table nope": "no paper 'nope' one of dcl",
    "table ../dcl": "no paper '..'",
    "table dcl/table1/x": "no table 'dcl/table1/x' did you mean dcl/table1?",
    "table dcl/table1 nope=3": "nope=3: leave it out: row, col and paths.outputs",
    "table dcl/table1 paths.outputs=no": "paths.outputs=no: set paths.outputs to a folder that exists",
    "table dcl/table1 --format xml": "--format=xml: set --format to one of rich, md",
    "table dcl/table1 row=": "row=: dcl/table1 has no such row; set row to one of",
    "figure dcl/fig3 seed=3": "seed=3: leave it out: row, col and paths.outputs",
    "figure dcl/table1": "dcl/table1 is no figure: set it to one of dcl/fig1",
    "figure dcl/fig3 --out x.txt": "--out=x.txt: set --out to a .png, .pdf or .svg file",
    "figure dcl/fig3 --out no/x.png": "--out=no/x.png: there is no no",
    "reproduce dcl/table1 -m": f"unrecognized arguments: -m; {FLAGS} reproduce",
    "reproduce dcl/table1 scale=nope": "scale=nope: set scale to one of full",
    "reproduce dcl/table1 seed=x": "seed=x: set seed to integers",
    "reproduce dcl/table1 seed=-1": "seed=[-1]: set seed to integers of 0 or more",
    "reproduce dcl/table1 row=nope": "row=nope: no such row",
    "reproduce dcl/table1 row=DCL col=256 nope=3": "no key nope",
    "reproduce dcl/table1 row=DCL col=256 =3": "=3: write key=value",
    # the others
    "evaluate": "required: RUN_DIR",
    "evaluate nowhere": "nowhere is no run directory",
    "evaluate a b": "unrecognized arguments: b",
    "status nowhere": "no folder nowhere paths.outputs",
    "status --json --csv": "argument --csv: not allowed with argument --json",
    "detect x --data y seed=3": "seed=3: detect takes --flags only",
    "detect x --data y --epochs 0": "--epochs=0: set --epochs to 1 or more",
    "detect x --data y --lr nan": "--lr=nan: set --lr to a positive number",
    "detect x --data y --sizes 800 640": "--sizes=[800,640]: set --sizes to the shorter one first",
    "detect x --data y": "export=x: set export to the .json file",
    "mi information=0": "information=0: set information to a positive number",
    "mi steps=2.5": "steps=2.5: set steps to a positive integer",
    "mi lr=1e400": "lr=inf: set lr to a positive number",
    "mi seed=-1": "seed=-1: set seed to an integer of 0 or more",
    "completion": "required: shell",
    "completion fish": "invalid choice: 'fish'",
}
# A command with --help, and words of its first lines.
HELP = {
    "": "usage: ssl-bench <command>",
    "-h": "usage: ssl-bench <command>",
    "help": "usage: ssl-bench <command>",
    "help --help": "usage: ssl-bench <command>",
    "help status": "usage: ssl-bench status",
    "help train": "ssl-bench train [group=option]",
    "train -h": "ssl-bench train [group=option]",
    "train loss=dcl --help": "ssl-bench train [group=option]",
    "train --hydra-help": "See https://hydra.cc for more info.",
    "mi --help": "ssl-bench mi",
    "weight --help": "ssl-bench weight",
    **{
        f"{command} {flag}": f"usage: ssl-bench {command}"
        for command in ("table", "prepare")
        for flag in ("-h", "--help")
    },
    **{f"{command} --help": f"usage: ssl-bench {command}" for command in ("evaluate", "figure", "reproduce", "detect")},
    "completion --help": "usage: ssl-bench completion",
    "train --cfg job --package loss": "_target_: ssl_bench.objective.losses.InfoNCE",
    "train experiment=dcl/fig3a --package loss --cfg job": "_target_: ssl_bench.objective.losses.InfoNCE",
    "train -m experiment=dcl/fig3a --cfg job": "_target_: ssl_bench.objective.losses.InfoNCE",
    "train -m --cfg job": "name: default",
}


# Of several that take the same way, one is in the fast suite.
SLOW = {"train -h", "train loss=dcl --help", "mi --help", "weight --help", "train ~sead", "train hydra=foo"}
SLOW |= {"train -m loss=dcl,nope", "reproduce dcl/table1 row=DCL col=256 nope=3", "train --package los --cfg job"}


def commands(table: Mapping[str, str]) -> list[object]:
    """The commands of a table as parameters of a test."""
    slow = [line in SLOW or line.startswith("detect") for line in table]  # detect imports torchvision
    return [
        pytest.param(line, marks=pytest.mark.slow) if is_slow else line
        for line, is_slow in zip(table, slow, strict=True)
    ]


@pytest.mark.parametrize("command", commands(REFUSED))
def test_a_wrong_command_line_is_refused_in_one_sentence(command: str, capfd: Capture) -> None:
    refuses(command, REFUSED[command], capfd)


@pytest.mark.parametrize("command", commands(HELP))
def test_help_and_configurations_are_printed_and_nothing_is_written(command: str, capfd: Capture) -> None:
    answer = enter(command, capfd)
    assert (answer.code, answer.err) == (0, "") and HELP[command] in answer.out
    assert not list(Path().iterdir())


@pytest.mark.parametrize("command", ["--version", "-V", "version", "train --version"])
def test_the_version(command: str, capfd: Capture) -> None:
    answer = enter(command, capfd)
    assert (answer.code, answer.out, answer.err) == (0, f"ssl-bench {__version__}\n", "")


SOURCE = "src does not have torchvision's MNIST"
ORDERS = ["dataset=mnist --source src paths.data=d", "--source src dataset=mnist paths.data=d"]
ORDERS += ["paths.data=d --source=src dataset=mnist", "dataset=mnist paths.data=d --source src"]


@pytest.mark.parametrize("arguments", ORDERS)
def test_flags_and_overrides_may_have_any_order(arguments: str, capfd: Capture) -> None:
    refuses(f"prepare {arguments}", SOURCE, capfd)


def test_the_folder_of_config_dir_may_have_an_equals_sign_and_options_of_its_own(capfd: Capture) -> None:
    Path("a=b/experiment").mkdir(parents=True)
    Path("a=b/experiment/mine.yaml").write_text("# @package _global_\nseed: 7\n")
    for command in ("train --config-dir a=b experiment=mine", "train experiment=mine --config-dir=a=b"):
        answer = enter(f"{command} --cfg job", capfd)
        assert answer.code == 0 and "\nseed: 7\n" in answer.out
    refuses(
        "train --config-dir a=b experiment=mien", "experiment=mien: did you mean mine? one of mine, dcl/<table>", capfd
    )


def test_errors_outside_a_command_are_sentences(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: BaseException) -> None:
        def main(arguments: object) -> int:
            raise error

        monkeypatch.setattr(table, "main", main)

    fails(PermissionError(13, "Permission denied", "x"))
    refuses("table", "x: Permission denied", capfd, 1)
    fails(OSError(28, "No space left on device"))
    refuses("table", "No space left on device", capfd, 1)
    fails(KeyboardInterrupt())
    answer = enter("table", capfd)
    assert (answer.code, answer.err) == (130, "interrupted; the same command does what is missing\n")
    fails(KeyError("a fault of the program keeps its traceback"))
    with pytest.raises(KeyError), monkeypatch.context() as patched:
        patched.setattr(sys, "argv", ["ssl-bench", "table"])
        from ssl_bench import cli

        cli.main()


def test_the_launcher_of_slurm_needs_slurm(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    refuses(
        "train -m hydra/launcher=slurm seed=0,1", "hydra/launcher=slurm: set hydra/launcher to local, no srun", capfd
    )


def test_a_job_that_slurm_refuses_is_one_sentence(
    capfd: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\necho sbatch: error: invalid partition: nope >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    answer = enter("train -m hydra/launcher=slurm hydra.launcher.partition=nope seed=0,1", capfd)
    reason = "ssl-bench: hydra/launcher=slurm: sbatch: error: invalid partition: nope: set hydra.launcher.<key> to "
    assert answer.code == 2 and answer.err.splitlines()[-1].startswith(reason), answer


def test_a_launcher_starts_no_more_processes_than_runs() -> None:
    class Launcher:
        joblib: ClassVar[dict[str, int]] = {"n_jobs": 500}

        def launch(self, runs: list[list[str]], initial_job_idx: int) -> list[Any]:
            return []

    grid = GridSweeper(None, None)
    grid.launcher = Launcher()
    grid._launch([["seed=0"], ["seed=1"]], 0)
    assert grid.launcher.joblib["n_jobs"] == 2


# ---- completion

CANDIDATES = {
    "ssl-bench tr": ["train"],
    "ssl-bench help st": ["status"],
    "ssl-bench train loss=in": ["loss=infonce"],
    "ssl-bench train -m loss=dcl,infon": ["loss=dcl,infonce"],
    "ssl-bench train evaluate=[knn,geo": ["evaluate=[knn,geometry"],
    "ssl-bench train  optimizer.sch": ["optimizer.schedule="],
    "ssl-bench train optimizer=adam optimizer.be": ["optimizer.betas."],
    "ssl-bench train experiment=dcl/fig3": ["experiment=dcl/fig3a", "experiment=dcl/fig3b"],
    "ssl-bench train --config-d": ["--config-dir"],
    "ssl-bench train --cfg j": ["job"],
    "ssl-bench train zzz": [],
    "ssl-bench table dcl/fig3": ["dcl/fig3a", "dcl/fig3b"],
    "ssl-bench figure eqco/t": [],
    "ssl-bench reproduce eqco/b": ["eqco/bound"],
    "ssl-bench status --w": ["--watch", "--where"],
    "ssl-bench export out --format t": ["timm", "torchvision"],
    "ssl-bench completion z": ["zsh"],
    "ssl-bench nope x": [],
}


def test_candidates_of_lines() -> None:
    code = f"""
import os, sys
from ssl_bench import cli
from ssl_bench.commands import train
from ssl_bench.papers import tables
sys.argv = ["ssl-bench"]
os.environ |= {{"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "|", "_ARGCOMPLETE_SHELL": "fish"}}
for line in {list(CANDIDATES)}:
    name = str(abs(hash(line)))
    os.environ |= {{"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": name}}
    if os.fork() == 0:
        cli.main()
    os.wait()
    print(line, *open(name).read().split("|"), sep="|")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows = (row.split("|") for row in done.stdout.splitlines())
    assert {line: sorted(word.strip() for word in words if word) for line, *words in rows} == CANDIDATES


@pytest.mark.slow
def test_bash_completes() -> None:
    """bash replaces only what stands after the last equals sign."""
    printed = subprocess.run([sys.executable, "-m", "ssl_bench", "completion", "bash"], capture_output=True, text=True)
    line = "ssl-bench train loss=in"
    script = f"""{printed.stdout}
ssl-bench() {{ {sys.executable} -m ssl_bench "$@"; }}
COMP_TYPE=9 COMP_LINE="{line}" COMP_POINT={len(line)}
COMP_WORDS=(ssl-bench train loss = in) COMP_CWORD=4
_python_argcomplete ssl-bench; echo "${{COMPREPLY[*]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["infonce"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_tab_completes_in_zsh() -> None:
    terminal, end = pty.openpty()
    streams: Any = {"stdin": end, "stdout": end, "stderr": end, "start_new_session": True}
    shell = subprocess.Popen(["zsh", "-f", "-i"], env=os.environ | {"TERM": "dumb", "ZDOTDIR": os.getcwd()}, **streams)
    command = f'{sys.executable} -m ssl_bench "$@"'
    os.write(terminal, f"ssl-bench() {{ {command}; }}; eval \"$(ssl-bench completion zsh)\"; print re''ady\n".encode())
    try:
        assert printed_until("\nready", terminal)
        os.write(terminal, b"ssl-bench train loss=inf\t")
        assert printed_until("loss=infonce", terminal)
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)
        os.close(end)


def printed_until(text: str, terminal: int, seconds: float = 30) -> bool:
    """Read from a terminal until it has printed ``text``; return whether it did in time."""
    screen, end = b"", time.monotonic() + seconds
    while text.encode() not in screen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            screen += os.read(terminal, 4096)
    return text.encode() in screen
