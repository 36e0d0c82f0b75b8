"""FlatNCE: the exponential of the log-odds over its own value.

    L = exp(u - sg u)

The value is always 1 and the gradient is that of DCL. FlatNCE (Chen et al. 2021), whose code subtracts the 1.
"""

from torch import Tensor

from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss


class FlatNCE(Loss):
    """The value 1 with the gradient of DCL."""

    equation = "exp(u - sg(u)) = 1"
    gradient = "grad u"
    code = "Junya-Chen/FlatCLR"
    needs = frozenset({"negatives"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        u = contrast.log_odds(tau)
        return (u - u.detach()).exp()  # [V, B]
