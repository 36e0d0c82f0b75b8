"""Weights from elsewhere: read the tensors of a file by name, without running its code, and load a network from them.

A file often has more than the backbone: heads, queues, an optimiser, a second network. A tensor's name is its path in
the file, such as ``state_dict.module.encoder_q.conv1.weight``; the text before the backbone's name is the prefix. All
tensors of the backbone must be there under one prefix and in their shapes, or nothing is loaded. Layers with numbers in
place of names (``nn.Sequential(*resnet.children())``) are those of the backbone in their order; for networks of timm,
its own filter converts the names of DINOv2, CLIP and others, and positions for another size of images.
"""

import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from logging import getLogger
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.config.from_disk import FILES_OF_FOLDER
from ssl_bench.errors import ConfigError, printable, reason
from ssl_bench.networks import unpickler

log = getLogger("ssl_bench")

Which = Literal["trained", "momentum"]
SHOWN = 5  # names in a sentence
MOST_PREFIXES = 16  # that are compared with the backbone
REPEATED = 100_000  # entries of mappings that a file has in several places
RESAMPLED = "position embeddings resampled"
UINT8 = "uint8"  # images of this type are divided by 255, others are not
COUNTER = "num_batches_tracked"  # of a BN: many files have none, and nothing reads it
CLASSIFIERS = ("fc", "classifier", "head", "heads")  # of networks that do not name theirs as timm's do
# Words in the prefix of a network. MOMENTUM: it follows the trained network. NOT_EVALUATED: its method evaluates the
# other network of the file, which is the trained one, or the one that follows it (DINO evaluates the teacher).
MOMENTUM = ("encoder_k", "momentum", "target", "teacher", "_ema")
NOT_EVALUATED = ("encoder_k", "momentum", "target", "student")
STATE_DICT = "set init to a state dict, as torch.save(model.state_dict(), FILE) writes it"
OTHER_NETWORK = "set init to weights of this network, or backbone to the network of these weights"
# The end of a refusal, by a pattern of a name that is unknown or missing.
REMEDIES = {
    r"\bembeddings\.patch_embeddings\b|\bembedder\.embedder\.": "load transformers' networks by --weights timm:NAME",
    r"\bvisual\.class_embedding$": "for CLIP set backbone=timm backbone.name=vit_base_patch16_clip_224.openai",
    r"\bblocks\.\d+\.\d+\.norm1\.": r"save it without block_chunks: re.sub(r'blocks\.\d+\.', 'blocks.', name)",
    r"^conv1\.weight has the shape \[\d+, \d+, 3, 3\]": "its stem is that for CIFAR: set backbone.stem=cifar",
    r"\bfc_norm\.weight$": "fc_norm needs backbone.args.global_pool=avg",
    r"^fc_norm\.weight is missing$": "its norm lies before the pooling: set backbone.args.fc_norm=false",
}


class _Normalised(TypedDict):
    mean: list[float] | None
    std: list[float] | None


class Images(_Normalised):
    """The images that a network was trained on: their type, and mean and std by which each channel was normalised."""

    image_dtype: str


class _Config(TypedDict):
    dataset: _Normalised


class _Run(TypedDict):
    config: _Config


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a .safetensors file, or of a file of ``torch.save``, by their paths in it.

    No code of the file runs, whatever objects it has beside tensors. The checksums of ``torch.save`` are compared.

    Raises:
        ConfigError: the file cannot be read, or it has no tensors with names.
    """
    try:
        with files.open_regular(path) as file:
            if path.suffix.lower() == ".safetensors":
                from safetensors.torch import load_file

                content, names = dict[str, Any](load_file(path)), list[str]()
            else:
                content, names = unpickler.read(file)
        tensors = _by_path(content) if isinstance(content, Mapping) else {}
    except Exception as error:  # torch, pickle, zipfile and safetensors raise many kinds of errors
        why = getattr(error, "strerror", None) or reason(error)
        raise ConfigError(f"init={path}: no weights can be read ({why}): {STATE_DICT}") from error
    if not tensors:
        why = f"it holds a pickled {printable(names[0])}, whose code is not run" if names else "it holds no tensors"
        raise ConfigError(f"init={path}: no weights can be read ({why}): {STATE_DICT}")
    return tensors


def _by_path(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Each tensor in nested mappings by its path.

    Raises:
        ValueError: a path is too long, or one mapping stands in too many places.
    """
    tensors, walked, repeated = dict[str, Tensor](), set[int](), 0

    def walk(mapping: Mapping[str, Any], prefix: str) -> None:
        nonlocal repeated
        repeated += len(mapping) + 1 if id(mapping) in walked else 0
        walked.add(id(mapping))
        if repeated > REPEATED:
            raise ValueError(f"its mappings repeat more than {REPEATED} entries")
        for key, value in mapping.items():
            if isinstance(value, Mapping | Tensor):
                if len(prefix) + len(key) > unpickler.LONGEST:
                    raise ValueError(f"a name in it has more than {unpickler.LONGEST} characters")
                if isinstance(value, Tensor):
                    tensors[f"{prefix}{key}"] = value
                else:
                    walk(value, f"{prefix}{key}.")

    walk(content, "")
    return tensors


