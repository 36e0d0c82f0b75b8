"""The plugin in conf/README.md: a loss in a package of one's own, which runs only where the user allows it."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

import ssl_bench
from ssl_bench.commands import status
from ssl_bench.config import plugins
from tests.conftest import only_run
from tests.door.door import refuses

README = Path(ssl_bench.__file__).parent.parent / "conf" / "README.md"
COMMAND = "train loss=scaled 'plugins=[my_losses]' --config-dir my_losses/conf"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the example."""
    if not README.exists():
        pytest.skip("the example stands in the README, which an installed package does not have")
    assert f"SSL_BENCH_PLUGINS=my_losses ssl-bench {COMMAND}" in README.read_text()
    for name, text in re.findall(r"```(?:python|yaml)\n# (my_losses/\S+)\n(.*?)```", README.read_text(), re.DOTALL):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # or an import would write a file, which a refusal must not
    yield Path("my_losses")
    for module in [name for name in sys.modules if name.partition(".")[0] == "my_losses"]:
        del sys.modules[module]


def losses(run: Path) -> list[float]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "others, my_losses")


@pytest.mark.usefixtures("package", "allowed")
def test_the_loss_of_a_plugin_trains(train: Callable[..., tuple[int, str]]) -> None:
    words = ["max_steps=2", "--config-dir", "my_losses/conf", "plugins=[my_losses]"]
    code, printed = train("loss=scaled", "loss.factor=1.0", *words)
    assert code == 0, printed
    run = only_run()
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert re.fullmatch(r"1\.0 #[0-9a-f]{10}", config["plugins"]["my_losses"])
    assert config["loss"]["_target_"] == "my_losses.Scaled"
    assert json.loads((run / "results.json").read_text())["config"]["plugins"] == config["plugins"]
    # With factor 1 the loss is DCL's, so that the first steps are equal.
    found = losses(run)
    assert train("loss=dcl", "max_steps=2", "paths.outputs=dcl")[0] == 0
    assert len(found) == 2 and found == pytest.approx(losses(only_run(Path("dcl"))), rel=1e-5)


@pytest.mark.usefixtures("package", "allowed")
def test_another_version_is_another_run(train: Callable[..., tuple[int, str]], package: Path) -> None:
    words = ["loss=scaled", "max_steps=1", "--config-dir", "my_losses/conf", "plugins=[my_losses]"]
    assert train(*words)[0] == 0
    (package / "__init__.py").write_text((package / "__init__.py").read_text().replace("1.0", "1.10", 1))
    del sys.modules["my_losses"]
    code, printed = train(*words)
    assert code == 0 and "already done" not in printed
    assert len(list(Path("outputs").glob("default/*/results.json"))) == 2


