"""Random values of every key: each is refused by name, or a run with it trains two steps. There is no third end.

``SSL_BENCH_SEED=7 SSL_BENCH_EXAMPLES=2000 pytest -m slow tests/door/test_values.py`` draws other values, and more. A
failure prints its command.
"""

import functools
import itertools
import json
import math
import os
import resource
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from ssl_bench.config.build import KINDS
from ssl_bench.config.compose import Composer
from ssl_bench.config.schema import check, directory
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.training.engine import train
from ssl_bench.training.parts import Parts
from tests.conftest import SMALL

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # of torch
SEED, COUNT = int(os.environ.get("SSL_BENCH_SEED", "0")), int(os.environ.get("SSL_BENCH_EXAMPLES", "800"))
BASE = [*SMALL, "max_steps=2", "epochs=2", "batch_size.size=16"]
# A value of these may take minutes, or the network.
LEFT_OUT = {"compile", "tracking.mode", "devices", "paths.data", "paths.outputs", "evaluate.linear.epochs"}
COMPOSER = Composer()
DEFAULT = "loss=infonce"


@pytest.fixture(autouse=True)
def limited_memory() -> Iterator[None]:
    """Let an allocation of more than a few GiB fail, before the system kills a process."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 4 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def without_data(option: str) -> bool:
    """Whether a run with an option is accepted where no dataset was prepared."""
    try:
        config = COMPOSER.load([*BASE, option])
        check(config)
        Parts(config).validate(1)
    except ConfigError:
        return False
    return True


@functools.cache
def options() -> list[str]:
    """Every option with a key, of every group, that fits the small base; as an override."""
    groups = [group for group in (*KINDS, "batch_size") if group != "backbone"]
    found = [f"{group}={path.stem}" for group in groups for path in sorted((directory() / group).glob("*.yaml"))]
    found = [option.replace("evaluate=", "evaluate=[") + "]" * option.startswith("evaluate=") for option in found]
    found.remove("augment=multicrop_imagenet")  # at 224 px a step takes long
    return [option for option in found if without_data(option) and keys(option)]


@functools.cache
def keys(option: str) -> list[str]:
    """The keys of a configuration that the option has set, or all of them for the default option."""
    config = COMPOSER.load([*BASE, option])
    config.pop("choices")
    group = option.partition("=")[0]
    nodes = config if option == DEFAULT else {group: config[group]}
    return sorted({key for key in leaves(nodes) if key not in LEFT_OUT and not key.endswith("_target_")})


def leaves(node: Any, path: str = "") -> list[str]:
    if isinstance(node, Mapping) and node:
        return [leaf for name, value in node.items() for leaf in leaves(value, f"{path}.{name}" if path else str(name))]
    return [path]


NUMBERS = st.one_of(
    st.integers(-3, 9),
    st.sampled_from([16, 17, 2**31, 2**32, 2**63, -(2**63) - 1, 10**23]),
    st.floats(-2, 2),
    st.floats(),
)
TEXTS = st.one_of(st.text(max_size=6), st.sampled_from(["a" * 300, "none", "mean", "auto", "${seed}", "../x", "é"]))
PLAIN = st.one_of(NUMBERS, TEXTS, st.none(), st.booleans())
VALUES = st.one_of(PLAIN, PLAIN, st.lists(PLAIN, max_size=3), st.dictionaries(st.sampled_from("ab"), PLAIN, max_size=2))


def written(value: Any) -> str:
    """A value as it is written on the command line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float() if not math.isfinite(value):
            return str(value)
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case list():
            return f"[{','.join(map(written, value))}]"
        case dict():
            return "{" + ",".join(f"{k}:{written(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def end_of(overrides: list[str]) -> str:
    """Carry out a run: ``trained``, or the sentence of its refusal."""
    try:
        config = COMPOSER.load(overrides)
        check(config)
        Parts(config).validate(1)
    except ConfigError as refusal:
        return str(refusal)
    evaluators = [name for name, value in config["evaluate"].items() if isinstance(value, dict)]
    for name in evaluators:  # an evaluation would take most of the time
        del config["evaluate"][name]
    with tempfile.TemporaryDirectory() as folder, patch("ssl_bench.record.plots._render", return_value=b""):
        try:
            train(config, "0123456789", Path(folder), torch.device("cpu"))
        except RunError as error:
            assert "not finite" in str(error) or "is not a finite" in str(error), error
    return "trained"


ENDS: Counter[str] = Counter()


def accepted_or_refused(option: str, key: str, value: Any) -> None:
    override = f"{key}={written(value)}"
    note(f"SSL_BENCH_SEED={SEED}: {' '.join([*BASE, option, override])}")
    end = end_of([*BASE, option, override])
    ENDS["trained" if end == "trained" else "refused"] += 1
    if end != "trained":
        *_, last = key.split(".")
        assert len(end.splitlines()) == 1 and len(end) < 1500, end
        assert last in end or key.partition(".")[0] in end, f"{override}: {end}"


@st.composite
def settings_of_a_run(draw: st.DrawFn) -> tuple[str, str, Any]:
    return *draw(st.sampled_from([(option, key) for option in options() for key in keys(option)])), draw(VALUES)


@st.composite
def settings_of_the_default_run(draw: st.DrawFn) -> tuple[str, str, Any]:
    return DEFAULT, draw(st.sampled_from(keys(DEFAULT))), draw(VALUES)


EXAMPLES: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.slow
@seed(SEED)
@settings(max_examples=20, **EXAMPLES)
@given(settings_of_the_default_run())
def test_some_random_values(drawn: tuple[str, str, Any]) -> None:
    accepted_or_refused(*drawn)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_random_values_of_every_option() -> None:
    @seed(SEED)
    @settings(max_examples=COUNT, **EXAMPLES)
    @given(settings_of_a_run())
    def each(drawn: tuple[str, str, Any]) -> None:
        accepted_or_refused(*drawn)

    ENDS.clear()
    each()
    assert ENDS.total() >= COUNT and min(ENDS["trained"], ENDS["refused"]) > COUNT / 20, ENDS


@pytest.mark.exhaustive
def test_every_option_without_a_dataset_takes_part() -> None:
    chosen = {option.partition("=")[0] for option in options()}
    assert chosen >= {*KINDS, "batch_size"} - {"backbone"} and len(options()) > 50
    assert {"seed", "epochs", "temperature.tau", "optimizer.momentum", "batch_size.chunk"} <= set(keys(DEFAULT))
    assert len(set(itertools.chain.from_iterable(map(keys, options())))) > 120
