"""The exceptions of the package, and the one way to refuse a value.

Every refusal is one sentence: ``<key>=<value>: set <key> to <remedy>``.
"""

import json
import os
import shlex

LONGEST = 4000  # characters of a refusal: it may hold values of any length


class ConfigError(Exception):
    """The configuration, or the data that it names, cannot be used; nothing was touched."""

    exit_code = 2

    def __str__(self) -> str:
        return shortened(printable(super().__str__()))


class RunError(Exception):
    """A run failed after its start; the reason is kept in its directory."""

    exit_code = 1


class InvalidValue(ConfigError, ValueError):
    """A value outside the range of an argument or a key.

    Every constructor raises it, with the name of its own argument, for a value outside the range that its ``Args``
    state; ``config/build.py`` puts the group before that name. Callers without a configuration can catch it as a
    ValueError.

    Args:
        key: name of the argument or key, such as ``tau``.
        value: the refused value.
        remedy: the values that are allowed; the words follow "set <key> to".
    """

    def __init__(self, key: str, value: object, remedy: str) -> None:
        super().__init__(key, value, remedy)
        self.key, self.value, self.remedy = key, value, remedy

    def __str__(self) -> str:
        return shortened(printable(f"{self.key}={shown(self.value)}: set {self.key} to {self.remedy}"))

    def within(self, group: str) -> "InvalidValue":
        """The same refusal with ``group.`` before the key."""
        return InvalidValue(f"{group}.{self.key}", self.value, self.remedy)


def require(holds: bool, key: str, value: object, remedy: str) -> None:
    """Raise :class:`InvalidValue` unless ``holds``."""
    if not holds:
        raise InvalidValue(key, value, remedy)


def printable(text: str) -> str:
    """``text`` with escapes for line breaks, characters that control a terminal, and bytes that are no UTF-8."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def command_line(words: list[str]) -> str:
    """Words as a line that a shell reads as these words; one that is not printable becomes ``$'caf\\xe9'``."""
    # Python writes bytes as $'...' does, in single quotes if there is a double quote among them.
    return " ".join(shlex.quote(w) if w.isprintable() else "$" + repr(os.fsencode(w) + b'"')[1:-2] + "'" for w in words)


def shortened(text: str) -> str:
    """``text`` without its middle if it is longer than ``LONGEST``."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def one_line(text: str) -> str:
    """A :func:`printable` text with blanks in place of line breaks."""
    return printable(" ".join(text.split()))


def reason(error: BaseException) -> str:
    """The first line of an exception of another library, or its class if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def in_one_line(error: BaseException) -> str:
    """The text of an exception of another library without its line breaks, at most 200 characters."""
    return " ".join(str(error).split())[:200]


def shown(value: object) -> str:
    """``value`` as it is written on the command line: ``null``, ``true``, ``[1,2]``; of an array its shape."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    if getattr(value, "shape", ()):
        return f"{type(value).__name__} {list(value.shape)}"  # type: ignore[attr-defined]
    return str(value)
