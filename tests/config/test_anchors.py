"""YAML with anchors: values as a loader has them, up to a bound on what they are when written out."""

from functools import partial

import pytest
import yaml

from ssl_bench.config import anchors
from tests.door.door import refused


def nested(lines: int, times: int) -> str:
    """A text whose last list has ``times`` ^ ``lines`` values."""
    each = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * times)}]" for n in range(lines)]
    return "\n".join(each)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {x: [1, 2.5, null, true]}\nb: {<<: *a, y: *a}",
        nested(5, 9),
        'name: "\\uDC80"\nb: &b [c]',  # a name that is no UTF-8
        "[&a b, *a, " + "x, " * 20_000 + "y" * 2_000_000 + "]",  # long, but not by anchors
        "",
    ],
)
def test_a_text_within_the_bound_is_read_as_by_its_loader(text: str) -> None:
    expected = yaml.load(text, Loader=yaml.SafeLoader if "DC80" in text else yaml.CSafeLoader)
    assert anchors.parse(text) == expected == anchors.parse(text.encode())
    anchors.parse(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (nested(7, 9), "1,000,000"),
        (nested(60, 9), "1,000,000"),
        ("a: &a {x: 1}\n" + "".join(f"b{n}: &b{n} {{<<: [*a, *a]}}\n" for n in range(3)) + "c: &c [*c]", "line 5"),
        ("&a {x: {y: *a}}", "line 1"),
        ("x: {a: 1, b: 2,\n  a: 1}", "a line 1"),
        (f"a:\n- {'9' * 300}", "line 2"),
        (f"a: 0x{'f' * 5000}", "line 1"),
        (f"a: &a {'x' * 2000}\nb: [{', '.join(['*a'] * 1000)}]", "1,000,000"),
    ],
)
def test_a_text_beyond_it_or_without_an_end_is_refused(text: str, names: str) -> None:
    for read in (anchors.parse, partial(anchors.parse, construct=False)):
        with refused(names, ValueError):
            read(text)


@pytest.mark.parametrize("text", ["a: [*b]\nb: &b 1", "[&a x, *a", "&a *a: \0"])
def test_what_is_no_yaml_is_left_to_the_loader(text: str) -> None:
    for read in (anchors.parse, partial(anchors.parse, construct=False)):
        with pytest.raises(yaml.YAMLError):
            read(text)
