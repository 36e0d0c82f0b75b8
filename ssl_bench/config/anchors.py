"""Parse YAML with limits: a few lines of anchors can expand to more values than fit into memory.

a: &a [x, x, x, x, x, x, x, x, x]
b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]      # 81 values; twenty such lines would be 10^19

Integers that Python does not print, deep nesting and a key that stands twice in a mapping are refused, too.
"""

import json
from functools import partial
from typing import Any

from ssl_bench.files import read_json

LONGEST_INTEGER = 250  # characters: in no notation is it more than a float can be
LARGEST = 10**6  # values and characters of a text with anchors, written out, beyond four times its own length


def parse(text: str | bytes, construct: bool = True) -> Any:
    """The value of a YAML text, with the types of JSON and dates; without ``construct`` None, and values as they are.

    Raises:
        ValueError: a list or mapping contains itself, the text has too many values once its anchors are written out,
            a key stands twice in a mapping, an integer is too long, or lists or mappings are nested too deeply.
        yaml.YAMLError: it is no YAML.
    """
    import yaml

    surrogate = "\\uDC" if isinstance(text, str) else b"\\uDC"  # a name that is no UTF-8, which the loader in C refuses
    loader: Any = (yaml.SafeLoader if surrogate in text else getattr(yaml, "CSafeLoader", yaml.SafeLoader))(text)  # type: ignore[operator]
    try:
        node = loader.get_single_node()
        _check(node, len(text))
        return None if node is None or not construct else loader.construct_document(node)
    except (RecursionError, yaml.MarkedYAMLError) as error:
        if isinstance(error, yaml.MarkedYAMLError) and "nesting depth" not in str(error):  # of libyaml, 1,000
            raise
        raise ValueError("it is nested too deeply") from error
    finally:
        loader.dispose()


def as_json(text: bytes) -> Any:
    """The value of a YAML text without dates and other values that JSON does not have; a ValueError for such."""
    import yaml

    try:
        return json.loads(json.dumps(parse(text)))
    except (TypeError, AttributeError, OverflowError, RecursionError, yaml.YAMLError) as error:
        raise ValueError("no YAML") from error  # the loader lets errors of dates, numbers and keys through


read_yaml = partial(read_json, parse=as_json)  # content of a YAML file as JSON would have it


def _check(node: Any, length: int) -> None:
    sizes: dict[int, int] = {}  # values and characters of each node, by its identity; 0 while it is counted

    def size(node: Any) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0
            if isinstance(node.value, str):
                sizes[id(node)] = 1 + len(node.value)
                if len(node.value) > LONGEST_INTEGER and node.tag.endswith(":int"):
                    raise ValueError(f"the number in line {node.start_mark.line + 1} is too long")
            else:  # a list's values, or a mapping's pairs
                keys = [e[0].value for e in node.value if isinstance(e, tuple) and isinstance(e[0].value, str)]
                if len({*keys}) < len(keys):
                    twice = next(key for key in keys if keys.count(key) > 1)
                    raise ValueError(f"{twice} stands twice in the mapping in line {node.start_mark.line + 1}")
                sizes[id(node)] = 1 + sum(sum(map(size, e)) if isinstance(e, tuple) else size(e) for e in node.value)
        if not sizes[id(node)]:
            raise ValueError(f"the list or mapping in line {node.start_mark.line + 1} contains itself")
        return sizes[id(node)]

    if node is not None and size(node) > LARGEST + 4 * length:
        raise ValueError(f"its anchors stand for more than {LARGEST:,} values and characters: use fewer of them")
