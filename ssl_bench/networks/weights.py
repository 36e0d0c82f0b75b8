"""Load weights into a backbone: all of its tensors in their shapes, or nothing.

A file often has more than the backbone: heads, queues, an optimiser, a second network. Each tensor is named by its path
in the file, such as ``state_dict.module.encoder_q.conv1.weight``. What stands before the backbone's own name is the
prefix; a file has the backbone if all tensors of the backbone are there under one prefix. Where the layers have numbers
(``nn.Sequential(*resnet.children())``), they are those of the backbone in their order.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
# The other one of two networks in a file: the copy that follows the trained network, except where methods evaluate that
# copy (DINO: the teacher).
SECOND = ("encoder_k", "momentum", "target", "student")
MOMENTUM = ("encoder_k", "momentum", "target", "teacher", "_ema")
# Layers that classify, in networks that do not name theirs as timm's do.
CLASSIFIERS = ("fc", "classifier", "head", "heads")
LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601


@dataclass(frozen=True)
class Candidate:
    """Tensors of a file that may be the backbone.

    Attributes:
        prefix: of their names in the file.
        tensors: by their names in the backbone, with others that have the same prefix.
        wrong: what is missing, unknown or of another shape; empty if the backbone is complete.
        changed: how the tensors differ from those in the file.
    """

    prefix: str
    tensors: dict[str, Tensor]
    wrong: list[str]
    changed: list[str]

    def which(self) -> Which:
        """Whether the network follows a trained one, by the words of the prefix."""
        return "momentum" if any(word in self.prefix for word in MOMENTUM) else "trained"

    def under(self) -> str:
        """The prefix in words."""
        return f"under {printable(self.prefix.removesuffix('.'))}" if self.prefix else "under no prefix"


def load_weights(backbone: nn.Module, weights: Mapping[str, Tensor], source: str, which: Which | None = None) -> str:
    """Load weights into a backbone; log where they were and what else is there.

    Of two complete networks under different prefixes, the one that is not ``SECOND`` is taken. A classifier of the
    backbone may be missing, and stays as it is then. A first layer for grey images gets the sum of the weights for red,
    green and blue: its output is that of three equal channels. One for coloured images gets weights for grey ones
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
    own = {name: value for name, value in every.items() if not name.startswith(classifiers)}
    candidates = [_candidate(backbone, own, prefix, weights) for prefix in _prefixes(own, weights)]
    if all(each.wrong for each in candidates):
        candidates += [_candidate(backbone, own, prefix, renamed) for prefix, renamed in _numbered(own, weights)]
    complete = [each for each in candidates if not each.wrong]
    if not complete:
        nearest = max(candidates, key=lambda each: (len(each.tensors.keys() & own.keys()), -len(each.wrong)))
        where = f"{nearest.under()}, " if nearest.prefix else ""
        known = [name for name in nearest.tensors if name not in own]
        has = f"; it has {_few(list(map(printable, known)))}" if "is missing" in nearest.wrong[0] and known else ""
        remedy = "set init to weights of this network, or backbone to the network of these weights"
        raise ConfigError(f"init={source}: {where}{_few(nearest.wrong)}{has}: {remedy}")
    asked = [each for each in complete if each.which() == which]
    if which and not asked:
        places = " and ".join(each.under() for each in complete)
        raise ConfigError(f"init.which={which}: {source} has this network {places} only: leave init.which out")
    firsts = [each for each in complete if not any(word in each.prefix for word in SECOND)]
    chosen, *others = asked or firsts or complete
    taken = {name: chosen.tensors[name] for name in own if name in chosen.tensors}
    if wrong := [f"{name} {fault}" for name, value in taken.items() if (fault := _fault(name, value, own[name]))]:
        raise ConfigError(f"init={source}: {_few(wrong)}: set init to a file of finite floating-point weights")
    if unlike := [each for each in others if not all(_same(value, each.tensors.get(k)) for k, value in taken.items())]:
        several = (chosen, *unlike)
        places, kinds = " and ".join(each.under() for each in several), {each.which() for each in several}
        choice = ", or init.which to trained or momentum" if len(kinds) > 1 else ""
        raise ConfigError(f"init={source}: the network is there {places}: set init to a file with one of them{choice}")
    classifier = {name: chosen.tensors.get(name) for name in every if name not in own}
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


def _starts(name: str) -> list[int]:
    """Where the parts of a name begin, which dots divide."""
    return [0, *(dot.end() for dot in re.finditer(r"\.", name))]