@pytest.mark.usefixtures("package")
def test_a_plugin_needs_both_consents(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(COMMAND, "plugins=[my_losses] runs code allow it with SSL_BENCH_PLUGINS=my_losses", capfd)
    unlisted = COMMAND.replace("'plugins=[my_losses]' ", "")
    refuses(unlisted, "loss._target_=my_losses.Scaled Loss of ssl_bench SSL_BENCH_PLUGINS", capfd)
    assert "my_losses" not in sys.modules
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "my_losses")
    refuses(unlisted, "loss._target_=my_losses.Scaled set plugins=[my_losses] too", capfd)


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "plugins=[my_losses] has no version set my_losses.__version__"),
        (
            "import nothing_of_this_name",
            "plugins=[my_losses] cannot be imported ModuleNotFoundError nothing_of_this_name",
        ),
        ("__version__ = '1'\nclass Scaled: pass", "loss._target_=my_losses.Scaled is no Loss"),
        ("__version__ = '1'", "loss._target_=my_losses.Scaled there is no such class"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused(
    package: Path, capfd: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    (package / "__init__.py").write_text(text)
    refuses(COMMAND, says, capfd)


@pytest.mark.usefixtures("allowed")
def test_a_plugin_whose_source_changed_trains_another_run(
    package: Path, train: Callable[..., tuple[int, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["max_steps=1", "--config-dir", "my_losses/conf", "plugins=[my_losses]", "loss=scaled", "loss.factor=1.0"]
    assert train(*words)[0] == 0 and "already done" in train(*words)[1]
    first = only_run()
    (package / "__init__.py").write_text((package / "__init__.py").read_text().replace("* contrast", "* 2 * contrast"))
    del sys.modules["my_losses"]  # as in the next process
    refuses(f"evaluate {first} evaluate=geometry", "the run was made with my_losses 1.0 # in place of 1.0 #", capfd)
    code, text = train(*words)
    assert code == 0 and "already done" not in text
    (second,) = set(first.parent.iterdir()) - {first}
    assert losses(second) == pytest.approx([2 * losses(first)[0]], rel=1e-5)


@pytest.mark.usefixtures("allowed", "package")
def test_a_configuration_on_disk_needs_the_version_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = plugins.versions(["my_losses"]).values()
    # A run of an earlier version has no hash of the source.
    assert plugins.versions({"my_losses": "1.0"}) == plugins.versions({"my_losses": found}) == {"my_losses": found}
    assert found.partition(" #")[0] == "1.0"
    with pytest.raises(plugins.ConfigError, match=r"made with my_losses 0\.9: install it in place of 1\.0"):
        plugins.versions({"my_losses": "0.9"})


def test_an_installed_package_is_allowed_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    info = Path("my_losses-2.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-losses\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[ssl_bench.plugins]\nmine = my_losses.extra\n")
    (info / "top_level.txt").write_text("my_losses\n")
    Path("my_losses").mkdir()
    Path("my_losses/__init__.py").touch()
    monkeypatch.syspath_prepend(Path.cwd())
    plugins._installed.cache_clear()
    try:
        assert plugins.allowed() == {"my_losses"}
        assert plugins.versions(["my_losses"])["my_losses"].startswith("2.0 #")
    finally:
        monkeypatch.undo()
        plugins._installed.cache_clear()
        sys.modules.pop("my_losses", None)


EVALUATOR = """
from ssl_bench.evaluate.metric import Metric
from ssl_bench.evaluate.target import Evaluator

__version__ = "1"


class Spread(Evaluator):
    metrics = {"spread": Metric("number", "low", "features")}

    def run(self, target):
        yield "spread", float(target.features("test")["backbone"].std())
"""


def test_runs_are_sorted_and_selected_by_the_metric_of_a_plugins_evaluator(
    train: Callable[..., tuple[int, str]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("conf/evaluate").mkdir(parents=True)
    Path("own_evaluator.py").write_text(EVALUATOR)
    Path("conf/evaluate/spread.yaml").write_text("# @package evaluate.spread\n_target_: own_evaluator.Spread\n")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "own_evaluator")
    words = ["-m", "max_steps=1", "--config-dir", "conf", "plugins=[own_evaluator]", "evaluate=spread", "seed=0,1,2"]
    code, printed = train(*words)
    assert code == 0, printed
    measured = [json.loads(path.read_text()) for path in Path("outputs").glob("default/*/results.json")]
    spread = {each["run_id"]: each["metrics"]["spread/spread"] for each in measured}
    monkeypatch.delenv("SSL_BENCH_PLUGINS")  # its code does not run again: what its numbers mean was recorded
    sys.modules.pop("own_evaluator")

    def shown(*arguments: str) -> list[str]:
        capfd.readouterr()
        assert status.main(["--json", *arguments]) == 0
        return [each["run_id"] for each in json.loads(capfd.readouterr().out)]

    best = sorted(spread, key=lambda run: spread[run])
    assert len(best) == 3 and shown("--sort", "spread/spread") == best
    assert shown("--sort", "-spread/spread") == best[::-1]
    assert shown("--where", f"spread/spread={spread[best[1]]!r}") == [best[1]] and "own_evaluator" not in sys.modules
