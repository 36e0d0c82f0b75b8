"""Load weights into a backbone: all of its tensors in their shapes, or nothing.

A file often has more than the backbone: heads, queues, an optimiser, a second network. Each tensor is named by its path
in the file, such as ``state_dict.module.encoder_q.conv1.weight``. The text before the backbone's name for the tensor is
the prefix; a file has the backbone if it has all tensors of the backbone under one prefix. Layers with numbers in place
of names (``nn.Sequential(*resnet.children())``) are those of the backbone in their order, and a layer may have one of
the names in ``SYNONYMS``.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ssl_bench.errors import ConfigError, printable

log = logging.getLogger("ssl_bench")

FEW = 5
Which = Literal["trained", "momentum"]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
COUNTER = "num_batches_tracked"  # of a BN: many files have none, and nothing reads it
# Words in the prefix of that one of two networks that is not taken: the copy that follows the trained network, or the
# trained one if its method evaluates the copy (DINO: the student).
SECOND = ("encoder_k", "momentum", "target", "student")
MOMENTUM = ("encoder_k", "momentum", "target", "teacher", "_ema")
# Layers that classify, in networks that do not name theirs as timm's do.
CLASSIFIERS = ("fc", "classifier", "head", "heads")
# Names of a layer here, by those that other libraries give it.
SYNONYMS = {"shortcut": "downsample"}  # of SupContrast and pytorch-cifar
# Buffers that networks of timm made from their shapes, and saved before they stopped doing so.
COMPUTED = ("relative_position_index", "attn_mask")
LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601


@dataclass(frozen=True)
class Candidate:
    """Tensors of a file that may be the backbone.

    Attributes:
        prefix: of their names in the file.
        tensors: by their names in the backbone, with others that have the same prefix.
        wrong: what is missing, unknown or of another shape; empty if the backbone is complete.
        changed: how the tensors differ from those in the file.
        computed: names in the file of buffers that the backbone computes itself.
    """

    prefix: str
    tensors: dict[str, Tensor]
    wrong: list[str]
    changed: list[str]
    computed: list[str]

    def which(self) -> Which:
        """Whether the network follows a trained one, by the words of the prefix."""
        return "momentum" if any(word in self.prefix for word in MOMENTUM) else "trained"

    def under(self) -> str:
        """The prefix in words."""
        return f"under {printable(self.prefix.removesuffix('.'))}" if self.prefix else "under no prefix"


def load_weights(backbone: nn.Module, weights: Mapping[str, Tensor], source: str, which: Which | None = None) -> str:
    """Load weights into a backbone; log where they were and what else is there.

    Of two complete networks under different prefixes, the one without a word of ``SECOND`` is taken. A classifier of
    the backbone may be missing and then stays as it is. A first layer for grey images gets the sum of the weights for
    red, green and blue: its output is that of three equal channels. One for coloured images gets weights for grey ones
    times the luma of each colour: its output is that of the grey image.

    Args:
        weights: tensors by name, as from :func:`ssl_bench.networks.weight_files.read_weights`. Half and double
            precision are converted.
        source: named in sentences.
        which: the network that was trained, or the one that follows it with momentum; None: the one that its method
            evaluates.

    Returns:
        What was taken and left out, in a sentence.

    Raises:
        ConfigError: the backbone is complete under no prefix, or under several; or a tensor has values that are no
            finite floating-point numbers; or there is no network of ``which``.
    """
    every, classifiers = backbone.state_dict(), _classifiers(backbone)
    expected = {name: value for name, value in every.items() if not name.startswith(classifiers)}
    complete = _complete(backbone, expected, weights, source)
    wanted = [candidate for candidate in complete if candidate.which() == which]
    if which and not wanted:
        has = f"{source} has this network {_under(complete)} only"
        raise ConfigError(f"init.which={which}: {has}: leave init.which out")
    firsts = [candidate for candidate in complete if not any(word in candidate.prefix for word in SECOND)]
    chosen, *others = wanted or firsts or complete
    taken = {name: chosen.tensors[name] for name in expected if name in chosen.tensors}
    if wrong := [f"{name} {fault}" for name, value in taken.items() if (fault := _fault(name, value, expected[name]))]:
        raise ConfigError(f"init={source}: {_few(wrong)}: set init to a file of finite floating-point weights")
    unlike = [c for c in others if not all(_same(value, c.tensors.get(name)) for name, value in taken.items())]
    if unlike:
        several = [chosen, *unlike]
        choice = ", or init.which to trained or momentum" if len({c.which() for c in several}) > 1 else ""
        remedy = f"set init to a file with one of them{choice}"
        raise ConfigError(f"init={source}: the network is there {_under(several)}: {remedy}")
    classifier = {name: chosen.tensors.get(name) for name in every if name not in expected}
    if all(value is not None and value.shape == every[name].shape for name, value in classifier.items()):
        taken |= cast(dict[str, Tensor], classifier)
    left_out = _few(_left_out(chosen, taken, weights)) or "nothing"
    line = f"{len(taken)} tensors {chosen.under()} are taken; left out: {left_out}"
    line += "".join(f"; {words}" for words in chosen.changed)
    line += "".join(f"; which={c.which()} takes those {c.under()}" for c in complete if c.which() != chosen.which())
    if chosen.prefix or chosen.changed or len(weights) > len(taken):
        log.info("init: %s", line)
    backbone.load_state_dict(every | {name: value for name, value in taken.items() if _is_used(name, value)})
    return line


def _complete(
    backbone: nn.Module, expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str
) -> list[Candidate]:
    """The candidates with all ``expected`` tensors, at least one.

    Raises:
        ConfigError: there are none; it describes the candidate that has most of them.
    """
    candidates = [_candidate(backbone, expected, prefix, weights) for prefix in _prefixes(expected, weights)]
    if all(candidate.wrong for candidate in candidates):
        numbered = _numbered(expected, weights)
        candidates += [_candidate(backbone, expected, prefix, renamed) for prefix, renamed in numbered]
        for synonym, name in SYNONYMS.items():
            if renamed := _renamed(expected, weights, synonym, name):
                of_renamed = (_candidate(backbone, expected, p, renamed) for p in _prefixes(expected, renamed))
                candidates += [replace(c, changed=[*c.changed, f"{synonym} is {name} here"]) for c in of_renamed]
    if complete := [candidate for candidate in candidates if not candidate.wrong]:
        return complete
    nearest = max(candidates, key=lambda c: (len(c.tensors.keys() & expected.keys()), -len(c.wrong)))
    where = f"{nearest.under()}, " if nearest.prefix else ""
    further = [printable(name) for name in nearest.tensors if name not in expected]
    has = f"; it has {_few(further)}" if "is missing" in nearest.wrong[0] and further else ""
    remedy = "set init to weights of this network, or backbone to the network of these weights"
    raise ConfigError(f"init={source}: {where}{_few(nearest.wrong)}{has}: {remedy}")


def _under(candidates: Sequence[Candidate]) -> str:
    """The prefixes of candidates in words."""
    return " and ".join(candidate.under() for candidate in candidates)


def _starts(name: str) -> list[int]:
    """The index at which each part of a name begins; dots divide the parts."""
    return [0, *(dot.end() for dot in re.finditer(r"\.", name))]


def _prefixes(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Each text that the file has before a name of the backbone, once; the empty text if it has no such name."""
    prefixes = {name[:start]: None for name in weights for start in _starts(name) if name[start:] in expected}
    return list(prefixes) or [""]


