"""Text stays as it was typed: ``name=1e5`` is a name, though Hydra would read the number 100000.0.

Values of text keys are put into quotes wherever Hydra would read something else, or nothing: numbers, ``true``, ``~``,
letters that are not English. So a folder can be written as in a shell.
"""

import re
from collections.abc import Iterator
from functools import cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

PATHS = r"init|paths\.\w+|dataset\.(root|path)|evaluate\.\w+\.(root|path|data|images|annotations|reference_weights)"
PATH_KEY = re.compile(PATHS)
TEXT_KEY = re.compile(
    rf"{PATHS}|name|plugins|tracking\.(project|entity|tags)|backbone\.name|augment\.interpolation"
    r"|(dataset|evaluate\.on)\.(name|folder|train|test|classes|torchvision|pretrain|image|label|content)"
    r"|evaluate\.on|evaluate\.\w+\.(interpolation|layers|reference)|launcher\.(partition|account|qos|constraint)"
)
PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[a-z_/][a-z0-9_/.-]*", re.IGNORECASE)
SEVERAL = re.compile(r"(choice|shuffle|sort)\((.*)\)")  # Hydra's functions of values
OTHER = re.compile(r"(str|int|float|bool|tag|range|interval|glob)\(.*\)")


@cache
def as_typed(override: str) -> str:
    """The override with quotes around values that are text and that Hydra would not read as that text."""
    key, equals, value = override.partition("=")
    path = key.lstrip("+")
    if not equals or not (TEXT_KEY.fullmatch(path) or value.startswith("{")):
        return override
    return f"{key}={','.join(_quoted(part, path) for part in _split(value))}"


def quoted(text: str) -> str:
    """``text`` as a value that Hydra reads as this text."""
    return QuotedString(text, Quote.double).with_quotes()


def _quoted(value: str, key: str) -> str:
    word = value.strip()
    if word.startswith("[") and word.endswith("]"):
        return f"[{','.join(_quoted(part, key) for part in _split(word[1:-1]))}]"
    if word.startswith("{") and word.endswith("}"):
        entries = (entry.partition(":") for entry in _split(word[1:-1]))
        return "{" + ",".join(k + colon + _quoted(v, f"{key}.{k.strip()}") for k, colon, v in entries) + "}"
    if several := SEVERAL.fullmatch(word):
        return f"{several[1]}({','.join(_quoted(part, key) for part in _split(several[2]))})"
    return quoted(word) if TEXT_KEY.fullmatch(key) and not _reads(word, key) else value


def _reads(word: str, key: str) -> bool:
    """Whether Hydra reads a word as that text, or as what its quotes, escapes or functions say."""
    if not word or PLAIN.fullmatch(word) or word[0] in "'\"" or "\\" in word or OTHER.fullmatch(word):
        return True
    if word.lower() == "null":
        return key != "name"  # which every run has
    try:
        return bool(OverridesParser.create().parse_rule(word, "element") == word)
    except HydraException:
        return False


def _split(text: str) -> Iterator[str]:
    """The parts of a text between commas that are in no quotes and no brackets."""
    start, depth, quote, last = 0, 0, "", ","
    for i, c in enumerate(text):
        if c == "\\" or text[i - 1 : i] == "\\":
            pass
        elif quote:
            quote = "" if c == quote else quote
        elif c in "'\"" and last in ",:([{":
            quote = c
        elif c == "," and depth == 0:
            yield text[start:i]
            start = i + 1
        else:
            depth = max(0, depth + (c in "([{") - (c in ")]}"))
        last = last if c.isspace() else c
    yield text[start:]
