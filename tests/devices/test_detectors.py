"""Each detector finds a planted fault at its line, and is silent where there is none."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ssl_bench.methods.base import Contrastive
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.losses import InfoNCE
from ssl_bench.training.meter import Meter
from tests.composed import load
from tests.devices.fake import FakeTraining, Fault, FaultFound, Watch, fake_gpu

Planted = Callable[[Tensor], Any]


@pytest.fixture
def watch() -> Iterator[Watch]:
    with fake_gpu(), Watch() as made:
        yield made


# Each fault stands on the line of its lambda; x is float32 [4, 4] on the GPU.
FAULTS: dict[str, tuple[str, Planted]] = {
    "item": ("sync", lambda x: x.sum().item()),
    "bool": ("sync", lambda x: 1 if x.sum() > 0 else 0),
    "float": ("sync", lambda x: float(x[0, 0])),
    "tolist": ("sync", lambda x: x[0].tolist()),
    "equal": ("sync", lambda x: torch.equal(x, x.clone())),
    "nonzero": ("sync", lambda x: x.nonzero()),
    "unique": ("sync", lambda x: x.unique()),
    "masked select": ("sync", lambda x: x.masked_select(x > 0)),
    "mask": ("sync", lambda x: x[x > 0]),
    "write to a mask": ("sync", lambda x: x.index_put_((x > 0,), x.new_zeros(16))),
    "cpu": ("sync", lambda x: x.cpu()),
    "copy to the host": ("sync", lambda x: torch.empty(4, 4).copy_(x)),
    "copy from the host": ("sync", lambda x: torch.empty(4, 4).to(x.device)),
    "asynchronous without pinning": ("sync", lambda x: torch.empty(4, 4).to(x.device, non_blocking=True)),
    "pinned but waiting": ("sync", lambda x: torch.empty(4, 4).pin_memory().to(x.device)),
    "constant": ("sync", lambda x: torch.tensor([1.0, 2.0], device=x.device)),
    "list as index": ("sync", lambda x: x[[0, 1]]),
    "index on the host": ("mixed", lambda x: x[torch.empty(2, dtype=torch.int64)]),
    "index_select on the host": ("mixed", lambda x: x.index_select(0, torch.empty(2, dtype=torch.int64))),
    "sum with the host": ("mixed", lambda x: x + torch.empty(4)),
    "half cosines": ("half", lambda x: x.bfloat16() @ x.bfloat16().T),
    "half logsumexp": ("half", lambda x: x.half().logsumexp(1)),
    "half normalize": ("half", lambda x: torch.nn.functional.normalize(x.half(), dim=1)),
    "float64": ("float64", lambda x: x.double()),
    "float64 by a constant": ("float64", lambda x: torch.zeros(4, dtype=torch.float64, device=x.device)),
}

HARMLESS: dict[str, Planted] = {
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "write a number to a mask": lambda x: x.__setitem__(x > 0, 0.0),
    "index on the GPU": lambda x: x[torch.zeros(2, dtype=torch.int64, device=x.device)],
    "slices": lambda x: x[1:, None, 2],
    "number of the host": lambda x: x * torch.tensor(2.0),
    "number in double": lambda x: x / torch.zeros((), dtype=torch.float64, device=x.device),
    "pinned": lambda x: torch.empty(4, 4).pin_memory().to(x.device, non_blocking=True),
    "full": lambda x: torch.full((4,), 2.0, device=x.device),
    "half to float": lambda x: x.half().float().logsumexp(1),
    "on the host": lambda x: torch.empty(4).double()[torch.zeros(1).long()],
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_at_its_line(name: str, watch: Watch) -> None:
    kind, planted = FAULTS[name]
    line = planted.__code__.co_firstlineno
    with watch.phase("loss"):
        try:
            planted(torch.empty(4, 4, device="cuda"))
        except (FaultFound, RuntimeError):
            assert watch.faults
    found = watch.faults[0]
    assert (found.kind, found.place) == (kind, f"tests/devices/test_detectors.py:{line} <lambda>"), watch.faults


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_allowed_is_not_reported(name: str, watch: Watch) -> None:
    with watch.phase("loss"):
        HARMLESS[name](torch.empty(4, 4, device="cuda"))
    assert watch.faults == []


def test_plain_fake_tensors_do_not_find_an_index_on_the_host() -> None:
    """The control: without the detector, this fault passes."""
    with fake_gpu():
        assert torch.empty(4, 4, device="cuda")[torch.empty(2, dtype=torch.int64)].is_cuda


def test_half_precision_is_a_fault_in_the_objective_only(watch: Watch) -> None:
    with watch.phase("forward"), torch.autocast("cuda", torch.bfloat16):
        x = torch.empty(4, 4, device="cuda")
        assert (x @ x).dtype == torch.bfloat16
    assert watch.faults == []


class Waiting(torch.autograd.Function):
    """The identity, whose backward reads a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * grads[0].sum().item()


def test_a_fault_in_a_backward_pass_is_found_at_its_line(watch: Watch) -> None:
    x = torch.empty(4, device="cuda", requires_grad=True)
    Waiting.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    line = Waiting.backward.__code__.co_firstlineno + 2
    assert watch.faults == [
        Fault("sync", "_local_scalar_dense", f"tests/devices/test_detectors.py:{line} backward"),
    ]
    assert x.grad is not None and x.grad.is_cuda


def _meter(meter: Meter, loss: Tensor, tau: Tensor) -> None:
    if not loss.isfinite():
        raise ValueError


def _remember(method: Contrastive, kept: Any) -> None:
    kept.q[kept.q > 0] = kept.q.abs().mean()


def _cosines(loss: InfoNCE, contrast: Contrast, tau: Tensor) -> Tensor:
    assert contrast.raw is not None
    return (contrast.raw.half() @ contrast.raw.half().mT).logsumexp(2) + contrast.pos


def _grayscale(images: Tensor) -> Tensor:
    return images[:, torch.zeros(3, dtype=torch.int64)]


PLACES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "meter": ("sync", "ssl_bench.training.meter.Meter.add", _meter),
    "queue": ("sync", "ssl_bench.methods.base.Contrastive.remember", _remember),
    "loss": ("half", "ssl_bench.objective.losses.infonce.InfoNCE.forward", _cosines),
    "views": ("mixed", "ssl_bench.data.views.to_gray", _grayscale),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_fault_planted_in_a_step_is_the_only_one_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, target, planted = PLACES[name]
    monkeypatch.setattr(target, planted)
    overrides = ["dataset=cifar10", "backbone=conv_n", "batch_size.size=8", "precision=bf16", "evaluate.baselines=[]"]
    with fake_gpu(), Watch() as watch:
        training = FakeTraining(load(overrides), 100, watch)
        watch.faults.clear()
        with contextlib.suppress(FaultFound, ValueError):
            training.step()
    lines = range(planted.__code__.co_firstlineno, planted.__code__.co_firstlineno + 4)
    expected = {f"tests/devices/test_detectors.py:{line} {planted.__name__}" for line in lines}
    assert watch.faults and {fault.kind for fault in watch.faults} == {kind}
    assert {fault.place for fault in watch.faults} <= expected, watch.faults
