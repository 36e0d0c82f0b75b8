"""Odd values of keys, one and several at once: each is accepted, or refused in one sentence that names the key."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from ssl_bench.config.build import directory
from ssl_bench.config.compose import load
from ssl_bench.config.identity import leaves
from ssl_bench.config.schema import check
from ssl_bench.errors import ConfigError
from ssl_bench.training.validate import validate
from tests.conftest import SMALL

GROUPS = ["augment", "framework", "head", "loss", "negatives", "optimizer", "positives", "temperature"]
ELSEWHERE = ("name", "threads", "paths.", "dataset.", "tracking.", "init", "choices")  # of no effect, or others' tests
ODD = ["-1", "0", "1", "2", "3", "7", "0.5", "1.5", "1e-9", "1e9", "1e300", "2147483648", "1e20", "nan", "inf", "-inf"]
ODD += ["true", "false", "null", "x", "''", "' '", "auto", "[]", "[1]", "[0.5,2]", "[x,null]", "[1,2,3,4]", "{}"]
ODD += ["{a:1}", "{_target_:ssl_bench.data.digits.ScatteredDigits}", "[[1]]", "'1'", "0.3333333333333333", "1e-300"]
ODD += ["-0.0"]


def drawn(number: int) -> tuple[list[str], list[str]]:
    """Options of groups and values of keys, with the names of what they set."""
    draw = random.Random(number)
    groups = draw.sample(GROUPS, draw.choice([0, 0, 1, 1, 2, 3]))
    options = [f"{g}={draw.choice([path.stem for path in sorted((directory() / g).glob('*.yaml'))])}" for g in groups]
    evaluators = sorted(path.stem for path in (directory() / "evaluate").glob("*.yaml"))
    options += [f"evaluate=[{','.join(draw.sample(evaluators, draw.choice([1, 2])))}]"] if draw.random() < 0.3 else []
    base = [*SMALL[2:], *options, "epochs=1"]
    try:
        config = load(base)
    except ConfigError:
        return base, groups
    single = [(key, value) for key, value in leaves(config) if not isinstance(value, list)]
    known = [(key, value) for key, value in single if not key.startswith(ELSEWHERE) and "_target_" not in key]
    changes = dict[str, str]()
    for key, value in draw.sample(known, draw.choice([1, 1, 1, 2, 3])):
        beside = [True, False] if value in (0, 1) else []
        beside = [value * 2, value // 2, value + 1, value * 1000] if type(value) in (int, float) else beside
        changes[key] = draw.choice([str(each).lower() for each in beside] if beside and draw.random() < 0.6 else ODD)
    return [*base, *(f"{key}={value}" for key, value in changes.items())], [*groups, *changes]


def accepted(number: int) -> dict[str, Any] | None:
    """The configuration of a number; None if it is refused, by one of the keys that were set."""
    overrides, keys = drawn(number)
    try:
        config: dict[str, Any] = load(overrides)
        check(config)
        validate(config, 1)
    except ConfigError as refusal:
        named = {part for key in ("evaluate", *keys) for part in (key.partition(".")[0], key.rpartition(".")[2])}
        assert any(name in str(refusal) for name in named), (number, overrides, str(refusal))
        assert "\n" not in str(refusal) and 10 < len(str(refusal)) < 600, (number, overrides, str(refusal))
        return None
    except BaseException as error:
        error.add_note(f"configuration {number}: {overrides}")
        raise
    return config


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "block", [pytest.param(n, marks=pytest.mark.exhaustive if n else pytest.mark.slow) for n in range(25)]
)
def test_configurations_drawn_from_a_seed(block: int, train: Callable[..., tuple[int, str]]) -> None:
    """500 configurations in all; a few of the accepted ones are trained for a step."""
    found = {n: config for n in range(20 * block, 20 * (block + 1)) if (config := accepted(n))}
    quick = [n for n, config in found.items() if config["batch_size"]["size"] <= 64 and not config["compile"]]
    small = [n for n in quick if not any(key.startswith("evaluate.") for key in drawn(n)[1])]  # nothing is evaluated
    assert small
    for number in small[:2]:
        overrides, _ = drawn(number)
        code, printed = train(*overrides, "max_steps=1", "evaluate=[]", f"name={number}", small=False)
        refused = [line for line in printed.splitlines() if line.startswith("ssl-bench: ")]
        assert "Traceback" not in printed and (code == 0 or (code == 1 and len(refused) == 1)), (overrides, printed)
