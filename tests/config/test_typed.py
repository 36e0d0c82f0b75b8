"""Text stays as it was typed: on the command line, in grids, in lists; a YAML file has to quote it."""

from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from ssl_bench.config.build import _signature, directory, located
from ssl_bench.config.command import Command
from ssl_bench.config.compose import load
from ssl_bench.config.schema import check
from ssl_bench.config.with_hydra import TEXT_KEY, as_typed
from ssl_bench.errors import ConfigError

WORDS = ["1e5", "12e45", "1.10", "2024_01_15", "0123", "0x10", "1_000", ".5", "null", "True", "nan", "-inf", "grid-1"]
WORDS += ["a b", "x=y", "a#b", "café", "~", "100%", "${seed}"]


@pytest.mark.parametrize("word", WORDS)
def test_a_name_is_the_text_that_was_typed(word: str) -> None:
    meant = "7" if word == "${seed}" else word
    assert load([f"name={word}", "seed=7"])["name"] == meant
    grid = Command.of([as_typed(f"name=first,{word}"), "seed=7"], multirun=True)
    names = [load(run)["name"] for run in grid.combinations()]
    assert names == ["first", meant]


def test_text_with_quotes_or_brackets_is_as_hydra_reads_it() -> None:
    assert load(["name=1e5"])["name"] == "1e5"
    tracking = load(["tracking.tags=['2024_01','a,b']", "tracking.project=1e5", "tracking.entity=null"])["tracking"]
    assert tracking["tags"] == ["2024_01", "a,b"] and (tracking["project"], tracking["entity"]) == ("1e5", None)
    for word in ("name=choice(1e5,b)", "loss.alpha=1e5", r"name=a\,b", "tracking.tags=[1e5]"):
        assert as_typed(word) == word
    for word in ("tracking.tags=[1e5]", "paths={data: 1e5, outputs: a}", "name=it's"):
        with pytest.raises(ConfigError, match=r"quotes"):
            check(load([word]))
    with pytest.raises(ConfigError, match=r"^init=/.*/1e5: |^init=1e5: "):
        load(["init=1e5"])


def is_text(hint: Any) -> bool:
    """Whether an annotation is that of text, of none, or of several texts."""
    inner = get_args(hint)
    kinds = {hint, *inner, *(kind for part in inner for kind in get_args(part))}
    return str in kinds and not kinds & {int, float, bool}


def test_every_argument_that_is_text_is_a_text_key() -> None:
    """The table of keys and the annotations of the classes say the same."""
    wrong = set()
    for path in sorted(directory().glob("*/*.yaml")):
        content: Any = yaml.safe_load(path.read_text())
        nodes = {path.parent.name: content or {}} | {f"evaluate.{k}": v for k, v in (content or {}).items()}
        nodes |= {path.parent.name: content[path.parent.name]} if path.parent.name in (content or {}) else {}
        for key, node in nodes.items():
            target = node.get("_target_", "") if isinstance(node, dict) else ""
            if not target.startswith("ssl_bench.") or key.split(".")[0] != path.parent.name:
                continue
            for argument, hint in _signature(located(target))[1].items():
                listed = bool(TEXT_KEY.fullmatch(f"{key}.{argument}"))
                if is_text(hint) != listed and get_origin(hint) is not Literal:
                    wrong.add((f"{key}.{argument}", str(hint)))
    assert wrong == set()