def _numbered(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Each prefix after which the layers have numbers, and the tensors with the names of the backbone's children.

    The children are those that have tensors, in their order.
    """
    children = list(dict.fromkeys(name.partition(".")[0] for name in expected))
    inner = {name.partition(".")[2] for name in expected} - {""}
    numbers_after: dict[str, set[int]] = {}
    for name in weights:
        for start in _starts(name):
            number, _, rest = name[start:].partition(".")
            if number.isdecimal() and rest in inner:
                numbers_after.setdefault(name[:start], set()).add(int(number))
    for prefix, numbers in numbers_after.items():
        names = {str(number): child for number, child in zip(sorted(numbers), children, strict=False)}
        renamed = {}
        for name, value in weights.items():
            number, dot, rest = name.removeprefix(prefix).partition(".")
            of_it = name.startswith(prefix) and number in names
            renamed[f"{prefix}{names[number]}{dot}{rest}" if of_it else name] = value
        yield prefix, renamed


def _renamed(
    expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], synonym: str, name: str
) -> dict[str, Tensor]:
    """The weights with ``name`` for each part ``synonym`` of their names; none if the backbone has no such parts."""
    parts = {part for full in expected for part in full.split(".")}
    if name not in parts or synonym in parts:
        return {}
    return {".".join(name if p == synonym else p for p in full.split(".")): value for full, value in weights.items()}


def _candidate(
    backbone: nn.Module, expected: Mapping[str, Tensor], prefix: str, weights: Mapping[str, Tensor]
) -> Candidate:
    """The tensors under a prefix.

    A tensor that the backbone does not have is wrong if its name begins with an attribute of the backbone, so that a
    deeper network is refused. Other such tensors belong to heads and the like, as do those of a classifier. A buffer
    that the backbone computes and does not save is wrong if it has other values there.
    """
    classifiers = _classifiers(backbone)
    attributes = {*vars(backbone), *backbone._modules, *backbone._parameters, *backbone._buffers}
    tensors = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    changed = _convert_channels(expected, tensors)
    wrong = [f"{name} is missing" for name in expected if name not in tensors and not name.endswith(COUNTER)]
    buffers = {name: value for name, value in backbone.named_buffers() if name not in backbone.state_dict()}
    computed = [n for n in tensors if n not in expected and (n in buffers or n.rpartition(".")[2] in COMPUTED)]
    for name in computed:
        if name in buffers and _contradicts(tensors[name], buffers[name]):
            wrong.append(f"{printable(name)} has other values than this network computes")
    if computed:
        counts = Counter(name.rpartition(".")[2] for name in computed)
        listed = " and ".join(f"{printable(name)} ({count})" for name, count in counts.items())
        changed.append(f"{listed} are left out: the network computes them")
    for name in tensors:
        if name in computed:
            continue
        if name not in expected and not name.startswith(classifiers) and name.partition(".")[0] in attributes:
            wrong.append(f"{printable(name)} is unknown")
    for name, value in expected.items():
        if name in tensors and tensors[name].shape != value.shape:
            wrong.append(f"{name} has the shape {list(tensors[name].shape)}, not {list(value.shape)}")
    return Candidate(prefix, tensors, wrong, changed, [f"{prefix}{name}" for name in computed])


def _classifiers(backbone: nn.Module) -> tuple[str, ...]:
    """Prefixes of the names of a classifier's tensors."""
    config = getattr(backbone, "pretrained_cfg", None)
    given: Any = CLASSIFIERS if config is None else config.get("classifier") or ()
    return tuple(f"{name}." for name in ([given] if isinstance(given, str) else given))


def _convert_channels(expected: Mapping[str, Tensor], tensors: dict[str, Tensor]) -> list[str]:
    """Convert weights of the first layer from coloured to grey images or back, if needed; say how in a sentence."""
    first = next((name for name, value in expected.items() if value.ndim == 4), "")
    value = tensors.get(first)
    if value is None or value.ndim != 4 or not value.is_floating_point() or value.layout != torch.strided:
        return []
    channels = value.shape[1], expected[first].shape[1]
    if channels == (3, 1):
        tensors[first] = value.sum(1, keepdim=True)
        return [f"{first} for grey images: the sum over its colours"]
    if channels == (1, 3):
        tensors[first] = value * value.new_tensor(LUMA)[:, None, None]
        return [f"{first} for coloured images: times the luma of each colour"]
    return []


def _same(a: Tensor, b: Tensor | None) -> bool:
    """Whether two tensors have the same values and the same type, as if one module has two names in the file."""
    return b is not None and (a.dtype, a.layout, a.device) == (b.dtype, b.layout, b.device) and torch.equal(a, b)


def _contradicts(value: Tensor, computed: Tensor) -> bool:
    """Whether a file has other values for a buffer of a network; one for images of another size has another shape."""
    if value.shape != computed.shape or computed.is_meta:
        return False
    return value.is_meta or value.layout != torch.strided or not torch.equal(value.to(computed.dtype), computed)


def _is_used(name: str, value: Tensor) -> bool:
    """Whether a tensor is loaded: all but a counter of batches that was converted to floating point."""
    return not name.endswith(COUNTER) or not value.is_floating_point()


def _fault(name: str, value: Tensor, expected: Tensor) -> str:
    """Say why ``value`` cannot be loaded into ``expected``; empty if it can."""
    if value.is_meta:
        return "was saved without values, on the device meta"
    if value.layout != torch.strided:
        return "is sparse"
    if not _is_used(name, value):
        return ""
    if value.dtype not in (FLOATS if expected.is_floating_point() else INTEGERS):
        return f"has the type {str(value.dtype).removeprefix('torch.')}"
    return "" if value.to(expected.dtype).isfinite().all() else "has values that are NaN or infinite"


def _left_out(chosen: Candidate, taken: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Prefixes of the file's other tensors, each with their number, the most first."""
    groups: Counter[str] = Counter()
    used, path = {id(value) for value in taken.values()}, chosen.prefix.split(".")
    names = {*(f"{chosen.prefix}{name}" for name in taken), *chosen.computed}
    for parts in (n.split(".") for n, value in weights.items() if n not in names and id(value) not in used):
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(parts, path, strict=False)))
        groups[".".join(parts[: shared + 1])] += 1
    return [f"{printable(prefix)} ({count})" for prefix, count in groups.most_common()]


def _few(sentences: list[str]) -> str:
    more = f" and {len(sentences) - FEW} more" if len(sentences) > FEW else ""
    return ", ".join(sentences[:FEW]) + more


def freeze(backbone: nn.Module) -> None:
    """Keep all weights and running statistics of a backbone as they are."""
    backbone.requires_grad_(False).eval()
    backbone.frozen = True  # type: ignore[assignment]  # read by Encoder, and kept by a copy of the network
