"""Read YAML whose anchors are bounded: a few lines of them can stand for more values than a memory holds.

a: &a [x, x, x, x, x, x, x, x, x]
b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]      # 81 values; twenty such lines would be 10^19
"""

from typing import Any

LARGEST = 10**6  # values and characters of a text with anchors, written out, beyond four times its own length


def parse(text: str | bytes) -> Any:
    """The value of a YAML text, with the types of JSON and dates.

    Raises:
        ValueError: its anchors are refused, as by :func:`check`.
        yaml.YAMLError: it is no YAML.
    """
    loader = _loader(text)
    try:
        node = loader.get_single_node()
        _check(node, len(text))
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def check(text: str | bytes) -> None:
    """Look at the anchors of a YAML text; one that is no YAML passes.

    Raises:
        ValueError: a list or mapping contains itself, or the text has too many values once its anchors are written out.
    """
    import yaml

    if not {"&", "*"} <= set(text if isinstance(text, str) else text.decode("latin-1")):
        return
    loader = _loader(text)
    try:
        node = loader.get_single_node()
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    finally:
        loader.dispose()
    _check(node, len(text))


def _loader(text: str | bytes) -> Any:
    import yaml

    surrogate = "\\uDC" if isinstance(text, str) else b"\\uDC"  # a name that is no UTF-8, which the loader in C refuses
    return (yaml.SafeLoader if surrogate in text else getattr(yaml, "CSafeLoader", yaml.SafeLoader))(text)  # type: ignore[operator]


def _check(node: Any, length: int) -> None:
    sizes: dict[int, int] = {}  # values and characters of each node, by its identity; 0 while it is counted

    def size(node: Any) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0
            if isinstance(node.value, str):
                sizes[id(node)] = 1 + len(node.value)
            else:  # a list's values, or a mapping's pairs
                sizes[id(node)] = 1 + sum(sum(map(size, e)) if isinstance(e, tuple) else size(e) for e in node.value)
        if not sizes[id(node)]:
            raise ValueError(f"the list or mapping in line {node.start_mark.line + 1} contains itself")
        return sizes[id(node)]

    if node is not None and size(node) > LARGEST + 4 * length:
        raise ValueError(f"its anchors stand for more than {LARGEST:,} values and characters: use fewer of them")
