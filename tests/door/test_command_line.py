"""Command lines: exit codes, help, tables of any text, what fails outside of a command, and code that is not run."""

import io
import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from ssl_bench import __version__, cli
from ssl_bench.cli import COMMANDS
from ssl_bench.commands import status, table
from ssl_bench.commands.arguments import Parser
from ssl_bench.config.build import KINDS, directory, find_target
from ssl_bench.config.compose import load
from ssl_bench.errors import command_line, printable
from ssl_bench.results.pivot import spread
from tests.conftest import SMALL
from tests.door.door import enter, refused, refuses
from tests.results.folders import finish, make, rows

Capture = pytest.CaptureFixture[str]

# A command with --help, and words of its first lines.
HELP = {
    "": "usage: ssl-bench <command>",
    "help status": "usage: ssl-bench status",
    "train loss=dcl batch_size=48 --help": "\n  batch_size=48 ",
    "train --help --all": "\nloss=infonce: InfoNCE",
    "train experiment=growing_k --cfg job": "name: ",
    "--version": f"ssl-bench {__version__}\n",
    **{f"{command} --help": f"usage: ssl-bench {command}" for command in COMMANDS},
}


@pytest.mark.parametrize("command", HELP)
def test_help_and_configurations_are_printed_and_nothing_is_written(command: str, capfd: Capture) -> None:
    answer = enter(command, capfd)
    assert (answer.code, answer.err) == (0, "") and HELP[command] in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80 and not list(Path().iterdir())


def test_the_folder_of_config_dir_has_options_of_its_own(capfd: Capture) -> None:
    """An equals sign in its name is none of an override."""
    Path("a=b/experiment").mkdir(parents=True)
    Path("a=b/experiment/mine.yaml").write_text("# @package _global_\nseed: 7\nname: '1e5'\n")
    for command in ("train --config-dir a=b experiment=mine", "train experiment=mine --config-dir=a=b"):
        answer = enter(f"{command} --cfg job", capfd)
        assert answer.code == 0 and "\nseed: 7\n" in answer.out and "name: '1e5'\n" in answer.out


def test_errors_outside_a_command_are_sentences(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: BaseException) -> None:
        def main(arguments: object) -> int:
            raise error

        monkeypatch.setattr(table, "main", main)

    fails(PermissionError(13, "Permission denied", "x"))
    refuses("table", "x", capfd, 1)
    fails(OSError(28, "No space left on device"))
    refuses("table", "output", capfd, 1)
    fails(KeyboardInterrupt())
    answer = enter("table", capfd)
    assert answer.code == 130 and answer.err.count("\n") == 1
    fails(KeyError("a fault of the program keeps its traceback"))
    with pytest.raises(KeyError), monkeypatch.context() as patched:
        patched.setattr(sys, "argv", ["ssl-bench", "table"])
        cli.main()


