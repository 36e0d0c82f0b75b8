"""Detectors of what a step must not do on a GPU, for steps on the GPU that is not there (scripts/fake_gpu.py).

    with fake_gpu(), Watch() as watch:
        FakeTraining(config, images, watch).step()
    assert watch.faults == []

A fault is reported with the line of the package, or of a test, that caused it.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import ssl_bench

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from fake_gpu import FakeTraining, Launches, fake_gpu, is_launch, tensors_of, waits

__all__ = ["FakeTraining", "Fault", "FaultFound", "Watch", "fake_gpu"]

PACKAGE = Path(ssl_bench.__file__).parent
ROOT = PACKAGE.parent
HALF = (torch.float16, torch.bfloat16)
# What is meant, by the function that does it or calls what does it, with the reason.
MEANT: dict[str, dict[str, str]] = {
    "float64": {
        "temperature.py _alignment": "the mean cosine of a batch, from which a temperature follows",
        "resample.py blur_matrix": "the last bit of exp depends on the place in the batch, and must not reach a weight",
        "views.py _central_box": "the ratio of two sides is compared with a bound",
    },
    "half": {"vae.py forward": "the decoder is a network, although it runs between two parts of the objective"},
    "sync": {"loader.py ids": "once an epoch, the order of the images is copied to the device"},
}


@dataclass(frozen=True)
class Fault:
    """An operation that a step must not do."""

    kind: str  # sync, mixed, half or float64
    operation: str
    place: str  # file:line function

    def __str__(self) -> str:
        return f"{self.kind}: {self.operation} at {self.place}"


class FaultFound(AssertionError):
    """The step cannot go on after a fault: the shape of a result is not known without values."""


class Watch(Launches):
    """Counts launches and records faults, except for those that are ``MEANT``.

    sync: the host waits for the GPU, or a copy between them is not asynchronous.
    mixed: an operation has tensors of the GPU and of the CPU; numbers of 0 dimensions are arguments of a kernel.
    half: the objective computes in half precision.
    float64: a result is float64. Numbers of 0 dimensions, such as a
        temperature, are always meant: they leave the type of float32 tensors unchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.excused: set[str] = set()  # of ``MEANT``, what was met

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":  # a question about a tensor, of which there are as many as operations
            return func(*args, **(kwargs or {}))
        options = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        given = [*tensors_of(*args, *options.values())]
        on_gpu = [x for x in given if x.is_cuda]
        copies = name in ("_to_copy", "copy_")
        if on_gpu and waits(func, args):
            self._report("sync", name)
            if name != "_local_scalar_dense":
                raise FaultFound(str(self.faults[-1]))
            return 0.0 if args[0].is_floating_point() else 0
        if copies and self._copies_synchronously(name, args, options):
            self._report("sync", name)
        if on_gpu and not copies and any(x.ndim for x in given if not x.is_cuda):
            self._report("mixed", name)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if is_launch(func):
            for made in tensors_of(result):
                if made.is_cuda and self._phase == "loss" and made.dtype in HALF and not copies:
                    self._report("half", name)
                if made.is_cuda and made.ndim and made.dtype == torch.float64:
                    self._report("float64", name)
        return result

    def _copies_synchronously(self, name: str, args: Any, options: Any) -> bool:
        if name == "copy_":
            to, source, free = args[0].is_cuda, args[1], args[2] if len(args) > 2 else options.get("non_blocking")
        else:
            device = options.get("device")
            to = args[0].is_cuda if device is None else torch.device(device).type == "cuda"
            source, free = args[0], options.get("non_blocking")
        if to == source.is_cuda:
            return False
        return not (to and free and getattr(source, "pinned", False))

    def _report(self, kind: str, operation: str) -> None:
        places = [*_places()]
        if excuses := {f"{file.name} {function}" for file, _, function in places} & MEANT.get(kind, {}).keys():
            self.excused |= excuses
            return
        file, line, function = places[0]
        fault = Fault(kind, operation, f"{file.relative_to(ROOT)}:{line} {function}")
        if fault not in self.faults:
            self.faults.append(fault)


def _places() -> Iterator[tuple[Path, int, str]]:
    """File, line and function of the frames in the package and in tests, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file != Path(__file__) and (file.is_relative_to(PACKAGE) or file.is_relative_to(ROOT / "tests")):
            yield file, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
