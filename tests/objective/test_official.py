"""Losses and networks against the formulas of the papers' official codes, or of the public code nearest to them.

Each formula is written from the code that its docstring names (repository, file, revision), in double precision, with
the code's own reduction. Where that differs from ours, the row of ``CODES`` has the factor between the two.
MACL-w has no public code; test_losses.py compares it with the paper's equation.
"""

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, relu

from ssl_bench.data.batch import Batch
from ssl_bench.methods.base import Outputs
from ssl_bench.methods.contrastive import Contrastive
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.heads import MLP
from ssl_bench.objective import losses
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import CrossView, InBatch, Negatives, NoNegatives, OwnView, Queue, RandomK
from ssl_bench.objective.positives import NearestKey, OtherView, Positives, SameLabel
from ssl_bench.objective.sampling import without_replacement
from ssl_bench.objective.temperature import Fixed, MACLa, MACLb, Temperature

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from build_docs import every_loss

N, D, TAU, RANKS = 6, 5, 0.2, 3  # images, width, temperature, devices of the codes that ran on several
QUEUE = 7
K, ALPHA = 2, 40.0  # of EqCo
Formula = Callable[[Tensor], Tensor]  # of the projections z [2, N, D] before normalisation


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


KEYS = draw(2, N, D, seed=1)  # of a momentum network


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def first_is_right(*columns: Tensor) -> Tensor:
    """Cross-entropy [n] of logits whose first column is the right class."""
    logits = torch.cat(columns, 1)
    return cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long), reduction="none")


def diagonal_is_right(logits: Tensor) -> Tensor:
    return cross_entropy(logits, torch.arange(len(logits)), reduction="none")


def off_diagonal(square: Tensor) -> Tensor:
    """[n, n] -> [n, n - 1]"""
    n = len(square)
    return square[~torch.eye(n, dtype=torch.bool)].view(n, n - 1)


def two_sides(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor) -> Tensor:
    """The sum of both directions of a loss of unit vectors [N, D]."""
    a, b = normalize(z, dim=-1)
    return loss(a, b) + loss(b, a)


# ---- InfoNCE


def simclr(z: Tensor) -> Tensor:
    """google-research/simclr tf2/objective.py at 67b5625: the mean over the images of the sum of both directions."""
    far = torch.eye(N, dtype=z.dtype) * 1e9

    def side(a: Tensor, b: Tensor) -> Tensor:
        return diagonal_is_right(torch.cat([a @ b.T / TAU, a @ a.T / TAU - far], 1)).mean()

    return two_sides(side, z)


def randbits(z: Tensor) -> Tensor:
    """google-research/simclr colabs/intriguing_properties/randbits_mnist.ipynb at 1839ca4: the other view only."""
    a, b = normalize(z, dim=-1)
    cosines = a @ b.T / TAU
    return diagonal_is_right(cosines).mean() + diagonal_is_right(cosines.T).mean()


def leftthomas(z: Tensor) -> Tensor:
    """leftthomas/SimCLR main.py at 1e4dc8e, the recipe of MACL and the ``ce`` of raminnakhli's DCL: mean of 2N."""
    a, b = normalize(z, dim=-1)
    both = torch.cat([a, b])
    total = off_diagonal((both @ both.T / TAU).exp()).sum(1)
    positive = ((a * b).sum(1) / TAU).exp()
    return -(torch.cat([positive, positive]) / total).log().mean()


def moco(z: Tensor) -> Tensor:
    """facebookresearch/moco moco/builder.py at 4397a04, with the cross-entropy of its main_moco.py."""
    q, k = normalize(z[0], dim=-1), normalize(KEYS[0], dim=-1)
    return first_is_right((q * k).sum(1, keepdim=True) / TAU, q @ queue().keys.double().T / TAU).mean()


def queue() -> Queue:
    return Queue(QUEUE, D, seed=4)


