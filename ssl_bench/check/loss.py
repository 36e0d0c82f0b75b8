"""Is a loss right on several ranks, in chunks, in bfloat16, after a resume and at extreme cosines? It needs no formula.

A loss gets three batches of the same 16 images, unit vectors of 6 numbers, in another order each. The last batch is
measured; the others fill a queue, or averages of images. Value and gradient, averaged over the ranks as
DistributedDataParallel does, must be those of one process with the whole batch. The gradient is that by the vectors and
by the weights of the loss.
"""

import contextlib
import importlib
import inspect
import io
import itertools
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.api import equal_batches  # noqa: F401  # PairLoss needs it on ranks, which would each import for seconds
from ssl_bench.api.chunked import chunked
from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.check.answer import Answer, Verdict
from ssl_bench.check.bounds import Deviation, answer_of, distance
from ssl_bench.check.ranks import SECONDS, on_ranks
from ssl_bench.distributed import join_local
from ssl_bench.errors import ConfigError, RunError, reason
from ssl_bench.objective.loss import Loss

IMAGES, WIDTH, STEPS, CLASSES, CHUNK = 16, 6, 3, 3, 4
RANKS = (1, 2, 4)
# Relative errors: in float64, of a loss that computes in float32 whatever it is given, and in bfloat16.
EXACT, SINGLE, BF16 = 1e-12, 1e-5, 0.05
COLDEST = 0.01  # the temperature at extreme cosines, of a loss whose temperature can be set

ON_RANKS = "gather vectors with their gradient, take statistics over all ranks, and return the mean of the rank"

Make = Callable[..., nn.Module]  # makes the loss; cold=True: at COLDEST; tiled=True: PairLoss computes in tiles


class Batch(NamedTuple):
    """Unit vectors [2, B, D] of two views, with image and class [B]."""

    z: Tensor
    ids: Tensor
    labels: Tensor


class Measured(NamedTuple):
    """Value [] and gradient: by the vectors of all ranks and by the weights of the loss, [2 N D + n]."""

    value: Tensor
    gradient: Tensor


def maker(target: str, keys: Mapping[str, Any]) -> Make:
    """Return the function that makes a loss, once it has made one.

    Args:
        target: a name of conf/loss, or ``FILE.py:NAME`` or ``MODULE:NAME`` of a class or of a function of two views.
        keys: arguments of the class or function, of a name or a subclass of Loss also the ``temperature``.

    Raises:
        ConfigError: it cannot be imported or made, or cannot be called with two views.
    """
    user: Any = None

    def make(cold: bool = False, tiled: bool = False) -> Any:
        paired = user is None or (inspect.isclass(user) and issubclass(user, Loss))  # computed by PairLoss
        names = ["temperature"] if paired else inspect.signature(user).parameters
        given: dict[str, Any] = {key: COLDEST for key in ("temperature", "tau") if cold and key in names} | dict(keys)
        if paired:
            given = {"temperature": 0.1, "cosines": "tiled" if tiled else "auto"} | given
            of_pair = {key: given.pop(key) for key in ("temperature", "cosines")}
            return PairLoss(user(**given), **of_pair) if user else PairLoss(target, **of_pair, **given)
        loss = user(**given) if inspect.isclass(user) else partial(user, **given)
        module: Any = loss if isinstance(loss, nn.Module) else nn.Module()
        if module is not loss:
            module.forward = loss
        return module

    try:
        user = _imported(target) if ":" in target else None
        inspect.signature(make().forward).bind(None, None)
    except ConfigError:
        raise
    except Exception as error:  # whatever the code of the user raises
        why = f"{type(error).__name__}: {reason(error)}"
        remedy = "name FILE.py:CLASS, whose input are two views, and its arguments as key=value"
        raise ConfigError(f"--loss {target}: {why}: {remedy}") from error
    return make


def _imported(target: str) -> Any:
    place, _, name = target.rpartition(":")
    return (runpy.run_path(place) if place.endswith(".py") else vars(importlib.import_module(place)))[name]


# ---- what is measured


def batches(dtype: torch.dtype = torch.float64) -> list[Batch]:
    """The batches of all ranks, the same everywhere."""
    generator = torch.Generator().manual_seed(0)
    centres, *noise = torch.randn(STEPS + 1, 2, IMAGES, WIDTH, generator=generator, dtype=torch.float64)
    orders = [torch.randperm(IMAGES, generator=generator) for _ in noise]
    views = [normalize(centres[0, order] + 0.7 * x, dim=-1).to(dtype) for order, x in zip(orders, noise, strict=True)]
    return [Batch(z, ids, ids % CLASSES) for z, ids in zip(views, orders, strict=True)]