@dataclass(frozen=True)
class _Candidate:
    """Tensors of a file that may be the backbone.

    Attributes:
        prefix: of their names in the file.
        tensors: all tensors with this prefix, by their names without it.
        wrong: which tensors of the backbone are missing, unknown or of another shape; empty if it is complete.
        changed: how the tensors were converted, in sentences.
    """

    prefix: str
    tensors: dict[str, Tensor]
    wrong: list[str]
    changed: list[str]

    def which(self) -> Which:
        """``momentum`` if words of the prefix say that the network follows a trained one."""
        return "momentum" if any(word in self.prefix for word in MOMENTUM) else "trained"

    def under(self) -> str:
        """The prefix in words."""
        return f"under {printable(self.prefix.removesuffix('.'))}" if self.prefix else "under no prefix"


def load_weights(backbone: nn.Module, weights: Mapping[str, Tensor], source: str, which: Which | None = None) -> str:
    """Load weights into a backbone; log their prefix and which tensors of the file are not used.

    If the file has the network under two prefixes, the one without a word of ``NOT_EVALUATED`` is loaded. The weights
    of a classifier may be missing: that of the backbone is then not changed. A first layer for grey images gets the sum
    of the weights for red, green and blue: its output is that for three equal channels.

    Args:
        backbone: the network; on the device meta it is only compared with the weights.
        weights: tensors by name, as from :func:`read_weights`. Half and double precision are converted.
        source: name of the file in sentences.
        which: the network that was trained, or the one that follows it with momentum; None: the one that its method
            evaluates.

    Returns:
        Which tensors are loaded and which are not used, in a sentence.

    Raises:
        ConfigError: no prefix has all tensors of the backbone, or several have them with different values; or a tensor
            has values that are no finite floating-point numbers; or there is no network of ``which``.
    """
    every, classifiers = backbone.state_dict(), _classifiers_of(backbone)
    expected = {name: value for name, value in every.items() if not name.startswith(classifiers)}
    complete = _complete(backbone, expected, weights, source)
    requested = [candidate for candidate in complete if candidate.which() == which]
    if which and not requested:
        has = f"{source} has this network {' and '.join(c.under() for c in complete)} only"
        raise ConfigError(f"init.which={which}: {has}: leave init.which out")
    evaluated = [candidate for candidate in complete if not any(word in candidate.prefix for word in NOT_EVALUATED)]
    chosen, *others = requested or evaluated or complete
    loaded = {name: chosen.tensors[name] for name in expected if name in chosen.tensors}
    if unlike := [c for c in others if not all(_same(value, c.tensors.get(name)) for name, value in loaded.items())]:
        several = [chosen, *unlike]
        choice = ", or init.which to trained or momentum" * (len({c.which() for c in several}) > 1)
        what = f"it has different weights of this network {' and '.join(c.under() for c in several)}"
        raise ConfigError(f"init={source}: {what}: set init to a file with one of them{choice}")
    classifier = {name: value for name, value in every.items() if name not in expected}
    if all(name in chosen.tensors and chosen.tensors[name].shape == value.shape for name, value in classifier.items()):
        loaded |= {name: chosen.tensors[name] for name in classifier}
    if wrong := [f"{name} {fault}" for name, value in loaded.items() if (fault := _fault(name, value, every[name]))]:
        raise ConfigError(f"init={source}: {_few(wrong)}: set init to a file of finite floating-point weights")
    unused = _unused(chosen, loaded, weights) or "nothing"
    line = f"{len(loaded)} tensors {chosen.under()} are loaded; not used: {unused}"
    line += "".join(f"; {words}" for words in chosen.changed)
    line += "".join(f"; which={c.which()} loads those {c.under()}" for c in complete if c.which() != chosen.which())
    if not any(value.is_meta for value in every.values()):
        if chosen.prefix or chosen.changed or len(weights) > len(loaded):
            log.info("init: %s", line)
        backbone.load_state_dict(every | {name: value for name, value in loaded.items() if _is_used(name, value)})
    return line


def footnotes(line: str) -> list[str]:
    """The parts of a line of :func:`load_weights` that must stand beside every result of the network."""
    return [part for part in line.split("; ") if part.startswith(RESAMPLED)]