def moco_v3(z: Tensor) -> Tensor:
    """facebookresearch/moco-v3 moco/builder.py at 0c5d00a, of predictions: 2 tau times the sum of both views."""
    (a, b), (keys_a, keys_b) = normalize(z, dim=-1), normalize(KEYS, dim=-1)
    return 2 * TAU * (diagonal_is_right(a @ keys_b.T / TAU).mean() + diagonal_is_right(b @ keys_a.T / TAU).mean())


# ---- EqCo


def simo(z: Tensor) -> Tensor:
    """V2AI/SelfSup examples/simo/simo.res50.scratch.imagenet.224size.256bs.200e/simo.py at 8589725.

    K columns of the off-diagonal cosines, the same for all queries. The factor alpha / K is commented out in the code,
    which is alpha = K.
    """
    q, keys = normalize(z[0], dim=-1), normalize(KEYS[0], dim=-1)
    cosines = q @ keys.T / TAU
    positive = cosines.diag()
    drawn = shared_negatives().draws.generators(torch.device("cpu"), 0)
    negatives = off_diagonal(cosines)[:, without_replacement(1, N - 1, K, drawn)[0].long()]
    return ((positive.exp() + ALPHA / K * negatives.exp().sum(1)).log() - positive).sum() / N


def shared_negatives() -> RandomK:
    return RandomK(K, "cross", shared=True, seed=3)


# ---- DCL


def dcl(weigh: Callable[[Tensor], Tensor] = torch.ones_like) -> Formula:
    """raminnakhli/Decoupled-Contrastive-Learning loss/dcl.py at f876c83, whose main.py adds both directions.

    ``weigh`` gives the weights of DCLW from the cosines of the positives. The code hides a candidate by a logit of
    -103 instead of -inf, and does not detach the weights, as lightly-ai/lightly lightly/loss/dcl_loss.py and we do.
    """

    def formula(z: Tensor) -> Tensor:
        def side(a: Tensor, b: Tensor) -> Tensor:
            s = (a * b).sum(1)
            rest = torch.cat([off_diagonal(a @ a.T), off_diagonal(a @ b.T)], 1) / TAU
            return (rest.logsumexp(1) - weigh(s) * s / TAU).mean()

        return two_sides(side, z)

    return formula


def weights(s: Tensor) -> Tensor:
    """Of DCLW: f876c83 has the factor N, which the first version (50991ef) lacked."""
    return (2 - N * (s / 0.5).softmax(0)).detach()


# ---- Debiased, HCL


def hcl(beta: float, tau_plus: float) -> Formula:
    """joshr17/HCL image/main.py at 7b4647f; with beta = 0, chingyaoc/DCL main.py at 30189fb."""

    def formula(z: Tensor) -> Tensor:
        both, image = normalize(z, dim=-1).flatten(0, 1), torch.arange(2 * N) % N
        exps = (both @ both.T / TAU).exp()
        positive = exps.gather(1, torch.arange(2 * N).roll(N)[:, None])[:, 0]
        others = exps[image[:, None] != image].view(2 * N, -1)
        weights = others**beta
        sums = (weights * others).sum(1) / weights.mean(1)
        corrected = (sums - tau_plus * (2 * N - 2) * positive) / (1 - tau_plus)
        return -(positive / (positive + corrected.clamp(min=(2 * N - 2) * math.exp(-1 / TAU)))).log().mean()

    return formula


# ---- DHEL


def dhel(z: Tensor) -> Tensor:
    """pakoromilas/DHEL-KCL losses.py at 3059efa, with its ``include_augs``, which is the default."""
    a, b = normalize(z, dim=-1)
    spread = [off_diagonal((x @ x.T / TAU).exp()).sum(1) for x in (a, b)]
    positive = ((a * b).sum(1) / TAU).exp()
    return -(positive / (spread[0] * spread[1])).log().mean()


# ---- Alignment and uniformity


