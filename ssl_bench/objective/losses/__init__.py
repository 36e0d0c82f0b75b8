"""The losses, one file each: ``loss(contrast, tau) -> [V, B]``, a value per anchor, unreduced."""

from ssl_bench.objective.losses.infonce import InfoNCE

__all__ = ["InfoNCE"]
