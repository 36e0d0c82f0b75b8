"""Where a file of weights has a backbone.

Each tensor is named by its path in the file, such as ``state_dict.module.encoder_q.conv1.weight``. The text before the
backbone's name for the tensor is the prefix; a file has the backbone if it has all tensors of the backbone under one
prefix. Layers with numbers in place of names (``nn.Sequential(*resnet.children())``) are those of the backbone in their
order, and tensors may have the names of another library (:mod:`ssl_bench.networks.names`).
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ssl_bench.errors import ConfigError, printable
from ssl_bench.networks.names import NAMES, renamed

FEW = 5
MOST = 16  # prefixes that are looked at
Which = Literal["trained", "momentum"]
COUNTER = "num_batches_tracked"  # of a BN: many files have none, and nothing reads it
# Words in the prefix of the network that follows the trained one.
MOMENTUM = ("encoder_k", "momentum", "target", "teacher", "_ema")
# Layers that classify, in networks that do not name theirs as timm's do.
CLASSIFIERS = ("fc", "classifier", "head", "heads")
# Buffers that networks of timm made from their shapes, and saved before they stopped doing so.
COMPUTED = ("relative_position_index", "attn_mask")
LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601
FUSED = ("query", "key", "value")  # which timm has in one tensor, qkv
RESAMPLED = "position embeddings resampled"


@dataclass(frozen=True)
class Candidate:
    """Tensors of a file that may be the backbone.

    Attributes:
        prefix: of their names in the file.
        tensors: by their names in the backbone, with others that have the same prefix.
        wrong: what is missing, unknown or of another shape; empty if the backbone is complete.
        changed: how the tensors differ from those in the file.
        read: names in the file of the backbone's tensors, or of their parts, and of buffers that it computes itself.
    """

    prefix: str
    tensors: dict[str, Tensor]
    wrong: list[str]
    changed: list[str]
    read: list[str]

    def which(self) -> Which:
        """Whether the network follows a trained one, by the words of the prefix."""
        return "momentum" if any(word in self.prefix for word in MOMENTUM) else "trained"

    def under(self) -> str:
        """The prefix in words."""
        return f"under {printable(self.prefix.removesuffix('.'))}" if self.prefix else "under no prefix"


def complete_candidates(
    backbone: nn.Module, expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str
) -> list[Candidate]:
    """The candidates with all ``expected`` tensors, at least one.

    Raises:
        ConfigError: there are none; it describes the candidate that has most of them.
    """
    candidates = [_candidate(backbone, expected, prefix, weights) for prefix in _prefixes(expected, weights)]
    if all(candidate.wrong for candidate in candidates):
        numbered = _numbered(expected, weights)
        candidates += [_candidate(backbone, expected, prefix, named) for prefix, named in numbered]
        for sentence, changes in NAMES.items():
            names = {renamed(name, changes): name for name in weights}
            if names.keys() != weights.keys():
                named = {name: weights[in_file] for name, in_file in names.items()}
                of_library = (_candidate(backbone, expected, p, named) for p in _prefixes(expected, named))
                candidates += [
                    replace(c, changed=[*c.changed, sentence], read=[names[name] for name in c.read])
                    for c in of_library
                ]
    if complete := [candidate for candidate in candidates if not candidate.wrong]:
        return complete
    nearest = max(candidates, key=lambda c: (len(c.tensors.keys() & expected.keys()), -len(c.wrong)))
    where = f"{nearest.under()}, " if nearest.prefix else ""
    further = [printable(name) for name in nearest.tensors if name not in expected]
    has = f"; it has {few(further)}" if "is missing" in nearest.wrong[0] and further else ""
    remedy = "set init to weights of this network, or backbone to the network of these weights"
    raise ConfigError(f"init={source}: {where}{few(nearest.wrong)}{has}: {remedy}")


def _starts(name: str) -> list[int]:
    """The index at which each part of a name begins; dots divide the parts."""
    return [0, *(dot.end() for dot in re.finditer(r"\.", name))]


def _prefixes(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """The texts that the file has before names of the backbone; the empty text if it has no such name."""
    parts = 1 + max((name.count(".") for name in expected), default=0)
    starts = ((name, start) for name in weights for start in _starts(name)[-parts:])
    return _largest(Counter(name[:start] for name, start in starts if name[start:] in expected)) or [""]


def _largest(counts: Counter[str]) -> list[str]:
    """The prefixes with most tensors, in their order in the file: all names are looked at for each of them."""
    largest = dict(counts.most_common(MOST))
    return [prefix for prefix in counts if prefix in largest]


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
    for prefix in _largest(Counter({prefix: len(numbers) for prefix, numbers in numbers_after.items()})):
        numbers = sorted(numbers_after[prefix])
        names = {str(number): child for number, child in zip(numbers, children, strict=False)}
        renamed = {}
        for name, value in weights.items():
            number, dot, rest = name.removeprefix(prefix).partition(".")
            of_it = name.startswith(prefix) and number in names
            renamed[f"{prefix}{names[number]}{dot}{rest}" if of_it else name] = value
        yield prefix, renamed


def _candidate(
    backbone: nn.Module, expected: Mapping[str, Tensor], prefix: str, weights: Mapping[str, Tensor]
) -> Candidate:
    """The tensors under a prefix.

    A tensor that the backbone does not have is wrong if its name begins with an attribute of the backbone, so that a
    deeper network is refused. Other such tensors belong to heads and the like, as do those of a classifier. A buffer
    that the backbone computes and does not save is wrong if it has other values there.
    """
    classifiers = classifiers_of(backbone)
    attributes = {*vars(backbone), *backbone._modules, *backbone._parameters, *backbone._buffers}
    tensors = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    read = [f"{prefix}{name}" for name in expected if name in tensors] + _fuse(expected, tensors, prefix)
    changed = _convert_channels(expected, tensors) + _convert_positions(backbone, expected, tensors)
    wrong = [f"{name} is missing" for name in expected if name not in tensors and not name.endswith(COUNTER)]
    saved = backbone.state_dict()
    buffers = {name: value for name, value in backbone.named_buffers() if name not in saved}
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
            has, squares = tensors[name].shape, " (only squares of patches are resampled)"
            other_grid = name == "pos_embed" and has[-1:] == value.shape[-1:]
            wrong.append(f"{name} has the shape {list(has)}, not {list(value.shape)}{squares if other_grid else ''}")
    return Candidate(prefix, tensors, wrong, changed, read + [f"{prefix}{name}" for name in computed])


def classifiers_of(backbone: nn.Module) -> tuple[str, ...]:
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
    given, wanted = [*value.shape], [*expected[first].shape]
    channels = given.pop(1), wanted.pop(1)
    if given != wanted:
        return []
    if channels == (3, 1):
        tensors[first] = value.sum(1, keepdim=True)
        return [f"{first} for grey images: the sum over its colours"]
    if channels == (1, 3):
        tensors[first] = value * value.new_tensor(LUMA)[:, None, None]
        return [f"{first} for coloured images: times the luma of each colour"]
    return []


def _fuse(expected: Mapping[str, Tensor], tensors: dict[str, Tensor], prefix: str) -> list[str]:
    """Put queries, keys and values into one tensor where the backbone has that; return their names with ``prefix``.

    Those of another shape become one without values, which is refused for its shape.
    """
    fused = list[str]()
    for name in [name for name in expected if ".qkv." in name and name not in tensors]:
        parts = [name.replace(".qkv.", f".{part}.") for part in FUSED]
        values = [tensors[part] for part in parts if part in tensors and _is_plain(tensors[part])]
        shapes = {value.shape for value in values}
        if len(values) == len(FUSED) and len(shapes) == 1 and values[0].ndim and values[0].numel():
            rows, *others = values[0].shape
            fits = expected[name].shape == (3 * rows, *others)
            tensors[name] = torch.cat(values) if fits else torch.empty(3 * rows, *others, device="meta")
            for part in parts:
                del tensors[part]
            fused += (f"{prefix}{part}" for part in parts)
    return fused


def _convert_positions(backbone: Any, expected: Mapping[str, Tensor], tensors: dict[str, Tensor]) -> list[str]:
    """Resample a ViT's position embeddings of another square of patches as timm does; say from what in a sentence.

    The file may have a position for the class token where the backbone has none: it is added to the token.
    """
    grid, here, there = _grid(backbone), expected.get("pos_embed"), tensors.get("pos_embed")
    if not grid or here is None or there is None or there.shape == here.shape or not _is_plain(there):
        return []
    if not here.ndim == there.ndim == 3 or (there.shape[0], there.shape[2]) != (here.shape[0], here.shape[2]):
        return []
    others, token = here.shape[1] - grid**2, tensors.get("cls_token")
    more = others == 0 and _side(there.shape[1] - 1) > 0
    if more and token is not None and token.shape == (1, 1, here.shape[2]) and _is_plain(token):
        tensors["cls_token"], there = token + there[:, :1], there[:, 1:]
    side = _side(there.shape[1] - others)
    if not side or others < 0:
        return []
    from timm.layers import resample_abs_pos_embed  # heavy: only where it is used

    tensors["pos_embed"] = resample_abs_pos_embed(there, [grid, grid], [side, side], others)
    return [f"{RESAMPLED} from {side}x{side} to {grid}x{grid} patches as timm does"] if side != grid else []


def _grid(backbone: Any) -> int:
    """The side of a ViT's square of patches; 0 of other networks."""
    grid = getattr(getattr(backbone, "patch_embed", None), "grid_size", None)
    return int(grid[0]) if isinstance(grid, tuple) and len(grid) == 2 and grid[0] == grid[1] else 0


def _side(count: int) -> int:
    """The side of a square of so many patches; 0 if they make none."""
    side = math.isqrt(max(count, 0))
    return side if side**2 == count else 0


def _is_plain(value: Tensor) -> bool:
    """Whether a tensor has floating-point values, each in a place of its own: it takes no more memory than its file."""
    return value.is_floating_point() and value.layout == torch.strided and not value.is_meta and value.is_contiguous()


def _contradicts(value: Tensor, computed: Tensor) -> bool:
    """Whether a file has other values for a buffer of a network; one for images of another size has another shape."""
    if value.shape != computed.shape or computed.is_meta:
        return False
    return value.is_meta or value.layout != torch.strided or not torch.equal(value.to(computed.dtype), computed)


def few(sentences: list[str]) -> str:
    """The first of some sentences, and how many more there are."""
    more = f" and {len(sentences) - FEW} more" if len(sentences) > FEW else ""
    return ", ".join(sentences[:FEW]) + more
