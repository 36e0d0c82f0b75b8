"""The three packages of conf/README.md: parts of one's own, which run only where the user allows it."""

import json
import re
import shlex
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

import ssl_bench
from ssl_bench.commands import status
from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.training import build
from tests.conftest import SMALL, only_run, stopped_at
from tests.door.door import enter, refused, refuses

README = Path(ssl_bench.__file__).parent.parent / "conf" / "README.md"
COMMANDS = {
    "my_losses": "train loss=scaled --config-dir my_losses/conf",
    "my_parts": "train backbone=patches augment=hole negatives=hardest evaluate=norms --config-dir my_parts/conf",
    "my_dashboard": "train tracking=database --config-dir my_dashboard/conf",
}
SCALED = ["loss=scaled", "--config-dir=my_losses/conf", "max_steps=1"]
SMALL_PARTS = ["head.out=8", "max_steps=2", "batch_size=b32", "log_every=1", "tracking=off", "evaluate.baselines=[]"]
ROWS = [*shlex.split(COMMANDS["my_dashboard"])[1:], "dataset.share=0.1", "evaluate.watch=0"]  # two steps an epoch
Train = Callable[..., tuple[int, str]]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files of the examples, in the working directory."""
    if not README.exists():
        pytest.skip("the examples stand in the README, which an installed package does not have")
    for path, text in re.findall(r"```(?:python|yaml)\n# (my_\S+)\n(.*?)```", README.read_text(), re.DOTALL):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # or an import would write a file, which a refusal must not
    yield
    restart()


@pytest.fixture
def parts(packages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages are allowed."""
    monkeypatch.setenv("SSL_BENCH_PLUGINS", ",".join(COMMANDS))


def restart() -> None:
    """Forget the packages, as the next process does."""
    for module in [module for module in sys.modules if module.partition(".")[0] in COMMANDS]:
        del sys.modules[module]


def edit(package: str, old: str, new: str) -> None:
    source = Path(package, "__init__.py")
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))


def losses(run: Path) -> list[float]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


# ---- consent, versions and refusals


@pytest.mark.usefixtures("packages")
def test_a_plugin_needs_the_users_consent(capfd: Capture) -> None:
    command, text = COMMANDS["my_losses"], " ".join(README.read_text().split())
    assert all(f"SSL_BENCH_PLUGINS={name} ssl-bench {line}" in text for name, line in COMMANDS.items())
    refuses(f"{command} plugins=[my_losses]", "plugins=[my_losses] SSL_BENCH_PLUGINS=my_losses", capfd)
    refuses(command, "loss._target_=my_losses.Scaled Loss SSL_BENCH_PLUGINS", capfd)
    refuses(COMMANDS["my_dashboard"], "Dashboard SSL_BENCH_PLUGINS=<package>", capfd)
    assert not COMMANDS.keys() & sys.modules.keys()


REFUSED = yaml.safe_load(Path(__file__).with_name("plugins.yaml").read_text())


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(("package", "old", "new", "names"), REFUSED)
def test_a_plugin_that_cannot_be_used_is_refused(package: str, old: str, new: str, names: str, capfd: Capture) -> None:
    edit(package, old, new)
    refuses(COMMANDS[package] + (" batch_size=b32" if "63" in new else ""), names, capfd)


@pytest.mark.usefixtures("parts")
def test_a_plugin_whose_source_or_version_changed_trains_another_run(train: Train, capfd: Capture) -> None:
    assert train(*SCALED, "loss.factor=1.0")[0] == 0 and "already done" in train(*SCALED, "loss.factor=1.0")[1]
    first = only_run()
    config = yaml.safe_load((first / "config.yaml").read_text())
    assert re.fullmatch(r"1\.0 #[0-9a-f]{10}", config["plugins"]["my_losses"])
    assert config["loss"]["_target_"] == "my_losses.Scaled"
    assert json.loads((first / "results.json").read_text())["config"]["plugins"] == config["plugins"]
    assert train("loss=dcl", "max_steps=1", "paths.outputs=dcl")[0] == 0
    assert losses(first) == pytest.approx(losses(only_run(Path("dcl"))), rel=1e-5)  # of factor 1
    seen = {first}
    for old, new in (("* contrast", "* 2 * contrast"), ('"1.0"', '"1.10"')):
        edit("my_losses", old, new)
        restart()
        refuses(f"evaluate {first} evaluate=geometry", "my_losses 1.0", capfd)
        code, text = train(*SCALED, "loss.factor=1.0")
        assert code == 0 and "already done" not in text
        (other,) = set(first.parent.iterdir()) - seen
        assert losses(other) == pytest.approx([2 * losses(first)[0]], rel=1e-5)
        seen.add(other)