def align_uniform(z: Tensor) -> Tensor:
    """ssnl/align_uniform align_uniform/__init__.py and examples/stl10/main.py at 505907b."""
    x, y = normalize(z, dim=-1)
    spread = [torch.pdist(view).square().mul(-2).exp().mean().log() for view in (x, y)]
    return (x - y).square().sum(1).mean() + torch.stack(spread).mean()


# ---- MACL, dual temperature


def macl(tau: Callable[[Tensor], Tensor]) -> Formula:
    """winnerziqi/MACL MACL.py at 0f08819, both directions added; the file has one, and no code that calls it."""

    def side(a: Tensor, b: Tensor) -> Tensor:
        cosines = a @ b.T
        p = (cosines / tau(cosines.diag().mean().detach())).softmax(1)
        return -((1 / off_diagonal(p).sum(1)).detach() * p.diag().log()).mean()

    return lambda z: two_sides(side, z)


def dual_temperature(z: Tensor) -> Tensor:
    """ChaoningZhang/Dual-temperature solo/losses/dual_temperature_loss.py at 1f7d277.

    solo/methods/simco_dual_temperature.py takes the mean of both directions.
    """

    def side(a: Tensor, b: Tensor) -> Tensor:
        cosines = a @ b.T
        inner, outer = ((cosines / tau).softmax(1).diag() for tau in (TAU, 10 * TAU))
        return (((1 - outer) / (1 - inner)).detach() * diagonal_is_right(cosines / TAU)).mean()

    return two_sides(side, z) / 2


# ---- ReLIC


def relic(z: Tensor) -> Tensor:
    """Equation 3 of "Less can be more", which has no public code: image i of view v, images m of view w against v."""
    z, total = normalize(z, dim=-1), torch.zeros((), dtype=z.dtype)
    for i, v in itertools.product(range(N), range(2)):
        images = [i, *(m for m in range(N) if m != i)]
        p, q = (z[a, i] @ z[1 - v, images].T / TAU for a in (v, 1 - v))
        total = total - p.log_softmax(0)[0] + 2.5 * (p.softmax(0) * (p.log_softmax(0) - q.log_softmax(0))).sum()
    return total / N


# ---- Intriguing properties


def decoupled_nt_xent(z: Tensor) -> Tensor:
    """google-research/simclr colabs/intriguing_properties/generalized_contrastive_loss.ipynb at 1839ca4.

    No candidate is left out, not even the anchor itself; the constant is the logarithm of the width.
    """
    h = normalize(z, dim=-1)
    both = h.flatten(0, 1)
    total = (both @ both.T / TAU).logsumexp(1).mean() - math.log(D)
    return 1000 * ((h[0] - h[1]).square().mean() / 2 + 0.3 * total)


# ---- sums over pairs


def siglip(z: Tensor) -> Tensor:
    """mlfoundations/open_clip src/open_clip/loss.py, SigLipLoss at b01786f: one way, summed over all pairs of a row."""
    a, b = normalize(z, dim=-1)
    logits = a @ b.T / TAU - 2
    return -(logits * (2 * torch.eye(N) - 1)).sigmoid().log().sum() / N


def spectral(z: Tensor) -> Tensor:
    """jhaochenz96/spectral_contrastive_learning models/spectral.py at ee431bd, with mu = 0.1: eq. 6 divided by mu."""
    assert float(z.detach().norm(dim=-1).min()) > 0.1**0.5  # shorter vectors would stay as they are
    a, b = normalize(z, dim=-1) * 0.1**0.5
    return (-2 * (a * b).sum(1).mean() + off_diagonal(a @ b.T).square().mean()) / 0.1


