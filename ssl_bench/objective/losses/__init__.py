"""The losses, one file each: ``loss(contrast, tau) -> [V, B]``, a value per anchor, unreduced.

s is the cosine of an anchor and its positive, s_k those of its K negatives, l = log sum_k exp(s_k / tau) and
u = l - s / tau the log-odds against the positive; sg stops the gradient.
"""

from ssl_bench.objective.losses.align_uniform import AlignUniform
from ssl_bench.objective.losses.byol import BYOL
from ssl_bench.objective.losses.dcl import DCL
from ssl_bench.objective.losses.dclw import DCLW
from ssl_bench.objective.losses.decoupled_nt_xent import DecoupledNTXent
from ssl_bench.objective.losses.dual_temperature import DualTemperature
from ssl_bench.objective.losses.eqco import EqCo
from ssl_bench.objective.losses.flatnce import FlatNCE
from ssl_bench.objective.losses.infonce import InfoNCE
from ssl_bench.objective.losses.macl import MACL
from ssl_bench.objective.losses.macl_w import MACLW
from ssl_bench.objective.losses.relic import ReLIC
from ssl_bench.objective.losses.swd import SWD

__all__ = [
    "BYOL",
    "DCL",
    "DCLW",
    "MACL",
    "MACLW",
    "SWD",
    "AlignUniform",
    "DecoupledNTXent",
    "DualTemperature",
    "EqCo",
    "FlatNCE",
    "InfoNCE",
    "ReLIC",
]