@pytest.mark.usefixtures("parts")
def test_an_edited_plugin_is_refused_until_python_starts_again() -> None:
    words, text = [*SMALL, *SCALED], Path("my_losses/__init__.py").read_text()
    first = Path(ssl_bench.train(words)["path"][0])
    planned = load(["loss=scaled"], folder=Path("my_losses/conf"))
    edit("my_losses", "* contrast", "* 2 * contrast")
    for use in (lambda: ssl_bench.train(words), lambda: build.build(planned)):
        with refused("plugins=[my_losses] restart"):
            use()
    Path("my_losses/__init__.py").write_text(text)
    assert Path(ssl_bench.train(words)["path"][0]) == first
    edit("my_losses", "* contrast", "* 2 * contrast")
    restart()
    with refused("my_losses 1.0"):
        build.build(planned)


@pytest.mark.usefixtures("packages")
def test_a_class_in_a_file_is_one_word_and_the_file_is_in_the_identity(
    train: Train, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "")
    file = Path("my_file.py")
    file.write_text(Path("my_losses/__init__.py").read_text().replace("factor: float", "factor: float = 1.0"))
    words = ["loss=my_file.py:Scaled", "max_steps=1"]
    refuses("train loss=my_file.py:Other", "loss._target_=my_file.Other Loss", capfd)
    Path("yaml.py").write_text(file.read_text())
    refuses("train loss=yaml.py:Scaled", "loss rename yaml.py", capfd)
    assert train(*words)[0] == 0 and train("loss=dcl", "max_steps=1", "paths.outputs=dcl")[0] == 0
    first = only_run()
    assert losses(first) == pytest.approx(losses(only_run(Path("dcl"))), rel=1e-5)  # of factor 1
    file.write_text(file.read_text() + "# edited\n")  # is loaded anew, and is another run
    assert train("-m", *words, "loss.factor=1,2", "batch_size=16,32")[0] == 0
    runs = [path.parent for path in Path("outputs").glob("default/*/results.json") if path.parent != first]
    configs = [yaml.safe_load((run / "config.yaml").read_text()) for run in runs]
    assert {c["loss"]["factor"] * 100 + c["batch_size"]["size"] for c in configs} == {116, 132, 216, 232}
    assert all(config["plugins"].keys() == {"my_file"} for config in configs)
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "")
    restart()
    refuses(f"evaluate {runs[-1]} evaluate=geometry", "my_file SSL_BENCH_PLUGINS", capfd)


# ---- a backbone, an augmentation, negatives and an evaluator


@pytest.mark.usefixtures("parts")
def test_the_parts_train_together_and_runs_are_sorted_by_the_metric_of_their_evaluator(
    train: Train, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*shlex.split(COMMANDS["my_parts"])[1:], *SMALL_PARTS]
    code, printed = train("-m", *words, "seed=0,1,2", small=False)
    assert code == 0, printed
    runs = [json.loads(path.read_text()) for path in Path("outputs").glob("default/*/results.json")]
    for results in runs:
        assert results["metrics"]["norms/length"] > 0 and results["facts"]["negatives_per_anchor"] == 16
        assert results["units"]["norms"] == {"deviation": {"unit": "number", "better": "low", "of": "test images"}}
        assert results["facts"]["parameters"] == (16 * 32 + 32) + (32 * 32 + 32) + 1360  # the head
    values = {results["run_id"]: results["metrics"]["norms/deviation"] for results in runs}
    monkeypatch.delenv("SSL_BENCH_PLUGINS")  # its code does not run again: what its numbers mean was recorded
    restart()

    def shown(*arguments: str) -> list[str]:
        capfd.readouterr()
        assert status.main(["--json", *arguments]) == 0
        return [each["run_id"] for each in json.loads(capfd.readouterr().out)]

    best = sorted(values, key=lambda run: values[run])
    assert len(best) == 3 and shown("--sort", "norms/deviation") == best == shown("--sort=-norms/deviation")[::-1]
    assert shown(f"norms/deviation={values[best[1]]!r}") == [best[1]] and "my_parts" not in sys.modules
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "my_parts")
    edit("my_parts", '"number", "low"', '"share", "high"')
    edit("my_parts", "float(length.std())", "64.2")  # percent
    code, printed = train(*words, "seed=3", small=False)
    assert code == 1 and "deviation=64.2" in printed and len([*Path("outputs").glob("default/*/results.json")]) == 3


