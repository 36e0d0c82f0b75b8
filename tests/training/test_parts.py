"""The parts of a run: each is built once, and a run is opened again with the weights of its checkpoint."""

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ssl_bench.config.compose import load
from ssl_bench.data.digits import ScatteredDigits
from ssl_bench.data.views import Views
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.evaluate.knn import KNN
from ssl_bench.methods.exemplar import Exemplar
from ssl_bench.methods.siamese import Siamese
from ssl_bench.record import checkpoint
from ssl_bench.seeding import seed_everything
from ssl_bench.training import parts as parts_module
from ssl_bench.training.finished import load_run, read_config
from ssl_bench.training.parts import Parts
from ssl_bench.training.precision import Precision
from ssl_bench.training.validate import validate
from tests.conftest import SMALL, only_run

CPU = torch.device("cpu")
Train = Callable[..., tuple[int, str]]


@pytest.mark.parametrize(
    ("framework", "kind", "objective"),
    [("simclr", Siamese, ["negatives", "temperature", "loss", "positives"]), ("exemplar", Exemplar, ["positives"])],
)
def test_each_part_is_built_once(
    framework: str, kind: type, objective: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exemplar also asks for the number of training images while it is built."""
    config = load([*SMALL, f"framework={framework}", "evaluate=[knn,linear]"])
    built, constructed = Counter[str](), Counter[type]()
    build = parts_module.build

    def counting_build(node: Any, key: str, /, **extra: Any) -> Any:
        built[key] += 1
        return build(node, key, **extra)

    def count_constructor(part: Any) -> None:
        constructor = part.__init__

        @functools.wraps(constructor)
        def counting(self: Any, *arguments: Any, **keywords: Any) -> None:
            constructed[part] += 1
            constructor(self, *arguments, **keywords)

        monkeypatch.setattr(part, "__init__", counting)

    monkeypatch.setattr(parts_module, "build", counting_build)
    classes = [ScatteredDigits, Views, KNN, kind]
    for part in classes:
        count_constructor(part)

    parts = Parts(config)
    assert not built  # nothing is built before it is used
    validate(parts, 1)
    networks = parts.networks(parts.method.encoder, parts.method.encoder)
    targets = list(parts.targets(networks, CPU, Precision.of("fp32", False)))
    assert len(targets) == 2 and targets[0][1].augment == parts.views
    for name in ("dataset", "views", "recipe", "method", "evaluators"):
        assert getattr(parts, name) is getattr(parts, name), name
    keys = ["augment", "backbone", "head", "framework", "optimizer", "evaluate.knn", "evaluate.linear"]
    assert built == dict.fromkeys([*keys, *objective], 1)
    assert constructed == dict.fromkeys(classes, 1)


@pytest.mark.parametrize(
    ("baselines", "names"), [([], ["/"]), (["init"], ["/", "_init/"]), (["init", "raw"], ["/", "_init/", "_raw/"])]
)
def test_targets_are_the_network_and_its_baselines(baselines: list[str], names: list[str]) -> None:
    parts = Parts(load([*SMALL, f"evaluate.baselines=[{','.join(baselines)}]"]))
    trained, initial = nn.Identity(), nn.Identity()
    networks = parts.networks(trained, initial if "init" in baselines else None)
    targets = dict(parts.targets(networks, CPU, Precision.of("fp32", False)))
    assert list(targets) == names
    expected = {"/": trained, "_init/": initial, "_raw/": None}
    assert all(target.network is expected[name] for name, target in targets.items())


def test_validation_leaves_the_global_generator_unchanged() -> None:
    parts = Parts(load(SMALL))
    seed_everything(3)
    state = torch.get_rng_state()
    validate(parts, 1)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_is_loaded_with_the_weights_of_its_checkpoint(train: Train) -> None:
    assert train("max_steps=2", "evaluate.baselines=[init]")[0] == 0
    folder = only_run()
    config = read_config(folder)
    run = load_run(folder, config, CPU)
    state = checkpoint.load(folder, folder.name)
    assert state is not None
    weights = run.parts.method.state_dict()
    assert weights.keys() == state["method"].keys()
    tensors = [name for name, value in weights.items() if isinstance(value, torch.Tensor)]
    assert tensors and all(torch.equal(weights[name], state["method"][name]) for name in tensors)
    assert (run.folder, run.run_id, run.step) == (folder, folder.name, 2)
    assert run.initial is not None and run.precision.name == "fp32"
    seed_everything(config["seed"])
    fresh = Parts(config).method.encoder.state_dict()
    initial, trained = run.initial.state_dict(), run.parts.method.encoder.state_dict()
    assert all(torch.equal(initial[name], fresh[name]) for name in fresh)
    assert not all(torch.equal(trained[name], fresh[name]) for name in fresh)
    without = load_run(folder, config | {"evaluate": {"baselines": []}}, CPU)
    assert without.initial is None


def test_a_folder_without_a_run_or_a_checkpoint_is_refused(train: Train) -> None:
    with pytest.raises(ConfigError, match=r"^outputs .*ssl-bench status"):
        read_config(Path("outputs"))
    assert train("max_steps=1")[0] == 0
    folder = only_run()
    config = read_config(folder)
    moved = folder.rename(folder.with_name("0123456789"))
    with pytest.raises(RunError, match=f"last.pt .*{folder.name}.* 0123456789"):
        load_run(moved, config, CPU)
    (moved / "checkpoints" / "last.pt").unlink()
    with pytest.raises(RunError, match=f"^{moved} .*checkpoints/last.pt.*`rm {moved}/results.json`"):
        load_run(moved, config, CPU)
