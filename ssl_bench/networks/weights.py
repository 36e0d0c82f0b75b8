"""Weights of a backbone to start from, read from a file: all of its tensors in their shapes, or nothing is loaded.

A file often has more than the backbone: heads, queues, an optimiser, a second network. Each tensor is named by its path
in the file, such as ``state_dict.module.encoder_q.conv1.weight``. What stands before the backbone's own name is the
prefix; a file has the backbone if all tensors of the backbone are there under one prefix. Where the layers have numbers
(``nn.Sequential(*resnet.children())``), they are those of the backbone in their order.
"""

import logging
import pickle
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.errors import ConfigError, printable, reason

log = logging.getLogger("ssl_bench")

FEW = 3
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
COUNTER = "num_batches_tracked"  # of a BN: many files have none, and nothing reads it
# The other one of two networks in a file: the copy that follows the trained network, except where methods evaluate that
# copy (DINO: the teacher).
SECOND = ("encoder_k", "momentum", "target", "student")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a .safetensors file, or of one of ``torch.save``, by their paths in it.

    No code of the file runs, and the checksums of ``torch.save`` are compared.

    Raises:
        ConfigError: it cannot be read, or it has no tensors with names.
    """
    try:
        with files.open_regular(path) as file:
            if path.suffix.lower() == ".safetensors":
                from safetensors.torch import load_file

                content: Any = load_file(path)
            else:
                archive = file.read(4) == b"PK\x03\x04"  # else the format before torch 1.6, which has no checksums
                file.seek(0)
                if archive:
                    files.compare_checksums(file)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    content = torch.load(file, map_location="cpu", weights_only=True)
        found = dict(_tensors(content)) if isinstance(content, Mapping) else {}
    except Exception as error:  # torch, pickle, zipfile and safetensors raise many kinds of errors
        raise ConfigError(f"init={path}: no weights can be read ({_why(error)}): set init to a state dict") from error
    if not found:
        raise ConfigError(f"init={path}: it holds no state dict: set init to a file of weights by name")
    return found


def _tensors(content: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Each tensor in nested mappings with its path."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{key}.")
        elif isinstance(value, Tensor) and not value.is_nested:
            yield f"{prefix}{key}", value


def _why(error: Exception) -> str:
    """Why a file could not be read. torch's own messages advise to run the file's code."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, pickle.UnpicklingError):
        found = re.search(r"GLOBAL (\S+)", str(error))
        needs = f"needs {found[1]}, and code is not run" if found else "is damaged, or has more than tensors"
        return f"it {needs}; torch.save(model.state_dict(), FILE) writes weights alone"
    return "it is empty or cut short" if isinstance(error, EOFError) else reason(error)


@dataclass(frozen=True)
class Candidate:
    """Tensors of a file that may be the backbone.

    Attributes:
        prefix: of their names in the file.
        tensors: by their names in the backbone, with others that have the same prefix.
        wrong: what is missing, unknown or of another shape; empty if the backbone is complete.
    """

    prefix: str
    tensors: dict[str, Tensor]
    wrong: list[str]

    def under(self) -> str:
        """The prefix in words."""
        return f"under {printable(self.prefix.removesuffix('.'))}" if self.prefix else "under no prefix"


def load_weights(backbone: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load weights into a backbone; log where they were and what else is there.

    Of two complete networks under different prefixes, the one that is not ``SECOND`` is taken.

    Args:
        weights: tensors by name, as from :func:`read_weights`. Half and double precision are converted.
        source: named in sentences.

    Raises:
        ConfigError: the backbone is complete under no prefix, or under several; or a tensor has values that are no
            finite floating-point numbers.
    """
    own = backbone.state_dict()
    candidates = [_candidate(backbone, own, prefix, weights) for prefix in _prefixes(own, weights)]
    if all(each.wrong for each in candidates):
        candidates += [_candidate(backbone, own, prefix, renamed) for prefix, renamed in _numbered(own, weights)]
    complete = [each for each in candidates if not each.wrong]
    if not complete:
        nearest = max(candidates, key=lambda each: len(each.tensors.keys() & own.keys()) - len(each.wrong))
        where = f"{nearest.under()}, " if nearest.prefix else ""
        remedy = "set init to weights of this network, or backbone to the network of these weights"
        raise ConfigError(f"init={source}: {where}{_few(nearest.wrong)}: {remedy}")
    firsts = [each for each in complete if not any(word in each.prefix for word in SECOND)]
    chosen, *others = firsts or complete
    taken = {name: chosen.tensors[name] for name in own if name in chosen.tensors}
    if wrong := [f"{name} {fault}" for name, value in taken.items() if (fault := _fault(name, value, own[name]))]:
        raise ConfigError(f"init={source}: {_few(wrong)}: set init to a file of finite floating-point weights")
    if unlike := [each for each in others if not all(_same(value, each.tensors.get(k)) for k, value in taken.items())]:
        places = " and ".join(each.under() for each in (chosen, *unlike))
        raise ConfigError(f"init={source}: the network is there {places}: set init to a file with one of them")
    if chosen.prefix or len(weights) > len(taken):
        left_out = _few(_left_out(chosen, taken, weights)) or "nothing"
        log.info("init: %d tensors %s are taken; left out: %s", len(taken), chosen.under(), left_out)
    backbone.load_state_dict(own | {name: value for name, value in taken.items() if _is_used(name, value)})


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
    given = getattr(backbone, "pretrained_cfg", {}).get("classifier") or ()
    classifiers = tuple(f"{name}." for name in ([given] if isinstance(given, str) else given))
    attributes = {*vars(backbone), *backbone._modules, *backbone._parameters, *backbone._buffers}
    tensors = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    wrong = [f"{name} is missing" for name in own if name not in tensors and not name.endswith(COUNTER)]
    for name in tensors:
        if name not in own and not name.startswith(classifiers) and name.partition(".")[0] in attributes:
            wrong.append(f"{printable(name)} is unknown")
    for name, value in own.items():
        if name in tensors and tensors[name].shape != value.shape:
            wrong.append(f"{name} has the shape {list(tensors[name].shape)}, not {list(value.shape)}")
    return Candidate(prefix, tensors, wrong)


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
    for parts in (name.split(".") for name, value in weights.items() if id(value) not in used):
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