def kcl(kernel: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """pakoromilas/DHEL-KCL losses.py at 3059efa and utils.py at 562fba8, of squared distances in one view."""

    def formula(z: Tensor) -> Tensor:
        x, y = normalize(z, dim=-1)
        energy = [kernel(torch.pdist(view).square()).mean() for view in (x, y)]
        return 16 * torch.stack(energy).sum() - 2 * kernel((x - y).square().sum(1)).mean()

    return formula


# ---- BYOL


def byol(z: Tensor) -> Tensor:
    """google-deepmind/deepmind-research byol/byol_experiment.py and utils/helpers.py at 4822a45: sum of both views."""
    online, target = normalize(z, dim=-1), normalize(KEYS, dim=-1)
    return (online - target.flip(0)).square().sum(-1).sum(0).mean()


def simsiam(z: Tensor) -> Tensor:
    """facebookresearch/simsiam main_simsiam.py at a7bc177 and simsiam/builder.py at 39ac33e; the code lacks the 1."""
    keys = normalize(z.flip(0).detach(), dim=-1)
    return 1 - 0.5 * (normalize(z, dim=-1) * keys).sum(-1).mean(1).sum()


# ---- VICReg, Barlow Twins, LeJEPA


def vicreg(z: Tensor) -> Tensor:
    """facebookresearch/vicreg main_vicreg.py at 4e12602: the mean of the views' variance terms, the sum of the others.

    On several devices it gathers both views, with the gradient of all devices: exact, as ours is.
    """
    narrow = torch.stack([relu(1 - (x.var(0) + 1e-4).sqrt()).mean() for x in z])
    correlated = torch.stack([off_diagonal(x.T.cov()).square().sum() / D for x in z])
    return 25 * (z[0] - z[1]).square().mean() + 25 * narrow.mean() + correlated.sum()


def barlow_twins(z: Tensor) -> Tensor:
    """facebookresearch/barlowtwins main.py at 046eec3, with the batch norm of all devices, as its SyncBatchNorm.

    Its all_reduce of the matrix is unknown to autograd: DDP's average is the gradient divided by the number of devices.
    """
    a, b = ((x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt() for x in z)
    c = a.T @ b / N
    loss = (c.diag() - 1).square().sum() + 0.0051 * off_diagonal(c).square().sum()
    return loss / RANKS + (1 - 1 / RANKS) * loss.detach()


def lejepa(z: Tensor) -> Tensor:
    """rbalestr-lab/lejepa MINIMAL.md at 2f2d970, with our directions for its 256 random ones.

    lejepa/univariate/epps_pulley.py at a74fcb9 has the same statistic for several devices, with an all_reduce that
    autograd knows.
    """
    t = torch.linspace(0, 3, 17, dtype=z.dtype)
    window, weights = (-t.square() / 2).exp(), torch.full_like(t, 2 * 3 / 16)
    weights[0] = weights[-1] = 3 / 16
    waves = (z @ losses.SIGReg(seed=6).directions(z).T)[..., None] * t  # [2, N, A, 17]
    error = (waves.cos().mean(1) - window).square() + waves.sin().mean(1).square()
    return 0.02 * N * (error @ (weights * window)).mean() + 0.98 * (z.mean(0) - z).square().mean()


# ---- several positives, by labels

LABELS = torch.tensor([0, 1, 0, 2, 1, 0])


def supcon(z: Tensor) -> Tensor:
    """HobbitLong/SupContrast losses.py, SupConLoss with all views as anchors and base_temperature = temperature."""
    both, labels = normalize(z.flatten(0, 1), dim=-1), LABELS.repeat(2)
    logits, self_pair = both @ both.T / TAU, torch.eye(2 * N, dtype=torch.bool)
    positive = (labels[:, None] == labels) & ~self_pair
    log_p = logits - logits.masked_fill(self_pair, -torch.inf).exp().sum(1, keepdim=True).log()
    return -((log_p * positive).sum(1) / positive.sum(1)).mean()


def sincere(z: Tensor) -> Tensor:
    """tufts-ml/SupContrast revised_losses.py, SINCERELoss of both views in one batch."""
    both, labels = normalize(z.flatten(0, 1), dim=-1), LABELS.repeat(2)
    logits, same_class = both @ both.T / TAU, labels[:, None] == labels
    other_classes = logits.masked_fill(same_class, -torch.inf).logsumexp(0)[:, None]
    positive = same_class & ~torch.eye(2 * N, dtype=torch.bool)
    each = (torch.logaddexp(logits, other_classes) - logits) * positive
    return (each / positive.sum(0)).sum() / (2 * N)


# ---- the nearest key as the positive


def nearest() -> NearestKey:
    return NearestKey(9, D, 1).double()


def neighbours(z: Tensor) -> Tensor:
    """The key of the largest cosine for each vector of a view."""
    keys = nearest().queue.keys
    return torch.stack([max(keys, key=lambda key: float(key @ each)) for each in normalize(z.detach(), dim=-1)])


def nt_xent_of(anchors: Tensor, positives: Tensor, others: Tensor) -> Tensor:
    """Against their positives, ``others`` of the other images and the anchors of the other images."""
    columns = (
        (anchors * positives).sum(1, keepdim=True),
        off_diagonal(anchors @ others.T),
        off_diagonal(anchors @ anchors.T),
    )
    return first_is_right(*(column / TAU for column in columns)).mean()


def nnclr(z: Tensor) -> Tensor:
    """NNCLR (arXiv 2104.14548) with an anchor's negatives themselves, where paper and codes have their neighbours."""
    a, b = normalize(z, dim=-1)
    return (nt_xent_of(b, neighbours(z[0]), a) + nt_xent_of(a, neighbours(z[1]), b)) / 2


# ---- the comparison


def inv_spread(z: Tensor) -> Tensor:
    """mangye16/Unsupervised_Embedding_Learning BatchCriterion.py at 29de398, negM = 1: the columns are constants."""
    x = normalize(z.flatten(0, 1), dim=-1)
    every = off_diagonal((x @ x.detach().T / TAU).exp()).sum(1)
    own = ((x * x.detach().roll(N, 0)).sum(1) / TAU).exp() / every
    others = off_diagonal((x @ x.detach().T / TAU).exp()) / every[:, None]
    return -(own.log() + (1 - others).log().sum(1) - (1 - own).log()).mean()


class Code(NamedTuple):
    """A code and the parts that are the same computation.

    Attributes:
        value, gradient: those of the code are ours times this.
        framework: arguments of :class:`Siamese`.
    """

    formula: Formula
    loss: Loss
    negatives: Negatives
    reduction: Literal["mean", "sum"]
    value: float = 1
    gradient: float = 1
    temperature: Temperature = Fixed(TAU)
    framework: dict[str, Any] = {}  # noqa: RUF012
    positives: Positives = OtherView()


ONE_WAY = {"momentum": 0.99, "symmetric": False}
CODES: dict[str, Code] = {
    "simclr": Code(simclr, losses.InfoNCE(), InBatch(), "sum"),
    "randbits": Code(randbits, losses.InfoNCE(), CrossView(), "sum"),
    "leftthomas": Code(leftthomas, losses.InfoNCE(), InBatch(), "mean"),
    "moco": Code(moco, losses.InfoNCE(), queue(), "mean", framework=ONE_WAY),
    "moco_v3": Code(
        *(moco_v3, losses.InfoNCE(), CrossView(), "mean", 4 * TAU, 4 * TAU),
        framework={"momentum": 0.99, "predictor": 4, "predictor_norm": "plain"},
    ),
    "simo": Code(simo, losses.EqCo(ALPHA), shared_negatives(), "mean", framework=ONE_WAY),
    "dcl": Code(dcl(), losses.DCL(), InBatch(), "sum"),
    "dclw": Code(dcl(weights), losses.DCLW(), InBatch(), "sum"),
    "debiased": Code(hcl(0, 0.1), losses.Debiased(0.1), InBatch(), "mean"),
    "hcl": Code(hcl(1, 0.1), losses.HCL(1, 0.1), InBatch(), "mean"),
    "dhel": Code(dhel, losses.DHEL(), OwnView(), "sum"),
    "kcl_gaussian": Code(kcl(lambda d: (-2 * d).exp()), losses.KCL(), OwnView(), "mean", value=2, gradient=2),
    "kcl_imq": Code(kcl(lambda d: 2 / (4 + d).sqrt()), losses.KCL("imq"), OwnView(), "mean", value=2, gradient=2),
    "align_uniform": Code(align_uniform, losses.AlignUniform(1, 2), OwnView(), "mean"),
    "macl_a": Code(
        macl(lambda mean: 0.1 * 2**mean), losses.MACL(), CrossView(), "sum", temperature=MACLa(0.1, alpha=2.0)
    ),
    "macl_b": Code(
        macl(lambda mean: 0.1 * (1 + 0.5 * mean)), losses.MACL(), CrossView(), "sum", temperature=MACLb(0.1, beta=0.5)
    ),
    "relic": Code(relic, losses.ReLIC(2.5), CrossView(), "sum"),
    "dual_temperature": Code(dual_temperature, losses.DualTemperature(), CrossView(), "mean"),
    "decoupled_nt_xent": Code(decoupled_nt_xent, losses.DecoupledNTXent(0.3, "official", 1000), InBatch(), "mean"),
    "siglip": Code(siglip, losses.SigLIP(-2.0), CrossView(), "mean"),
    "spectral": Code(spectral, losses.Spectral(0.1), CrossView(), "mean", value=10, gradient=10),
    "supcon": Code(supcon, losses.SupCon(), InBatch(), "mean", positives=SameLabel()),
    "sincere": Code(sincere, losses.SINCERE(), InBatch(), "mean", positives=SameLabel()),
    "nnclr": Code(nnclr, losses.InfoNCE(), InBatch(), "mean", positives=nearest()),
    "byol": Code(byol, losses.BYOL(), NoNegatives(), "sum", framework={"momentum": 0.99, "predictor": 4}),
    "simsiam": Code(
        simsiam, losses.BYOL(), NoNegatives(), "mean", 0.5, 0.5, framework={"stop_gradient": True, "predictor": 4}
    ),
    "vicreg": Code(vicreg, losses.VICReg(), NoNegatives(), "mean"),
    "barlow_twins": Code(barlow_twins, losses.BarlowTwins(), NoNegatives(), "mean", gradient=1 / RANKS),
    "inv_spread": Code(inv_spread, losses.InvariantSpread(), InBatch(), "mean", framework={"stop_gradient": True}),
    "lejepa": Code(lejepa, losses.SIGReg(seed=6), NoNegatives(), "mean"),
}
# tests of their own below; of SWD in test_losses.py, and of NCE in tests/methods/test_cld.py
ELSEWHERE = {losses.FlatNCE, losses.SogCLR, losses.ISogCLR, losses.SWD, losses.NCE}


def value_and_gradient(formula: Formula) -> tuple[Tensor, Tensor]:
    z = draw(2, N, D).requires_grad_()
    value = formula(z)
    return value.detach(), torch.autograd.grad(value, z)[0]


def ours(code: Code) -> Formula:
    """The objective of a training step, from projections."""
    framework = Siamese(nn.Identity(), MLP(D, 1, None, D, final_norm="none"), **code.framework)
    parts = code.negatives, code.temperature, code.loss, code.reduction
    method = Contrastive(framework, *parts, positives=code.positives).double()
    batch = Batch([torch.zeros(N)] * 2, torch.arange(N), LABELS)

    def formula(z: Tensor) -> Tensor:
        outputs: Outputs = {"z": z if framework.symmetric else z[:1]}
        if framework.target is not None:
            outputs["key"] = KEYS if framework.symmetric else KEYS[:1]
        if framework.predictor is not None:
            outputs["prediction"] = z
        return method.objective(outputs, batch, 0.0, False).loss

    return formula


def test_every_loss_with_a_public_code_is_compared() -> None:
    coded = {each for each in every_loss() if each.code}
    assert {type(code.loss) for code in CODES.values()} | ELSEWHERE == coded | {losses.ReLIC}


@pytest.mark.parametrize("name", CODES)
def test_value_and_gradient_are_the_codes(name: str) -> None:
    code = CODES[name]
    (value, gradient), (our_value, our_gradient) = map(value_and_gradient, (code.formula, ours(code)))
    same(value, code.value * our_value)
    same(gradient, code.gradient * our_gradient)
    assert float(gradient.norm()) > 1e-3


def test_flatnce_is_logged_as_infonce_and_trained_as_flatnce() -> None:
    """Junya-Chen/FlatCLR flatclr.py at 82f8fa1: FlatNCE, minus its value 1, plus InfoNCE without gradient."""

    def formula(z: Tensor) -> Tensor:
        both = normalize(z.flatten(0, 1), dim=-1)
        cosines, image = both @ both.T, torch.arange(2 * N) % N
        others = image[:, None] != image
        positive = cosines.gather(1, torch.arange(2 * N).roll(N)[:, None])
        logits = (cosines[others].view(2 * N, -1) - positive) / TAU
        v = logits.logsumexp(1)
        return (v - v.detach()).exp().mean() - 1 + first_is_right(torch.zeros_like(positive), logits).mean().detach()

    value, gradient = value_and_gradient(formula)
    flat, info = (ours(Code(formula, loss, InBatch(), "mean")) for loss in (losses.FlatNCE(), losses.InfoNCE()))
    same(gradient, value_and_gradient(flat)[1])
    same(value, value_and_gradient(info)[0])


class GlobalContrast:
    """Optimization-AI/LibAUC libauc/losses/contrastive.py at 2005414: GCLoss_v1, which starts u with the first batches.

    With ``rho``, zhqiu/contrastive-learning-iSogCLR unimodal_exps/losses.py at 4f28823: SogCLR_DRO_Loss, with
    beta_u = 0.5 and eta_init = 0.3. The code's value, -s plus a weighted sum, has the right gradient only;
    ``objective`` is what both papers minimise.
    """

    def __init__(self, gamma: float, rho: float | None = None) -> None:
        self.gamma, self.rho = gamma, rho
        self.u, self.m = torch.zeros(2, 12, dtype=torch.float64)
        self.tau = torch.full_like(self.u, 0.125 if rho is not None else TAU)
        self.objective = torch.zeros(())

    def __call__(self, z: Tensor, ids: Tensor) -> Tensor:
        tau, first, moved, slopes, values = self.tau[ids], self.u[ids].sum() == 0, [], [], []

        def side(a: Tensor, b: Tensor) -> Tensor:
            cosines = torch.cat([off_diagonal(a @ b.T), off_diagonal(a @ a.T)], 1)
            exponentials = (cosines / tau[:, None]).exp().detach()
            g = exponentials.mean(1)
            u = g if first else (1 - self.gamma) * self.u[ids] + self.gamma * g
            weights, s = exponentials / u[:, None], (a * b).sum(1)
            moved.append(u)
            slopes.append(u.log() + (self.rho or 0) - (weights * cosines.detach() / tau[:, None]).mean(1))
            values.append((tau * (u.log() + (self.rho or 0)) - s.detach()).mean())
            return ((weights * cosines).mean(1) - s).mean()

        value = two_sides(side, z)
        self.objective, self.u[ids] = torch.stack(values).sum(), torch.stack(moved).mean(0)
        if self.rho is not None:
            self.m[ids] = 0.5 * self.m[ids] + 0.5 * torch.stack(slopes).mean(0).clamp(-3, 3)
            self.tau[ids] = (tau - 0.3 * self.m[ids]).clamp(0.05, 1)
        return value


@pytest.mark.parametrize("rho", [None, 0.4, 3.5])  # the last one reaches both bounds of the code
@pytest.mark.parametrize("gamma", [0.7, 1.0])
def test_a_remembered_average_is_that_of_the_codes_step_after_step(rho: float | None, gamma: float) -> None:
    code = GlobalContrast(gamma, rho)
    loss = losses.SogCLR(12, gamma) if rho is None else losses.ISogCLR(12, gamma, tau=0.125, rho=rho, eta=0.3)
    method = Contrastive(Siamese(nn.Identity(), MLP(D, 1, None, D)), InBatch(), Fixed(TAU), loss, "sum").double()
    new, again = torch.arange(12).split(N), torch.randperm(12, generator=torch.Generator().manual_seed(0)).split(N)
    for step, ids in enumerate([*new, *again, *new]):
        z, tau = draw(2, N, D, seed=step).requires_grad_(), code.tau[ids].mean()
        value, found = code(z, ids), method.objective({"z": z}, Batch([], ids, ids), 0.0, True)
        same(*(torch.autograd.grad(x, z)[0] for x in (found.loss, value)))
        same(found.loss.detach(), code.objective)
        same(found.diagnostics["tau"], tau)
        method.update(found.for_update, 0.0)
        same(loss.log_u[ids], code.u[ids].log())
        same(loss.taus if isinstance(loss, losses.ISogCLR) else code.tau, code.tau)


# ---- networks


@pytest.mark.parametrize("name", ["eqco", "macl"])
def test_separate_forwards_and_the_last_norm_are_the_codes(name: str) -> None:
    """Heads of EqCo's SimCLR and SiMo (V2AI/SelfSup, as above) and of leftthomas/SimCLR model.py at 45357c5.

    EqCo: Linear, BN, ReLU, Linear, BN, both BN with scale and shift, no biases: ``head=simo``, or ``head=mlp2
    head.final_norm=affine``. leftthomas: the last layer is a Linear with a bias: ``head.final_norm=none``. Both forward
    the views one after another: ``framework.views_forward=separate``. The loss, all gradients and all running
    statistics are those of plain modules with the same weights.
    """
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(9, D), nn.BatchNorm1d(D), nn.Tanh())
    last = [nn.Linear(D, 4, bias=False), nn.BatchNorm1d(4)] if name == "eqco" else [nn.Linear(D, 4)]
    plain = nn.Sequential(backbone, nn.Linear(D, D, bias=False), nn.BatchNorm1d(D), nn.ReLU(), *last).double()
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    head = MLP(D, 2, None, 4, final_norm="affine" if name == "eqco" else "none")
    framework = Siamese(
        nn.Sequential(nn.Linear(9, D), nn.BatchNorm1d(D), nn.Tanh()), head, views_forward="separate"
    ).double()
    for mine, given in zip(framework.encoder.state_dict().values(), plain.state_dict().values(), strict=True):
        mine.copy_(given)
    views = [draw(N, 9, seed=5), 2 * draw(N, 9, seed=6) + 1]  # other statistics in the second view
    formula = simclr if name == "eqco" else leftthomas
    reduction: Literal["sum", "mean"] = "sum" if name == "eqco" else "mean"
    expected = formula(torch.stack([plain(view) for view in views]))
    expected.backward()  # type: ignore[no-untyped-call]
    method = Contrastive(framework, InBatch(), Fixed(TAU), losses.InfoNCE(), reduction).double()
    batch = Batch(views, torch.arange(N), torch.zeros(N))
    found = method.objective(method.trained_outputs(batch), batch, 0.0, False).loss
    found.backward()  # type: ignore[no-untyped-call]
    same(found, expected)
    for mine, given in zip(framework.encoder.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and given.grad is not None
        same(mine.grad, given.grad)
    for mine, given in zip(framework.encoder.state_dict().values(), plain.state_dict().values(), strict=True):
        same(mine, given)