def _complete(
    backbone: nn.Module, expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str
) -> list[_Candidate]:
    """The candidates that have all ``expected`` tensors.

    Raises:
        ConfigError: there are none; the sentence describes the candidate that has the most of these tensors.
    """
    prefixes = _prefixes(expected, weights)
    under = {p: {name.removeprefix(p): v for name, v in weights.items() if name.startswith(p)} for p in prefixes}
    candidates = [_candidate(backbone, expected, prefix, tensors, []) for prefix, tensors in under.items()]
    if all(candidate.wrong for candidate in candidates):
        for prefix, tensors in under.items():
            candidates.append(_candidate(backbone, expected, prefix, *_converted(backbone, tensors)))
        candidates += (_candidate(backbone, expected, p, named, []) for p, named in _numbered(expected, weights))
    if complete := [candidate for candidate in candidates if not candidate.wrong]:
        return complete
    nearest = max(candidates, key=lambda c: (len(c.tensors.keys() & expected.keys()), -len(c.wrong)))
    where = f"{nearest.under()}, " if nearest.prefix else ""
    names = [*nearest.wrong, *(name for name in weights if name.removeprefix(nearest.prefix) not in expected)]
    remedies = (remedy for pattern, remedy in REMEDIES.items() if any(re.search(pattern, name) for name in names))
    raise ConfigError(f"init={source}: {where}{_few(nearest.wrong)}: {next(remedies, OTHER_NETWORK)}")


def _starts(name: str) -> list[int]:
    """The index at which each part of a name begins; dots divide the parts."""
    return [0, *(dot.end() for dot in re.finditer(r"\.", name))]


