"""Command lines: their exit codes, and the one sentence with which a wrong one is refused."""

import os
import sys
from pathlib import Path

import pytest

from ssl_bench import __version__
from ssl_bench.commands import table
from ssl_bench.hardware import available_cores
from tests.door.door import enter, refuses

Capture = pytest.CaptureFixture[str]
FLAGS = "flags of ssl-bench"
GAUSSIANS = "train dataset=gaussians framework=frozen loss=infonce temperature=fixed"

REFUSED = {
    # the command
    "statu": "no command 'statu' did you mean status? commands are train, evaluate, status",
    "seed=3": "no command 'seed=3' did you mean ssl-bench train?",
    "help nope": "no command 'nope'",
    # words, flags and overrides of Hydra's commands
    "train dcl": "dcl is no key=value did you mean loss=dcl? group=option",
    "train =3": "=3: write key=value",
    "train epochs==3": "epochs==3: cannot be read: write key=value",
    "train loss=grün": "loss=grün: cannot be read: write key=value, with quotes as in 'loss=\"grün\"'",
    "train --seed=3": f"unrecognized arguments: --seed=3; a setting has no dashes, such as seed=3; {FLAGS} train",
    "train --multi": f"unrecognized arguments: --multi; {FLAGS} train",
    "train --cfg nope": "invalid choice: 'nope' 'job'",
    "train -m --cfg job": "argument --cfg/-c: not allowed with argument --multirun/-m",
    "train --dry-run": "--dry-run lists the runs of a grid: add -m",
    "train --json": "--json is the form of --dry-run: add --dry-run",
    "train --resolve": "--resolve is part of --cfg: add --cfg job",
    "train --config-dir nowhere": "config directory nowhere not found",
    # groups and their options
    "train loss=infonec": "loss=infonec: no such option (did you mean infonce?); set loss to one of align_uniform",
    "train loss=null": "loss=null: set loss to the name of an option, or leave it out by ~loss",
    "train loss=[dcl,infonce]": "loss=[dcl,infonce]: set loss to the name of an option; only evaluate takes a list",
    "train evaluate=[knn,linaer]": "evaluate=linaer: no such option (did you mean linear?); set evaluate to one of",
    "train evaluate=[knn,3]": "evaluate=[knn,3]: set evaluate to the name of an option",
    "train +loss=dcl": "loss has a value already: leave the + before loss out",
    "train 'seed=range(0,3)'": "seed=range(0,3): several values make a grid: add -m",
    "train -m loss=dcl,nope": "loss=nope: no such option",
    # keys
    "train seeed=1": "no key seeed (did you mean seed?); `ssl-bench train --cfg job` prints them all",
    "train loss=dclw loss.sigm=1": "no key loss.sigm (did you mean loss.sigma?)",
    "train lr=0.3": "no key lr (did you mean optimizer.lr?)",
    "train model=resnet18": "no key model (did you mean backbone?)",
    "train wandb=true": "no key wandb (did you mean tracking?)",
    "train bs=256": "no key bs (did you mean batch_size.size?)",
    "train framework=Barlow-Twins": "no such option (did you mean loss=barlow_twins negatives=none head=expander?)",
    "train framework=nnclr": "no such option (did you mean positives=nearest negatives=cross_view?); set framework to",
    "train loss.tau=0.1": "no key loss.tau (did you mean temperature.tau?)",
    "train negatives.k=16": "(did you mean negatives.k with negatives=memory_bank or queue or random_k?)",
    "train batch_size=48": "batch_size=48: set batch_size to the name of an option, or write batch_size.size=48",
    "train loss=NTXent": "loss=NTXent: no such option (did you mean infonce?)",
    "train +sede=3": "no key sede (did you mean seed?)",
    "train +tracking.foo=3": "no key tracking.foo",
    "train +loss.alpha=2": "loss.alpha: InfoNCE has no such argument",
    "train ~seed": "seed is missing: set seed",
    "train ~sede": "~sede: there is no key sede to leave out (did you mean seed?); `ssl-bench train --cfg job` prints",
    "train ~loss.alpha": "~loss.alpha: there is no key loss.alpha to leave out (did you mean loss.alpha with loss=eqco",
    "train ~evaluate": "~evaluate: set evaluate to the options that you want, or to [] to evaluate nothing",
    "train ~evaluate=knn": "~evaluate=knn: set evaluate to the options that you want, or to [] to evaluate nothing",
    "train hydra.run.dir=elsewhere": "hydra.run.dir is set: leave it out: paths.outputs and name say where a run is",
    "train -m seed=0,1 hydra.sweep.dir=x": "hydra.sweep.dir is set: leave it out: paths.outputs and name say where a",
    "train hydra.output_subdir=x": "hydra.output_subdir is set: leave it out: a run's folder has its config.yaml",
    "train hydra.job.chdir=true": "hydra.job.chdir is set: leave it out: a run stays in the folder that it is started",
    "train hydra.verbose=true": "hydra.verbose is set: leave it out: a run writes train.log",
    "train temperature.tua=1": "no key temperature.tua (did you mean temperature.tau?)",
    "train framework=npid framework.tau=0.1": "no key framework.tau did you mean temperature.tau",
    "train framework=moco_cld framework.k=96": "no key framework.k did you mean negatives.k",
    # interpolations
    "train 'name=${nowhere}'": "name: interpolation key 'nowhere' not found; set name to a value",
    "train 'epochs=${epochs}'": "epochs: recursive interpolation detected; set epochs to a value",
    "train 'epochs=${add:a,b}'": "epochs: unsupported operand set epochs to a value",
    # values
    "train seed=abc": "seed=abc: value 'abc' of type 'str' could not be converted to an integer",
    "train epochs=0": "epochs=0: set epochs to 1 or more",
    "train evaluate.every=x": "evaluate.every=x: set evaluate.every to an integer",
    "train evaluate.baselines=[ini]": "evaluate.baselines=ini: one of init, raw (did you mean init?)",
    "train +evaluate.foo=3": "evaluate.foo=3: set evaluate.foo to an evaluator, or leave it out",
    "train precision=fp8": "precision=fp8: set precision to one of auto, fp32, fp16, bf16, fp64",
    "train compile=3": "compile=3: set compile to true or false",
    "train graph=3": "graph=3: set graph to true or false or auto",
    "train fused_norm=true": "fused_norm=true: set fused_norm to auto or false: there is no GPU",
    "train diagnostics.gradient_snr=1": "diagnostics.gradient_snr=1.0: a decay between 0 and 1",
    "train batch_size.chunk=48": "batch_size.chunk=48: a divisor of batch_size.size=64",
    "train tracking.entity=https://wandb.ai/me": "tracking.entity: a name in W&B, not an address",
    "train name=../up": "name=../up: set name to a folder name",
    "train temperature.tau=abc": "temperature.tau=abc: set temperature.tau to a number",
    "train optimizer.schedule=cosin": "optimizer.schedule to one of cosine, linear (did you mean cosine?)",
    "train framework=byol framework.predictor=-1": "framework.predictor=-1: 1 or more, or null",
    "train backbone=timm backbone.name=resnet19": "backbone.name=resnet19: timm.list_models() (did you mean resnet18?)",
    "train batch_size.size=0": "batch_size.size=0: set batch_size.size to 2 or more",
    "train precision=fp16": "precision=fp16: set precision to fp32 or bf16: fp16 needs a GPU",
    "train optimizer.lr=-1": "optimizer.lr=-1.0: set optimizer.lr to a positive number",
    "train loss._target_=os.system": "loss._target_=os.system: a Loss of ssl_bench; SSL_BENCH_PLUGINS=<package>",
    # parts and data that do not fit together
    "train devices=99": f"devices=99: set devices to {available_cores()} or less",
    "train batch_size=b4096": "batch_size.size=4096: set batch_size.size to 1347 or less, images of scattered_digits",
    "train negatives=random_k negatives.k=500": "negatives.k=500: set negatives.k to 126 or less, the candidates",
    "train loss=relic negatives=in_batch": "loss=relic needs candidates aligned across views: set negatives=cross_view",
    "train framework=moco_v2 negatives=in_batch": (
        "negatives=in_batch needs keys of both views: set framework.symmetric=true, or negatives=cross_view"
    ),
    "train dataset=cifar10 paths.data=nowhere": "`ssl-bench prepare dataset=cifar10 paths.data=nowhere`",
    "train evaluate.knn.k=2000": "evaluate.knn.k=2000: set evaluate.knn.k to a number from 1 to 1347, the number of",
    "train evaluate=npc evaluate.npc.batch_sizes=[32,2048]": "batch_sizes to sizes up to 1347, the number of",
    "train evaluate=linear_opensel": "evaluate.linear_opensel.layers to modules stem, stages: it has no layer1",
    "train dataset=gaussians evaluate=[]": "framework=simclr: set framework to frozen: no images to train on",
    "train dataset=gaussians framework=frozen": "loss has no _target_: set loss to one of its options",
    "train dataset=gaussians framework=frozen loss=dcl": "temperature has no _target_: set temperature to one of",
    f"{GAUSSIANS} evaluate=geometry": "evaluate=[geometry]: set evaluate to mutual_information: no images",
    f"{GAUSSIANS} loss=swd": "MutualInformation has no two_views for SWD: set loss to one that needs negatives alone",
    f"{GAUSSIANS} loss=sogclr": "MutualInformation has no instances for SogCLR: set loss to one that needs",
    f"{GAUSSIANS} evaluate.mutual_information.steps=2.5": "evaluate.mutual_information.steps=2.5: an integer",
    f"{GAUSSIANS} evaluate=gradient_weight evaluate.gradient_weight.positive=2": "positive=2.0: a cosine, -1 to 1",
    "train framework=frozen loss=dcl temperature=fixed evaluate=mutual_information": (
        "evaluate.mutual_information: set dataset to gaussians"
    ),
    "train framework=frozen loss=dcl": "loss=dcl: framework=frozen has no loss: leave loss out",
    "train evaluate=gradient_weight": (
        "framework=simclr: set framework to frozen: evaluate.gradient_weight measures the loss, and no network"
    ),
    "train dataset=bits evaluate=knn": "evaluate.knn: the images have no classes: set evaluate to evaluators that",
    "train paths.outputs=/proc/nowhere": "set paths.outputs to a folder that can be written",
    # grids, which are checked whole before the first run starts
    "train -m name=a,../b": "name=../b: set name to a folder name",
    "train -m max_steps=1,null,0": "max_steps=0: set max_steps to 1 or more",
    "train -m temperature.tau=0.1,-1": "1 of 2 runs cannot be: temperature.tau=-1: set temperature.tau to",
    "train -m batch_size.size=64,63 devices=2": "batch_size.size=63: a multiple of devices=2, such as 64",
    "train -m dataset=gaussians framework=frozen dataset.information=2,0": "cannot be: dataset.information=0: set",
    "train -m batch_size=b32,b128 negatives=random_k negatives.k=16,64": (
        "1 of 4 runs cannot be: batch_size=b32 negatives.k=64: set negatives.k to 62 or less, the candidates "
        "skip=impossible leaves them out"
    ),
    "train -m negatives=random_k negatives.k=128,16,256 batch_size=b64,b128 seed=0,1 --dry-run": (
        "6 of 12 runs cannot be: 4 with negatives.k=128,256 batch_size=b64 (negatives.k=128: set negatives.k to 126 "
        "2 with negatives.k=256 batch_size=b128 (negatives.k=256: set negatives.k to 254 skip=impossible leaves"
    ),
    "train -m dataset=cifar10 paths.data=nowhere seed=0,1": "2 of 2 runs cannot be: dataset=cifar10: ssl-bench prepare",
    "train -m loss=infonce,dhel": "1 of 2 runs cannot be: loss=dhel needs candidates set negatives=own_view",
    "train -m negatives=in_batch,queue negatives.k=4,8": "2 of 4 runs cannot be: negatives=in_batch no key negatives.k",
    "train -m seeed=0,1": "there is no key seeed (did you mean seed?)",
    "train skip=impossible": "skip=impossible leaves out runs of a grid: add -m",
    "train -m skip=all seed=0,1": "skip=all: set skip to impossible",
    "train -m seed=0,-1 skip=impossible max_steps=0": "2 of 2 runs cannot be",
    "train -m 'seed=range(0,1000000000)'": "these are 1,000,000,000 runs: a grid has 100,000 or fewer",
    "train -m 'seed=range(0,400)' 'max_steps=range(1,400)'": "these are 159,600 runs: a grid has 100,000 or fewer",
    "train -m 'seed=range(0,inf)'": "seed=range(0,inf): write a range as range(start,stop,step), with finite numbers",
    "train -m 'seed=range(0,3,0)'": "seed=range(0,3,0): write a range as range(start,stop,step)",
    "train -m 'seed=range(5,0)'": "seed=range(5,0): there is no number from 5 to 0 in steps of 1",
    "train -m 'seed=glob(*)'": "seed=glob(*): there is no such option: write the values",
    "train -m seed=0,1 hydra.sweeper=x": "hydra.sweeper=x: leave it out",
    "train -m hydra/sweeper=halving seed=0,1": "hydra/sweeper=halving: leave it out",
    "train -m +hydra.sweeper.params.seed=1 loss=dcl,infonce": "hydra.sweeper.params.seed=1: leave it out",
    "train -m 'optimizer.lr=interval(0.1,1)'": "optimizer.lr=interval(0.1,1): write several values",
    "train -m seed=0,1 hydra/launcher=local hydra.launcher.n_jobs=0": "hydra.launcher.n_jobs=0: 1 or more",
    "train -m seed=0,1 hydra/launcher=local hydra.launcher.prefer=x": "there is no key hydra.launcher.prefer",
    "train -m seed=0,1 hydra/launcher=local,slurm": "hydra/launcher=local,slurm: set one value",
    "train -m seed=0,1 hydra/launcher=joblib": "hydra/launcher=joblib: set hydra/launcher to",
    "train hydra/launcher=local": "hydra/launcher=local is for the runs of a grid: add -m",
    "train --info": "unrecognized arguments: --info; flags of ssl-bench train are --help",
    # experiments
    "train experiment=nope": "experiment=nope: no such option; set experiment to one of growing_k, own_vit",
    "train experiment=dcl/table1": "no such option set experiment to one of ssl-bench reproduce dcl/table1",
    "train -m experiment=growing_k,own_vit": "each experiment has a grid of its own: start one at a time",
    "train experiment=[growing_k]": "each experiment has a grid of its own",
    # the others
    "prepare": f"name a dataset dataset=cifar10; {FLAGS} prepare",
    "prepare cifar10": "unrecognized arguments: cifar10",
    "prepare dataset=mnist,cifar10": "dataset=mnist,cifar10: several values make a grid",
    "prepare dataset=mnist paths.data=": "paths.data=: set paths.data to a folder",
    "prepare --show x.txt dataset=scattered_digits": "--show=x.txt: set --show to a .png file",
    "prepare --show no/x.png dataset=bits": "--show=no/x.png: set --show to a folder that exists: no no",
    "table": "name a table: dcl/table1",
    "table dcl/table1 --format xml": "--format=xml: set --format to one of rich, md",
    "figure dcl/table1": "dcl/table1 is no figure: set it to one of dcl/fig1",
    "figure dcl/fig3 --out x.txt": "--out=x.txt: set --out to a .png, .pdf or .svg file",
    "figure dcl/fig3 --out no/x.png": "--out=no/x.png: there is no no",
    "reproduce dcl/table1 -m": f"unrecognized arguments: -m; {FLAGS} reproduce",
    "reproduce dcl/table1 scale=nope": "scale=nope: set scale to one of full",
    "reproduce dcl/table1 skip=all": "skip=all: set skip to impossible",
    "reproduce dcl/table1 col=32 negatives=random_k negatives.k=64 --dry-run": "8 of 8 cells cannot be: to 62 or less",
    "reproduce dcl/table1 seed=-1": "seed=[-1]: set seed to integers of 0 or more",
    "evaluate nowhere": "nowhere: there is no folder outputs: set --outputs",
    "status nowhere": "nowhere: there is no folder outputs: set --outputs",
    "report paths.outputs=x": "paths.outputs is a setting of a training: set --outputs",
    "table --rows loss --rows seed": "--rows is given twice: leave one of them out",
    "status --json --csv": "argument --csv: not allowed with argument --json",
}
# A command with --help, and words of its first lines.
HELP = {
    "": "usage: ssl-bench <command>",
    "help status": "usage: ssl-bench status",
    "train --help": "ssl-bench train [group=option]",
    "train experiment=growing_k --cfg job": "name: ",
    "--version": f"ssl-bench {__version__}\n",
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_wrong_command_line_is_refused_in_one_sentence(command: str, capfd: Capture) -> None:
    refuses(command, REFUSED[command], capfd)


@pytest.mark.parametrize("command", HELP)
def test_help_and_configurations_are_printed_and_nothing_is_written(command: str, capfd: Capture) -> None:
    answer = enter(command, capfd)
    assert (answer.code, answer.err) == (0, "") and HELP[command] in answer.out
    assert not list(Path().iterdir())


def test_the_folder_of_config_dir_has_options_of_its_own(capfd: Capture) -> None:
    """An equals sign in its name is none of an override."""
    Path("a=b/experiment").mkdir(parents=True)
    Path("a=b/experiment/mine.yaml").write_text("# @package _global_\nseed: 7\n")
    for command in ("train --config-dir a=b experiment=mine", "train experiment=mine --config-dir=a=b"):
        answer = enter(f"{command} --cfg job", capfd)
        assert answer.code == 0 and "\nseed: 7\n" in answer.out
    refuses("train --config-dir a=b experiment=mien", "experiment=mien: did you mean mine?", capfd)


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