def measure(
    make: Make, data: Sequence[Batch], part: slice = slice(None), resumed: bool = False, in_chunks: bool = False
) -> Measured:
    """Measure the last of some batches, within autocast if their vectors are in bfloat16.

    Args:
        part: the images of this rank.
        resumed: before each batch a new loss loads the ``state_dict``.
        in_chunks: compute by :func:`ssl_bench.chunked`, and the cosines of a PairLoss in tiles.
    """
    loss: Any = None
    half = data[0].z.dtype == torch.bfloat16
    for number, (z, ids, labels) in enumerate(data):
        if loss is None or resumed:
            former, loss = loss, make(tiled=in_chunks).to(torch.float32 if half else z.dtype)
            loss.load_state_dict(former.state_dict() if former else loss.state_dict())
        loss.zero_grad()
        table = nn.Embedding.from_pretrained(z.flatten(0, 1), freeze=False)  # a network whose weights are the vectors
        rows = torch.arange(2 * len(ids)).view(2, -1)[:, part]
        of_views = partial(_value, loss, ids[part], labels[part])
        torch.manual_seed(number)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            value = chunked(table, of_views, [*rows], CHUNK) if in_chunks else of_views(*map(table, rows))
        if not in_chunks:
            value.backward()
    weights = [table.weight, *loss.parameters()]
    gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    return Measured(value.detach(), torch.cat([gradient.flatten().double() for gradient in gradients]))


def _value(loss: Any, ids: Tensor, labels: Tensor, z1: Tensor, z2: Tensor) -> Tensor:
    """The loss of two views, which gets the numbers of the images and their classes if it takes them."""
    names = set(inspect.signature(loss.forward).parameters)
    if isinstance(loss, PairLoss) and "labels" not in loss.loss.needs:
        names.remove("labels")
    value = loss(z1, z2, **{key: given for key, given in {"ids": ids, "labels": labels}.items() if key in names})
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise TypeError("return one number with its gradient, the mean over the anchors of this rank")
    return value.reshape(())


def deviations(measured: Measured, right: Measured, bound: float | None = None) -> list[Deviation]:
    """The errors of value and gradient; ``bound``: the largest relative error, None: that of rounding."""
    bound = bound or (EXACT if right.value.dtype == torch.float64 else SINGLE)
    value = distance("the value", measured.value, right.value, bound, least=1.0)
    return [value, distance("the gradient", measured.gradient, right.gradient, bound)]


def finite(name: str, measured: Measured, zero: bool = False) -> Deviation:
    """An infinite deviation if a number is not finite; ``zero``: or if the gradient is 0."""
    right = all(x.isfinite().all() for x in measured) and (measured.gradient.any() or not zero)
    return Deviation(name, 0.0 if right else torch.inf, 0.0)


def extremes(make: Make) -> Iterator[Deviation]:
    """Whether value and gradient are finite in float32 where all cosines are 1 or -1, but for rounding."""
    unit, ids = batches(torch.bfloat16)[0].z[0, 0].float(), torch.arange(IMAGES)
    for positive, negative in itertools.product((1, -1), repeat=2):
        signs = torch.tensor([[1, negative], [positive, positive * negative]]).repeat(1, IMAGES // 2)
        measured = measure(partial(make, cold=True), [Batch(signs[..., None] * unit, ids, ids % CLASSES)])
        yield finite(f"value or gradient at cosines of {positive} and {negative}", measured)


# ---- the answers


def answers(target: str, keys: Mapping[str, Any]) -> Iterator[Answer]:
    """Hold a loss to each property: on one rank, then on several. A loss that raises on some is not tried on more.

    Raises:
        ConfigError: as :func:`maker`.
    """
    maker(target, keys)
    for ranks in RANKS:
        try:
            with TemporaryDirectory(prefix="ssl-bench-") as folder:
                parts = on_ranks(partial(_work, target, keys, ranks, Path(folder)), ranks, Path(folder))
        except RunError as error:  # whatever the loss raises
            yield Answer(f"ranks {ranks}", "failed", Verdict.WRONG, str(error))
            return
        mean = Measured(*(torch.stack(numbers).mean(0) for numbers in zip(*(part for part, _ in parts), strict=True)))
        if ranks == 1:
            whole = mean
        results = [finite("value or gradient", mean, zero=True), *deviations(mean, whole)]
        yield answer_of(f"ranks {ranks}", results, "results", ON_RANKS)
        yield from parts[0][1]


def _work(target: str, keys: Mapping[str, Any], ranks: int, folder: Path, rank: int) -> tuple[Measured, list[Answer]]:
    join_local(folder / "meeting", rank, ranks, torch.device("cpu"), SECONDS)
    make, share = maker(target, keys), IMAGES // ranks
    with contextlib.redirect_stdout(io.StringIO()):
        measured = measure(make, batches(), slice(rank * share, (rank + 1) * share))
        return measured, list(_others(make, measured)) if ranks == 1 else []


def _others(make: Make, whole: Measured) -> Iterator[Answer]:
    """The properties of one rank."""
    half = batches(torch.bfloat16)
    single = [batch._replace(z=batch.z.float()) for batch in half]
    properties: dict[str, tuple[Callable[[], Iterable[Deviation]], str]] = {
        "chunks": (lambda: deviations(measure(make, batches(), in_chunks=True), whole), "use the two views alone"),
        "bf16": (lambda: deviations(measure(make, half), measure(make, single), BF16), "compute logits in float32"),
        "resume": (lambda: deviations(measure(make, batches(), resumed=True), whole), "make what it keeps buffers"),
        "extremes": (lambda: extremes(make), "use logsumexp and softplus in place of exp and log"),
    }
    for name, (deviate, advice) in properties.items():
        try:
            yield answer_of(name, [*deviate()], "results", advice)
        except Exception as error:  # whatever the loss raises
            yield Answer(name, "failed", Verdict.WRONG, f"{type(error).__name__}: {reason(error)}", advice)