# ---- a dashboard


def shown(file: str = "rows.sqlite") -> dict[str, list[tuple[int, str]]]:
    """The numbers and rows in the example's file, by run."""
    with sqlite3.connect(file) as client:
        rows = client.execute("select run_id, number, row from rows order by rowid").fetchall()
    client.close()
    return {run: [(number, row) for of, number, row in rows if of == run] for run, *_ in rows}


def recorded() -> dict[str, list[tuple[int, str]]]:
    paths = Path("outputs/default").glob("*/metrics.jsonl")
    return {path.parent.name: [*enumerate(path.read_text().splitlines())] for path in paths}


@pytest.mark.usefixtures("parts")
def test_a_dashboard_has_the_rows_of_the_file_also_after_a_resume(train: Train) -> None:
    words = [*ROWS, "epochs=2", "evaluate.every=1"]
    with stopped_at(3):
        assert train(*words)[0] == 143
    assert [json.loads(row)["step"] for _, row in shown()[only_run().name]] == [1, 2, 2, 3] and shown() == recorded()
    Path("rows.sqlite").unlink()  # which the next process writes again from the earlier rows
    assert train(*words)[0] == 0
    assert [json.loads(row)["step"] for _, row in shown()[only_run().name]] == [1, 2, 2, 3, 4, 4]
    assert shown() == recorded()


@pytest.mark.usefixtures("parts")
def test_a_run_does_not_depend_on_its_dashboard(train: Train) -> None:
    words = [*ROWS, "max_steps=1"]
    assert train(*words)[0] == 0
    config = yaml.safe_load((only_run() / "config.yaml").read_text())
    assert config["tracking"]["_target_"] == "my_dashboard.Database" and not config.get("plugins")
    folder = Path("my_dashboard/conf")
    assert run_id(load(["tracking=database"], folder=folder)) == run_id(load(["tracking=off"], folder=folder))
    edit("my_dashboard", "The rows of all runs", "All rows")
    restart()
    assert "already done" in train(*words)[1] and "already done" in train(*words[3:])[1]  # without tracking


FAULTS = {
    "the constructor": ("self.file = file", "raise OSError('no server')"),
    "open": ("client = sqlite3.connect(self.file, isolation_level=None)", "raise OSError('no server')"),
    "show": ("client.execute(\"insert", "self.config.clear(); self.facts.clear(); raise OSError('no server')\n#"),
    "end": ("client.close()", "raise OSError('no server')"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("parts")
def test_what_a_dashboard_raises_is_a_warning(train: Train, capfd: Capture) -> None:
    assert train(*ROWS[3:], "max_steps=2", "paths.outputs=others")[0] == 0
    undisturbed, source = losses(only_run(Path("others"))), Path("my_dashboard/__init__.py")
    for place, text in dict.fromkeys(FAULTS, source.read_text()).items():
        source.write_text(text)
        edit("my_dashboard", *FAULTS[place])
        restart()
        code, printed = train(*ROWS, "max_steps=2", f"paths.outputs={place}")
        assert code == 0 and printed.count("no server") == 1, printed
        run = only_run(Path(place))
        assert losses(run) == undisturbed
        assert json.loads((run / "results.json").read_text())["facts"]["steps"] == 2
    edit("my_dashboard", "def show", "def shown")
    restart()
    answer = enter(f"evaluate '{run}' evaluate=geometry", capfd)
    assert answer.code == 0 and "my_dashboard.Database" in answer.err and "show" in answer.err
