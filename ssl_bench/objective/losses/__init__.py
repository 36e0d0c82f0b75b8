"""The losses, one file each: ``loss(contrast, tau) -> [V, B]``, a value per anchor, unreduced.

s is the cosine of an anchor and its positive, s_k those of its K negatives, l = log sum_k exp(s_k / tau) and
u = l - s / tau the log-odds against the positive; sg stops the gradient.

.. include:: README.md
"""

from ssl_bench.objective.losses.align_uniform import AlignUniform
from ssl_bench.objective.losses.barlow_twins import BarlowTwins
from ssl_bench.objective.losses.byol import BYOL
from ssl_bench.objective.losses.dcl import DCL
from ssl_bench.objective.losses.dclw import DCLW
from ssl_bench.objective.losses.debiased import Debiased
from ssl_bench.objective.losses.decoupled_nt_xent import DecoupledNTXent
from ssl_bench.objective.losses.dhel import DHEL
from ssl_bench.objective.losses.dual_temperature import DualTemperature
from ssl_bench.objective.losses.eqco import EqCo
from ssl_bench.objective.losses.flatnce import FlatNCE
from ssl_bench.objective.losses.hcl import HCL
from ssl_bench.objective.losses.infonce import InfoNCE
from ssl_bench.objective.losses.invariant_spread import InvariantSpread
from ssl_bench.objective.losses.kcl import KCL
from ssl_bench.objective.losses.macl import MACL
from ssl_bench.objective.losses.macl_w import MACLW
from ssl_bench.objective.losses.nce import NCE
from ssl_bench.objective.losses.relic import ReLIC
from ssl_bench.objective.losses.siglip import SigLIP
from ssl_bench.objective.losses.sigreg import SIGReg
from ssl_bench.objective.losses.sincere import SINCERE
from ssl_bench.objective.losses.sogclr import ISogCLR, SogCLR
from ssl_bench.objective.losses.spectral import Spectral
from ssl_bench.objective.losses.supcon import SupCon
from ssl_bench.objective.losses.swd import SWD
from ssl_bench.objective.losses.vicreg import VICReg

__all__ = [
    "BYOL",
    "DCL",
    "DCLW",
    "DHEL",
    "HCL",
    "KCL",
    "MACL",
    "MACLW",
    "NCE",
    "SINCERE",
    "SWD",
    "AlignUniform",
    "BarlowTwins",
    "Debiased",
    "DecoupledNTXent",
    "DualTemperature",
    "EqCo",
    "FlatNCE",
    "ISogCLR",
    "InfoNCE",
    "InvariantSpread",
    "ReLIC",
    "SIGReg",
    "SigLIP",
    "SogCLR",
    "Spectral",
    "SupCon",
    "VICReg",
]
_ROWS = "".join(
    f"| `{n}` | {(c := globals()[n]).equation} | {c.gradient} | {c.code} |\n" for n in sorted(__all__, key=str.lower)
)
__doc__ = f"{__doc__}\n| loss | value per anchor | gradient per anchor | public code |\n|---|---|---|---|\n{_ROWS}"
