"""The plugins in conf/README.md: parts in a package of one's own, which run only where the user allows it."""

import itertools
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ssl_bench
from ssl_bench.commands import status
from ssl_bench.config import plugins
from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.data.batch import Step
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.training.parts import Parts
from tests.conftest import SMALL, only_run
from tests.door.door import refuses

README = Path(ssl_bench.__file__).parent.parent / "conf" / "README.md"
COMMAND = "train loss=scaled 'plugins=[my_losses]' --config-dir my_losses/conf"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the first example."""
    assert not README.exists() or f"SSL_BENCH_PLUGINS=my_losses ssl-bench {COMMAND}" in README.read_text()
    yield from written("my_losses", monkeypatch)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the second example, a plugin that is allowed."""
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "my_parts")
    yield from written("my_parts", monkeypatch)


def written(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if not README.exists():
        pytest.skip("the example stands in the README, which an installed package does not have")
    for path, text in re.findall(rf"```(?:python|yaml)\n# ({name}/\S+)\n(.*?)```", README.read_text(), re.DOTALL):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # or an import would write a file, which a refusal must not
    yield Path(name)
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
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
    refuses(COMMAND, "plugins=[my_losses] SSL_BENCH_PLUGINS=my_losses", capfd)
    unlisted = COMMAND.replace("'plugins=[my_losses]' ", "")
    refuses(unlisted, "loss._target_=my_losses.Scaled Loss SSL_BENCH_PLUGINS", capfd)
    assert "my_losses" not in sys.modules
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "my_losses")
    refuses(unlisted, "loss._target_=my_losses.Scaled plugins=[my_losses]", capfd)


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "plugins=[my_losses] my_losses.__version__"),
        ("import nothing_of_this_name", "plugins=[my_losses] nothing_of_this_name"),
        ("__version__ = '1'\nclass Scaled: pass", "loss._target_=my_losses.Scaled Loss"),
        ("__version__ = '1'", "loss._target_=my_losses.Scaled"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused(
    package: Path, capfd: pytest.CaptureFixture[str], text: str, names: str
) -> None:
    (package / "__init__.py").write_text(text)
    refuses(COMMAND, names, capfd)


@pytest.mark.usefixtures("allowed")
def test_a_plugin_whose_source_changed_trains_another_run(
    package: Path, train: Callable[..., tuple[int, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["max_steps=1", "--config-dir", "my_losses/conf", "plugins=[my_losses]", "loss=scaled", "loss.factor=1.0"]
    assert train(*words)[0] == 0 and "already done" in train(*words)[1]
    first = only_run()
    (package / "__init__.py").write_text((package / "__init__.py").read_text().replace("* contrast", "* 2 * contrast"))
    del sys.modules["my_losses"]  # as in the next process
    refuses(f"evaluate {first} evaluate=geometry", "my_losses 1.0", capfd)
    code, text = train(*words)
    assert code == 0 and "already done" not in text
    (second,) = set(first.parent.iterdir()) - {first}
    assert losses(second) == pytest.approx([2 * losses(first)[0]], rel=1e-5)


@pytest.mark.usefixtures("allowed")
def test_an_edited_plugin_is_refused_until_python_starts_again(package: Path) -> None:
    words = [*SMALL, "max_steps=1", "--config-dir=my_losses/conf", "plugins=[my_losses]", "loss=scaled"]
    text = (package / "__init__.py").read_text()
    first = Path(ssl_bench.train(words)["path"][0])
    planned = load(["plugins=[my_losses]", "loss=scaled"], folder=Path("my_losses/conf"))
    (package / "__init__.py").write_text(text.replace("* contrast", "* 2 * contrast"))
    (package / "__pycache__").mkdir(exist_ok=True)
    with pytest.raises(ConfigError, match=r"^plugins=\[my_losses\]: .* restart "):
        ssl_bench.train(words)
    with pytest.raises(ConfigError, match=r"^plugins=\[my_losses\]: .* restart "):
        Parts(planned)
    (package / "__init__.py").write_text(text)
    (package / "__pycache__" / "part.nbi").write_text("compiled by numba")
    assert Path(ssl_bench.train(words)["path"][0]) == first
    (package / "__init__.py").write_text(text.replace("* contrast", "* 2 * contrast"))
    del sys.modules["my_losses"]  # as in the next process
    with pytest.raises(ConfigError, match=r"my_losses 1\.0 #\w+.* 1\.0 #"):
        Parts(planned)


@pytest.mark.usefixtures("allowed", "package")
def test_a_configuration_on_disk_needs_the_version_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = plugins.versions(["my_losses"]).values()
    assert plugins.versions({"my_losses": found}) == {"my_losses": found} and found.partition(" #")[0] == "1.0"
    with pytest.raises(plugins.ConfigError, match=r"my_losses 0\.9.* 1\.0"):
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


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An evaluator of a plugin with a number of which the lowest is best; the words of a command that uses it."""
    Path("conf/evaluate").mkdir(parents=True)
    Path("own_evaluator.py").write_text(EVALUATOR)
    Path("conf/evaluate/spread.yaml").write_text("# @package evaluate.spread\n_target_: own_evaluator.Spread\n")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "own_evaluator")
    yield ["--config-dir", "conf", "plugins=[own_evaluator]", "evaluate=spread"]
    sys.modules.pop("own_evaluator", None)


def test_runs_are_sorted_and_selected_by_the_metric_of_a_plugins_evaluator(
    spread: list[str],
    train: Callable[..., tuple[int, str]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, printed = train("-m", "max_steps=1", *spread, "seed=0,1,2")
    assert code == 0, printed
    measured = [json.loads(path.read_text()) for path in Path("outputs").glob("default/*/results.json")]
    values = {each["run_id"]: each["metrics"]["spread/spread"] for each in measured}
    monkeypatch.delenv("SSL_BENCH_PLUGINS")  # its code does not run again: what its numbers mean was recorded
    sys.modules.pop("own_evaluator")

    def shown(*arguments: str) -> list[str]:
        capfd.readouterr()
        assert status.main(["--json", *arguments]) == 0
        return [each["run_id"] for each in json.loads(capfd.readouterr().out)]

    best = sorted(values, key=lambda run: values[run])
    assert len(best) == 3 and shown("--sort", "spread/spread") == best
    assert shown("--sort=-spread/spread") == best[::-1]
    assert shown(f"spread/spread={values[best[1]]!r}") == [best[1]] and "own_evaluator" not in sys.modules


def test_an_accuracy_in_percent_is_refused_before_it_is_recorded(
    train: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("conf/evaluate").mkdir(parents=True)
    percent = EVALUATOR.replace('"number", "low"', '"share", "high"').replace("float(", "64.2 + 0 * float(")
    Path("own_percent.py").write_text(percent)
    Path("conf/evaluate/spread.yaml").write_text("# @package evaluate.spread\n_target_: own_percent.Spread\n")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "own_percent")
    code, printed = train("max_steps=1", "--config-dir", "conf", "plugins=[own_percent]", "evaluate=spread")
    assert code == 1 and "evaluate.spread: spread=64.2" in printed
    assert not list(Path("outputs").glob("default/*/results.json"))
    sys.modules.pop("own_percent")


# ---- what a class of a plugin says of itself

SAYING = """
from ssl_bench.evaluate.metric import Metric
from ssl_bench.evaluate.target import Evaluator
from ssl_bench.methods.frozen import Features
from ssl_bench.methods.base import Method
from ssl_bench.objective.temperature import Fixed

__version__ = "1"


class Count(Evaluator):
    takes_labels = True

    def run(self, target):
        yield "images", float(len(target.train))


class Once(Evaluator):
    def run(self, target):
        yield "images", float(len(target.train))


class Plain(Method):
    norm, trains = "sync", False

    def __init__(self, backbone):
        super().__init__()
        self.encoder = Features(backbone)

    def trained_outputs(self, batch):
        raise AssertionError

    def objective(self, outputs, batch, progress, diagnostics):
        raise AssertionError


class Still(Fixed):
    length_matters = False


class Moving(Fixed):
    pass
"""
OPTIONS = {
    "evaluate/counts": "count: {_target_: saying.Count}\nonce: {_target_: saying.Once}\n",
    "framework/plain": "# @package _global_\ndefaults: [frozen]\nframework: {_target_: saying.Plain}\n",
    "temperature/still": "_target_: saying.Still\ntau: 0.2\n",
    "temperature/moving": "_target_: saying.Moving\ntau: 0.2\n",
}
MINE = ["--config-dir", "conf", "plugins=[saying]"]


@pytest.fixture
def saying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Any]]]:
    """A plugin whose classes say of themselves what those of the package say; a function that composes with it."""
    Path("saying.py").write_text(SAYING)
    for option, text in OPTIONS.items():
        Path("conf", option).parent.mkdir(parents=True, exist_ok=True)
        Path("conf", f"{option}.yaml").write_text(text)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "saying")
    yield lambda *overrides: load([*overrides, "plugins=[saying]"], folder=Path("conf"))
    sys.modules.pop("saying", None)


@pytest.mark.usefixtures("saying")
def test_an_evaluator_that_takes_labels_is_run_for_each_share(train: Callable[..., tuple[int, str]]) -> None:
    words = ["max_steps=1", *MINE, "evaluate=counts", "evaluate.labels=[0.1,1.0]"]
    code, printed = train(*words)
    assert code == 0, printed
    metrics = json.loads((only_run() / "results.json").read_text())["metrics"]
    assert metrics == {"count/images": 1347, "count/labels0.1/images": pytest.approx(135, abs=5), "once/images": 1347}
    assert "already done" in train(*words)[1]


@pytest.mark.usefixtures("saying")
def test_a_framework_that_trains_nothing_has_no_steps(
    train: Callable[..., tuple[int, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*MINE, "framework=plain", "evaluate=counts", "backbone.width=4", "tracking=off"]
    code, printed = train(*words, small=False)
    assert code == 0, printed
    results = json.loads((only_run() / "results.json").read_text())
    assert results["facts"]["steps"] == 0 and results["metrics"]["count/images"] == 1347
    assert "already done" in train(*words, "optimizer=adam", "batch_size=b32", small=False)[1]  # which it never reads
    for change, names in {
        "epochs=3": "epochs framework=plain",
        "evaluate.baselines=[init]": "evaluate.baselines [raw] []",
    }.items():
        refuses(f"train {shlex.join([*words, 'seed=1', change])}", names, capfd)


def test_a_class_on_which_the_length_has_no_influence_goes_on_to_more_epochs(
    train: Callable[..., tuple[int, str]], saying: Callable[..., dict[str, Any]]
) -> None:
    free = {}
    for option in ("still", "moving"):
        for schedule in ("constant", "cosine"):
            words = [f"temperature={option}", f"optimizer.schedule={schedule}"]
            free[option, schedule] = len({run_id(saying(*words, f"epochs={n}")) for n in (1, 2)}) == 1
    assert [key for key, value in free.items() if value] == [("still", "constant")]
    words = [*MINE, "temperature=still", "optimizer.schedule=constant"]
    assert train(*words, "epochs=1", "dataset.share=0.1")[0] == 0
    code, printed = train(*words, "epochs=2", "dataset.share=0.1")
    assert code == 0, printed
    steps = [row["step"] for row in map(json.loads, (only_run() / "metrics.jsonl").read_text().splitlines())]
    assert json.loads((only_run() / "results.json").read_text())["facts"]["steps"] == 4
    assert sorted({*steps}) == [1, 2, 3, 4]


# ---- a backbone, an augmentation, negatives and an evaluator

PARTS = "train backbone=patches augment=hole negatives=hardest evaluate=norms "
PARTS += "'plugins=[my_parts]' --config-dir my_parts/conf"
BACKBONE = "ssl_bench.networks.backbones.Backbone forward num_features"
NEGATIVES = "ssl_bench.objective.negatives.Negatives bank count"
SMALL_PARTS = ["head.out=8", "max_steps=2", "batch_size=b32", "log_every=1", "tracking=off", "evaluate.baselines=[]"]


@pytest.mark.usefixtures("parts")
def test_the_parts_of_a_plugin_train_together(train: Callable[..., tuple[int, str]]) -> None:
    assert f"SSL_BENCH_PLUGINS=my_parts ssl-bench {PARTS}" in " ".join(README.read_text().split())
    code, printed = train(*shlex.split(PARTS)[1:], *SMALL_PARTS, small=False)
    assert code == 0, printed
    results = json.loads((only_run() / "results.json").read_text())
    assert results["metrics"]["norms/length"] > 0 and results["facts"]["negatives_per_anchor"] == 16
    assert results["units"]["norms"] == {"deviation": {"unit": "number", "better": "low", "of": "test images"}}
    assert results["facts"]["parameters"] == (16 * 32 + 32) + (32 * 32 + 32) + 1360  # the head
    assert len(losses(only_run())) == 2


@pytest.mark.usefixtures("parts")
def test_the_parts_of_a_plugin_do_what_they_say() -> None:
    import my_parts  # type: ignore[import-not-found]  # written by the fixture

    assert my_parts.Patches(3, 5)(torch.rand(2, 3, 9, 9)).shape == (2, 5)
    hole = my_parts.Hole(3, size=8, flip=0.0)
    uniform = hole.uniform(20, torch.Generator().manual_seed(0))
    images = torch.full((20, 1, 10, 10), 255, dtype=torch.uint8)
    parameters = hole.parameters(uniform, 10, 10)
    x = hole.apply(images, parameters)
    for image, (row, column) in zip(x, parameters.place.tolist(), strict=True):
        assert int((image == 0).sum()) == 9 and not image[0, row : row + 3, column : column + 3].any()
    assert torch.equal(hole.apply(images[4:9], parameters[4:9]), x[4:9])
    z = torch.nn.functional.normalize(torch.randn(2, 6, 4, dtype=torch.float64), dim=-1)
    e, negatives = Embedded(z, z.flip(0), z, torch.arange(6)), my_parts.Hardest(3)
    contrast = negatives.select(Contrast.of(e, negatives.bank(e)), 0.0)
    for v, b in itertools.product(range(2), range(6)):
        cosines = sorted(float(z[v, b] @ z[w, c]) for w, c in itertools.product(range(2), range(6)) if c != b)
        assert float(contrast.lse(torch.tensor(1.0))[v, b].exp()) == pytest.approx(sum(map(math.exp, cosines[-3:])))
    with pytest.raises(InvalidValue, match=r"^k=11\b.* 1 to 10\b"):
        my_parts.Hardest(11).count(6)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("sides", [[(24, 24)], [(20, 31), (44, 18), (25, 25)]], ids=["one size", "many sizes"])
def test_a_view_of_a_plugin_has_its_hole_on_every_path(sides: list[tuple[int, int]]) -> None:
    """At once or in chunks, and as on a GPU; of photos the GPU's path did not call ``apply``."""
    import my_parts

    count, hole = 12, my_parts.Hole(6, size=16, flip=0.0)
    images: Any = [torch.full((1, *sides[i % len(sides)]), 255, dtype=torch.uint8) for i in range(count)]
    images = torch.stack(images) if len(sides) == 1 else images
    uniform = [hole.uniform(count, torch.Generator().manual_seed(seed)) for seed in range(2)]
    step = Step(torch.arange(count), torch.zeros(count).long(), images, uniform, [hole] * 2, torch.float32)
    whole = torch.stack(step.batch().views)
    chunks = [torch.stack(step.batch(slice(first, None, 3)).views) for first in range(3)]
    found = {"at once": whole, "in chunks": torch.stack(chunks, 2).flatten(1, 2)}
    found["as on a GPU"] = torch.stack(hole.make(images, uniform, torch.float32))
    assert {name: float((x == 0).float().mean()) for name, x in found.items()} == dict.fromkeys(found, 36 / 256)
    for x in found.values():
        assert torch.equal(x == 0, whole == 0)


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("class Patches(Backbone)", "class Patches(nn.Module)", f"backbone._target_=my_parts.Patches {BACKBONE}"),
        ("def forward", "def backward", f"backbone._target_=my_parts.Patches {BACKBONE}"),
        ("self.num_features =", "self.width =", "num_features"),
        ("class Hole(Views)", "class Hole(nn.Module)", "augment._target_=my_parts.Hole ssl_bench.data.views.Views"),
        ("class Hardest(InBatch)", "class Hardest(nn.Module)", f"negatives._target_=my_parts.Hardest {NEGATIVES}"),
        ("def run", "def evaluate", "evaluate.norms._target_=my_parts.Norms ssl_bench.evaluate.target.Evaluator run"),
    ],
)
def test_a_part_that_lacks_something_is_refused_with_its_base_class(
    parts: Path, capfd: pytest.CaptureFixture[str], old: str, new: str, names: str
) -> None:
    text = (parts / "__init__.py").read_text()
    assert old in text
    (parts / "__init__.py").write_text(text.replace(old, new))
    refuses(PARTS, names, capfd)