def test_a_job_that_slurm_refuses_is_one_sentence(
    capfd: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\necho sbatch: error: invalid partition: nope >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    answer = enter("train -m launcher=slurm launcher.partition=nope seed=0,1", capfd)
    line = answer.err.splitlines()[-1]
    assert answer.code == 2 and "nope" in line and "launcher.<key>" in line, answer


# ---- what is printed


def test_small_weights_have_significant_digits(capfd: Capture) -> None:
    settings = "framework=frozen loss=infonce temperature=fixed temperature.tau=0.1 evaluate.gradient_weight.k=1"
    answer = enter(f"train evaluate=gradient_weight {settings}", capfd)
    assert answer.code == 0 and "2.061e-09" in answer.out  # sigmoid(-2 / 0.1)


@pytest.mark.parametrize(
    ("values", "digits", "expected"),
    [
        ([60.0, 62.0, 64.0], 2, "62.00 ± 2.00 (3)"),
        ([0.0000454], 3, "4.54e-05 (1)"),
        ([-0.00004663, -0.0000454, -0.00004417], 3, "-4.54e-05 ± 1.23e-06 (3)"),
        ([0.0, 0.0], 3, "0.000 ± 0.000 (2)"),
        ([0.5 - 1e-16, 0.5, 0.5], 3, "0.500 ± 0.000 (3)"),
        ([], 3, ""),
    ],
)
def test_numbers_of_tables(values: list[float], digits: int, expected: str) -> None:
    assert spread(values, digits) == expected


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_folders_whose_names_are_no_text(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert printable("plain ä 漢") == "plain ä 漢"
    assert printable("a\nb\x1b[31m\udcff\u202e") == r"a\nb\x1b[31m\udcff\u202e"
    assert command_line(["rm", "a b", "a'\"\\\n\udce9"]) == r"""rm 'a b' $'a\'"\\\n\xe9'"""
    odd = os.fsdecode(b"\xff\x1b[31m\n")
    finish(make(f"{odd}/x", choices={"dataset": "bunté"}), 1.0, knn_top1=0.5)
    failed = make(f"{odd}/y", choices={"dataset": "plain"})
    (failed / "failed.json").write_text('{"reason": "a\\u001b[2J b"}')

    def printed(form: str) -> str:
        with monkeypatch.context() as context:
            context.setattr(sys, "stdout", io.TextIOWrapper(stream := io.BytesIO(), encoding, "backslashreplace"))
            assert status.main([form]) == 0
            sys.stdout.flush()
            return stream.getvalue().decode(encoding)

    accent = "é" if encoding == "utf-8" else r"\xe9"
    make("b/", rows(1), seed=0)
    text, lines = printed("--runs"), printed("--csv")
    assert f"dataset=bunt{accent}" in text and text.count(r"\udcff\x1b[31m\n") == 3 and "\x1b" not in text
    assert json.loads(printed("--json"))[1]["folder"].startswith(f"outputs/{odd}/")
    assert r"outputs/\udcff\x1b[31m\n/" in lines and f"dataset=bunt{accent}" in lines and "\x1b" not in lines


# ---- code that is not run; tests/refusals.yaml has the command lines


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
    for group in KINDS:
        other = "ssl_bench.objective.losses.DCL" if group != "loss" else "ssl_bench.data.views.Views"
        with refused(f"{group}._target_={other}"):
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
    environment = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run([program, *grid], capture_output=True, text=True, timeout=150, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- words, flags and key=value


@pytest.fixture
def parser() -> Parser:
    parser = Parser("example", "An example.")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    return parser


def test_overrides_are_separated_from_words_and_flags(parser: Parser) -> None:
    options = parser.read(["evaluate=knn", "outputs/run", "--out", "file.json", "evaluate.knn.k=20", "--dry-run"])
    assert options.overrides == ["evaluate=knn", "evaluate.knn.k=20"]
    assert options.run == Path("outputs/run") and options.out == Path("file.json") and options.dry_run
    nothing = parser.read([])
    assert nothing.overrides == [] and nothing.run is None and nothing.out is None and not nothing.dry_run


@pytest.mark.parametrize("out", [["--out=a=b.json"], ["--out", "a=b.json"]])
def test_the_value_of_a_flag_is_no_override(parser: Parser, out: list[str]) -> None:
    options = parser.read([*out, "key=--value", "--dry-run", "row=lr=0.1"])
    assert options.out == Path("a=b.json") and options.overrides == ["key=--value", "row=lr=0.1"]


# ---- unknown flags, and the end of the process


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_refuses_an_unknown_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        import_module(f"ssl_bench.commands.{command}").main(["--no-such-flag"])
    refusal = capsys.readouterr().err
    assert stop.value.code == 2 and refusal.startswith("ssl-bench: ") and refusal.count("\n") == 1
    assert "--help" in refusal


def test_a_command_ends_without_a_last_look_for_garbage() -> None:
    """With torch imported it takes a second of each command."""
    code = "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count() > 0)); "
    code += "sys.argv = ['ssl-bench', 'train', '--cfg', 'job']; from ssl_bench.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout.splitlines()[-1] == "True", ended


@pytest.mark.parametrize("arguments", (["--version"], ["train", "seed=1"], []))
def test_windows_is_refused_in_a_sentence(arguments: list[str], tmp_path: Path) -> None:
    """In a Python without the modules and signals that Windows lacks."""
    lacking = "import signal, sys\nsys.platform = 'win32'\ndel signal.SIGHUP, signal.SIGUSR2, signal.pthread_sigmask\n"
    (tmp_path / "sitecustomize.py").write_text(f"{lacking}sys.modules |= dict.fromkeys(('fcntl', 'resource'))\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "ssl_bench", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": paths})
    said = "ssl-bench: it runs on Linux and macOS, and on Windows in WSL2: install it there\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", said)