def _prefixes(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """The prefixes of names of the backbone, or of CLIP, in the file; the empty text if it has no such names."""
    parts = 1 + max((name.count(".") for name in expected), default=0)
    starts = ((name, start) for name in weights for start in _starts(name)[-parts:])
    counts = Counter(name[:start] for name, start in starts if name[start:] in expected)
    counts.update(name.partition("visual.")[0] for name in weights if name.endswith("visual.class_embedding"))
    return _largest(counts) or [""]


def _largest(counts: Counter[str]) -> list[str]:
    """The prefixes with the most tensors, in their order in the file; few, as all names are compared for each."""
    largest = dict(counts.most_common(MOST_PREFIXES))
    return [prefix for prefix in counts if prefix in largest]


def _numbered(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Each prefix that is followed by numbers of layers, and its tensors with names in place of these numbers.

    The names are those of the backbone's children that have tensors, in their order.
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
        names = dict(zip(map(str, sorted(numbers_after[prefix])), children, strict=False))
        parts = [(n.removeprefix(prefix).partition("."), v) for n, v in weights.items() if n.startswith(prefix)]
        yield prefix, {f"{names.get(number, number)}{dot}{rest}": value for (number, dot, rest), value in parts}


def _converted(backbone: nn.Module, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors as timm's filter for this network converts them, with its name for shortcuts; and how, in sentences.

    Only positions may get another size. Other tensors whose size the filter changes, such as that of patches, are
    returned as they were, and then refused.
    """
    module = sys.modules[type(backbone).__module__]
    notes = ["shortcut is downsample here"] if any("shortcut" in name for name in tensors) else []
    tensors = {re.sub(r"\bshortcut\b", "downsample", name): value for name, value in tensors.items()}
    first_sides = {"cls_token": (1, 1), "pos_embed": (1,)}  # with others, timm's sums could take much memory
    plain = all(tensors[name].shape[: len(sides)] == sides for name, sides in first_sides.items() if name in tensors)
    of_timm = plain and module.__name__.startswith("timm.")
    convert: Any = getattr(module, "checkpoint_filter_fn", None) if of_timm else None
    try:
        with warnings.catch_warnings():  # of torch, of how timm resamples
            warnings.simplefilter("ignore")
            made: dict[str, Tensor] = dict(convert(dict(tensors), backbone)) if convert else tensors
    except Exception:  # timm's filters take for granted what such a file has; without them it is refused by its names
        return tensors, notes
    notes += [] if made.keys() <= tensors.keys() else ["names are converted as timm does"]
    for name in made.keys() & tensors.keys():
        old, new = tensors[name], made[name]
        if old.numel() != new.numel() and "pos" not in name:
            made[name] = old
        elif old.shape != new.shape and old.ndim > 1:
            there, here = old.shape[-2], new.shape[-2]  # positions of patches, a square number, and of a few tokens
            notes += [f"{RESAMPLED} from {there} to {here} as timm does"] * (math.isqrt(there) != math.isqrt(here))
    return made, list(dict.fromkeys(notes))


def _candidate(
    backbone: nn.Module, expected: Mapping[str, Tensor], prefix: str, tensors: dict[str, Tensor], changed: list[str]
) -> _Candidate:
    """The tensors under a prefix, compared with those of the backbone.

    A tensor that the backbone does not have is wrong if its name begins with an attribute of the backbone: a deeper
    network is thus refused. Tensors with other names belong to heads and the like and are not used; nor are those of a
    classifier, and of buffers that the backbone computes and does not save.
    """
    computed, classifiers = {name for name, _ in backbone.named_buffers()}, _classifiers_of(backbone)
    attributes = {*vars(backbone), *backbone._modules, *backbone._parameters, *backbone._buffers}
    first = next((name for name, value in expected.items() if value.ndim == 4), "")
    if first and first in tensors and expected[first].shape[1] == 1 and tensors[first].shape[1:2] == (3,):
        tensors = tensors | {first: tensors[first].sum(1, keepdim=True)}
        changed = [*changed, f"{first} for grey images: the sum over its colours"]
    wrong = [f"{name} is missing" for name in expected if name not in tensors and not name.endswith(COUNTER)]
    for name in tensors:
        allowed = name in expected or name in computed or name.startswith(classifiers)
        if not allowed and name.partition(".")[0] in attributes:
            wrong.append(f"{printable(name)} is unknown")
    for name, value in expected.items():
        if name in tensors and tensors[name].shape != value.shape:
            wrong.append(f"{name} has the shape {list(tensors[name].shape)}, not {list(value.shape)}")
    return _Candidate(prefix, tensors, wrong, changed)


def _classifiers_of(backbone: nn.Module) -> tuple[str, ...]:
    """Prefixes of the names of a classifier's tensors."""
    config = getattr(backbone, "pretrained_cfg", None)
    given: Any = CLASSIFIERS if config is None else config.get("classifier") or ()
    return tuple(f"{name}." for name in ([given] if isinstance(given, str) else given))


def _same(a: Tensor, b: Tensor | None) -> bool:
    """Whether two tensors have the same values and the same type, as those of a module that has two names in a file."""
    return b is not None and a.dtype == b.dtype and torch.equal(a, b)


def _is_used(name: str, value: Tensor) -> bool:
    """Whether a tensor is loaded: all but a counter of batches that was converted to floating point."""
    return not name.endswith(COUNTER) or not value.is_floating_point()


def _fault(name: str, value: Tensor, expected: Tensor) -> str:
    """Why ``value`` cannot be loaded into ``expected``; an empty text if it can."""
    if not _is_used(name, value):
        return ""
    if value.is_complex() or value.is_floating_point() != expected.is_floating_point():
        return f"has the type {str(value.dtype).removeprefix('torch.')}"
    return "" if value.to(expected.dtype).isfinite().all() else "has values that are NaN or infinite"


def _unused(chosen: _Candidate, loaded: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """The prefixes of those tensors of the file that are not loaded, each with their number, the largest first."""
    groups: Counter[str] = Counter()
    used, path = {value.data_ptr() for value in loaded.values()}, chosen.prefix.split(".")
    for name, value in weights.items():
        same_name = name.startswith(chosen.prefix) and name.removeprefix(chosen.prefix) in loaded
        if same_name or value.data_ptr() in used:
            continue
        parts = name.split(".")
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(parts, path, strict=False)))
        groups[".".join(parts[: shared + 1])] += 1
    return _few([f"{printable(prefix)} ({count})" for prefix, count in groups.most_common()])


def _few(sentences: list[str]) -> str:
    """The first five of some sentences, and how many more there are."""
    return ", ".join(sentences[:SHOWN]) + f" and {len(sentences) - SHOWN} more" * (len(sentences) > SHOWN)


def images_of(dataset: Mapping[str, Any]) -> Images:
    """Type and normalisation of the images of a run, from the ``dataset`` of its configuration."""
    return {"image_dtype": dataset.get("dtype", UINT8), "mean": dataset["mean"], "std": dataset["std"]}


def trained_on(weights: Path) -> Images | None:
    """The images of a run, by its directory, or of an export, by its file of weights; None: no file describes them."""
    if weights.is_dir():
        run = files.read_json(weights / "results.json", _Run, named=False, of_a_run=True)
        return images_of(run["config"]["dataset"]) if run else None
    beside = weights.with_name("config.json") if weights.name in FILES_OF_FOLDER else weights.with_suffix(".json")
    return files.read_json(beside, Images, named=False)


def check_images(weights: Path, dataset: Mapping[str, Any]) -> None:
    """Refuse to evaluate weights on images of another type than those that they were trained on.

    Raises:
        ConfigError: the type of the images of ``dataset`` is another one.
    """
    images, here = trained_on(weights), dataset.get("dtype", UINT8)
    if images and (there := images["image_dtype"]) != here:
        wrong = f"these weights were trained on images of {there}, and those of dataset are of {here}"
        raise ConfigError(f"init={weights}: {wrong}: set dataset to images of {there}")
