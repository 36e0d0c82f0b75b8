"""The number formats that a run computes in."""

from dataclasses import dataclass

import torch

from ssl_bench.errors import InvalidValue


@dataclass(frozen=True)
class Precision:
    """Number formats of one run.

    Attributes:
        name: fp32, fp16, bf16 or fp64.
        weights: format of the weights and the views.
        autocast: format of the matrix products and convolutions in the networks; None: that of the weights.
        scaled: whether the loss is scaled up, so that small gradients do not underflow.
    """

    name: str
    weights: torch.dtype
    autocast: torch.dtype | None
    scaled: bool

    @classmethod
    def of(cls, name: str, cuda: bool) -> "Precision":
        """The formats of ``precision=name``; ``auto`` is bf16 on GPUs that have it, fp16 on older ones, else fp32.

        Raises:
            ConfigError: fp16 without a GPU.
        """
        if name == "auto":
            # Volta emulates bf16, so that torch would report it as supported.
            bf16 = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
            name = "bf16" if bf16 else "fp16" if cuda else "fp32"
        if name == "fp16" and not cuda:
            raise InvalidValue("precision", name, "fp32 or bf16: fp16 needs a GPU")
        autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
        return cls(name, torch.float64 if name == "fp64" else torch.float32, autocast, name == "fp16")


def bf16_is_slow() -> bool:
    """Whether torch computes bf16 on this processor in plain loops, many times slower than fp32."""
    return not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def set_matmul_options(tf32: bool) -> None:
    """Allow or forbid TF32 in matrix products and convolutions, and let cuDNN choose the fastest algorithms."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
