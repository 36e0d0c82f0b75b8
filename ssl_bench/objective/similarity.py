"""Similarities of unit vectors f and g: increasing functions of their cosine s, which take its place in s / tau.

arctanh     arctanh(s), so that no temperature bounds the logits (Kim and Kim 2025, who have tau = 1/2)
student     -log(1 + ||f - g||^2) = -log(3 - 2 s): exp(. / tau) is Student's kernel, at tau = 1 that of t-SimCNE
            (Boehm et al. 2023), and of "I-Con" (Alshammari et al. 2025)
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

Name = Literal["cosine", "arctanh", "student"]
EDGE = 1 - 1e-6  # of the cosines, beyond which arctanh is constant: it is 7 there


def _arctanh(s: Tensor) -> Tensor:
    return s.clamp(-EDGE, EDGE).arctanh()


def _student(s: Tensor) -> Tensor:
    return -(2 - 2 * s).log1p()


SIMILARITIES: dict[Name, Callable[[Tensor], Tensor] | None] = {"cosine": None, "arctanh": _arctanh, "student": _student}
