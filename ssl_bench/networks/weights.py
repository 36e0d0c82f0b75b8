"""Load weights into a backbone: all of its tensors in their shapes, or nothing.

A file often has more than the backbone: heads, queues, an optimiser, a second network. Where the backbone is:
:mod:`ssl_bench.networks.candidates`.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import cast

import torch
from torch import Tensor, nn

from ssl_bench.errors import ConfigError, printable
from ssl_bench.networks.candidates import COUNTER, RESAMPLED, Candidate, Which, classifiers_of, complete_candidates, few
from ssl_bench.networks.names import OF_TRANSFORMERS, Described, differences

log = logging.getLogger("ssl_bench")

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
# Words in the prefix of that one of two networks that is not taken: the copy that follows the trained network, or the
# trained one if its method evaluates the copy (DINO: the student).
SECOND = ("encoder_k", "momentum", "target", "student")


def load_weights(
    backbone: nn.Module,
    weights: Mapping[str, Tensor],
    source: str,
    which: Which | None = None,
    of_file: Described | None = None,
) -> str:
    """Load weights into a backbone; log where they were and what else is there.

    Of two complete networks under different prefixes, the one without a word of ``SECOND`` is taken. A classifier of
    the backbone may be missing and then stays as it is. A first layer for grey images gets the sum of the weights for
    red, green and blue: its output is that of three equal channels. One for coloured images gets weights for grey ones
    times the luma of each colour: its output is that of the grey image. A ViT for images of another size gets the
    position embeddings resampled.

    Args:
        weights: tensors by name, as from :func:`ssl_bench.networks.weight_files.read_weights`. Half and double
            precision are converted.
        source: named in sentences.
        which: the network that was trained, or the one that follows it with momentum; None: the one that its method
            evaluates.
        of_file: what transformers says of the network, if the file is one of its own.

    Returns:
        What was taken and left out, in a sentence.

    Raises:
        ConfigError: the backbone is complete under no prefix, or under several; or a tensor has values that are no
            finite floating-point numbers; or there is no network of ``which``; or ``of_file`` says another network.
    """
    every, classifiers = backbone.state_dict(), classifiers_of(backbone)
    expected = {name: value for name, value in every.items() if not name.startswith(classifiers)}
    complete = complete_candidates(backbone, expected, weights, source)
    wanted = [candidate for candidate in complete if candidate.which() == which]
    if which and not wanted:
        has = f"{source} has this network {_under(complete)} only"
        raise ConfigError(f"init.which={which}: {has}: leave init.which out")
    firsts = [candidate for candidate in complete if not any(word in candidate.prefix for word in SECOND)]
    chosen, *others = wanted or firsts or complete
    taken = {name: chosen.tensors[name] for name in expected if name in chosen.tensors}
    if wrong := [f"{name} {fault}" for name, value in taken.items() if (fault := _fault(name, value, expected[name]))]:
        raise ConfigError(f"init={source}: {few(wrong)}: set init to a file of finite floating-point weights")
    unlike = [c for c in others if not all(_same(value, c.tensors.get(name)) for name, value in taken.items())]
    if unlike:
        several = [chosen, *unlike]
        choice = ", or init.which to trained or momentum" if len({c.which() for c in several}) > 1 else ""
        remedy = f"set init to a file with one of them{choice}"
        raise ConfigError(f"init={source}: the network is there {_under(several)}: {remedy}")
    if OF_TRANSFORMERS in chosen.changed and (unlike_file := differences(backbone, of_file or {})):
        raise ConfigError(f"init={source}: {few(unlike_file)}: set backbone to the network of these weights")
    classifier = {name: chosen.tensors.get(name) for name in every if name not in expected}
    if all(v is not None and v.shape == every[n].shape and not _fault(n, v, every[n]) for n, v in classifier.items()):
        taken |= cast(dict[str, Tensor], classifier)
    left_out = few(_left_out(chosen, taken, weights)) or "nothing"
    line = f"{len(taken)} tensors {chosen.under()} are taken; left out: {left_out}"
    line += "".join(f"; {words}" for words in chosen.changed)
    if OF_TRANSFORMERS in chosen.changed and of_file is None:
        line += "; no config.json beside the file says its heads, activation and layer_norm_eps"
    line += "".join(f"; which={c.which()} takes those {c.under()}" for c in complete if c.which() != chosen.which())
    if chosen.prefix or chosen.changed or len(weights) > len(taken):
        log.info("init: %s", line)
    backbone.load_state_dict(every | {name: value for name, value in taken.items() if _is_used(name, value)})
    return line


def footnotes(line: str) -> list[str]:
    """Those parts of a line of :func:`load_weights` without which a number of the network would mislead."""
    return [part for part in line.split("; ") if part.startswith(RESAMPLED)]


def _under(candidates: Sequence[Candidate]) -> str:
    """The prefixes of candidates in words."""
    return " and ".join(candidate.under() for candidate in candidates)


def _same(a: Tensor, b: Tensor | None) -> bool:
    """Whether two tensors have the same values and the same type, as if one module has two names in the file."""
    return b is not None and (a.dtype, a.layout, a.device) == (b.dtype, b.layout, b.device) and torch.equal(a, b)


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
    names = {*(f"{chosen.prefix}{name}" for name in taken), *chosen.read}
    for parts in (n.split(".") for n, value in weights.items() if n not in names and id(value) not in used):
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(parts, path, strict=False)))
        groups[".".join(parts[: shared + 1])] += 1
    return [f"{printable(prefix)} ({count})" for prefix, count in groups.most_common()]


def freeze(backbone: nn.Module) -> None:
    """Keep all weights and running statistics of a backbone as they are."""
    backbone.requires_grad_(False).eval()
    backbone.frozen = True  # type: ignore[assignment]  # read by Encoder, and kept by a copy of the network