def _prefixes(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """The text before names of the backbone in the file; nothing, if none of them is there."""
    found = {name[:start]: None for name in weights for start in _starts(name) if name[start:] in own}
    return list(found) or [""]


def _numbered(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Each prefix after which the layers have numbers, and the tensors with the names of the backbone's children.

    The children are those that have tensors, in their order.
    """
    children = list(dict.fromkeys(name.partition(".")[0] for name in own))
    inner = {name.partition(".")[2] for name in own} - {""}
    found: dict[str, set[int]] = {}
    for name in weights:
        for start in _starts(name):
            number, _, rest = name[start:].partition(".")
            if number.isdecimal() and rest in inner:
                found.setdefault(name[:start], set()).add(int(number))
    for prefix, numbers in found.items():
        names = {str(number): child for number, child in zip(sorted(numbers), children, strict=False)}
        renamed = {}
        for name, value in weights.items():
            number, dot, rest = name.removeprefix(prefix).partition(".")
            of_it = name.startswith(prefix) and number in names
            renamed[f"{prefix}{names[number]}{dot}{rest}" if of_it else name] = value
        yield prefix, renamed


def _candidate(backbone: nn.Module, own: Mapping[str, Tensor], prefix: str, weights: Mapping[str, Tensor]) -> Candidate:
    """The tensors under a prefix.

    One that the backbone does not have is unknown if its name begins with an attribute of the backbone: so a deeper
    network is refused. Others belong to heads and the like, as do those in the place of timm's classifier.
    """
    classifiers = _classifiers(backbone)
    attributes = {*vars(backbone), *backbone._modules, *backbone._parameters, *backbone._buffers}
    tensors = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    changed = _channels(own, tensors)
    wrong = [f"{name} is missing" for name in own if name not in tensors and not name.endswith(COUNTER)]
    for name in tensors:
        if name not in own and not name.startswith(classifiers) and name.partition(".")[0] in attributes:
            wrong.append(f"{printable(name)} is unknown")
    for name, value in own.items():
        if name in tensors and tensors[name].shape != value.shape:
            wrong.append(f"{name} has the shape {list(tensors[name].shape)}, not {list(value.shape)}")
    return Candidate(prefix, tensors, wrong, changed)


def _classifiers(backbone: nn.Module) -> tuple[str, ...]:
    """Prefixes of the names of a classifier's tensors."""
    config = getattr(backbone, "pretrained_cfg", None)
    given: Any = CLASSIFIERS if config is None else config.get("classifier") or ()
    return tuple(f"{name}." for name in ([given] if isinstance(given, str) else given))


def _channels(own: Mapping[str, Tensor], tensors: dict[str, Tensor]) -> list[str]:
    """Give the first layer weights for grey or coloured images, if those are for the other ones; say how."""
    first = next((name for name, value in own.items() if value.ndim == 4), "")
    value = tensors.get(first)
    if value is None or value.ndim != 4 or not value.is_floating_point() or value.layout != torch.strided:
        return []
    channels = value.shape[1], own[first].shape[1]
    if channels == (3, 1):
        tensors[first] = value.sum(1, keepdim=True)
        return [f"{first} for grey images: the sum over its colours"]
    if channels == (1, 3):
        tensors[first] = value * value.new_tensor(LUMA)[:, None, None]
        return [f"{first} for coloured images: times the luma of each colour"]
    return []


def _same(a: Tensor, b: Tensor | None) -> bool:
    """Whether two tensors have the same values in the same type: a module may have two names."""
    return b is not None and (a.dtype, a.layout, a.device) == (b.dtype, b.layout, b.device) and torch.equal(a, b)


def _is_used(name: str, value: Tensor) -> bool:
    """Whether a tensor is loaded. A counter of batches is not if someone has converted it to half precision."""
    return not name.endswith(COUNTER) or not value.is_floating_point()


def _fault(name: str, value: Tensor, own: Tensor) -> str:
    """Why values cannot be used, or nothing."""
    if value.is_meta:
        return "was saved without values, on the device meta"
    if value.layout != torch.strided:
        return "is sparse"
    if not _is_used(name, value):
        return ""
    if value.dtype not in (FLOATS if own.is_floating_point() else INTEGERS):
        return f"has the type {str(value.dtype).removeprefix('torch.')}"
    return "" if value.to(own.dtype).isfinite().all() else "has values that are NaN or infinite"


def _left_out(chosen: Candidate, taken: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Where the other tensors of the file are, with their number, the most first."""
    groups: Counter[str] = Counter()
    used, path = {id(value) for value in taken.values()}, chosen.prefix.split(".")
    names = {f"{chosen.prefix}{name}" for name in taken}
    for parts in (n.split(".") for n, value in weights.items() if n not in names and id(value) not in used):
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(parts, path, strict=False)))
        groups[".".join(parts[: shared + 1])] += 1
    return [f"{printable(place)} ({count})" for place, count in groups.most_common()]


def _few(sentences: list[str]) -> str:
    more = f" and {len(sentences) - FEW} more" if len(sentences) > FEW else ""
    return ", ".join(sentences[:FEW]) + more


def freeze(backbone: nn.Module) -> None:
    """Keep all weights and running statistics of a backbone as they are."""
    backbone.requires_grad_(False).eval()
    backbone.frozen = True  # type: ignore[assignment]  # read by Encoder, and kept by a copy of the network
