"""Each schedule against its closed form, and refusals; test_official.py has MACL's temperatures."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ssl_bench.errors import InvalidValue
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.temperature import Cosine, Fixed, Learned, Linear, MACLa, MACLb, Temperature

COSINES = torch.tensor([[0.9, -0.2, 0.4, 1.0], [0.3, 0.8, -0.7, 0.1]], dtype=torch.float64)  # [V, N]


def contrast(pos: Tensor = COSINES) -> Contrast:
    return Contrast.dense(pos, torch.zeros(*pos.shape, 3, dtype=pos.dtype))


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.25, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(
    ("temperature", "formula"),
    [
        (Fixed(0.2), lambda p: 0.2),
        (Linear(0.07, 1.4e-4, 500), lambda p: 0.07 + 1.4e-4 * 500 * p),
        (Linear(0.5, -2e-3, 200), lambda p: 0.5 - 0.4 * p),
        (Cosine(0.5, 0.1, 0.5), lambda p: 0.1 + 0.4 * math.cos(math.pi * p / 2) ** 2),
        # Kukleva et al. 2023, eq. 4: (tau_max - tau_min) (1 + cos(2 pi t / T)) / 2 + tau_min, T a fifth of the epochs
        (Cosine(1.0, 0.1, 5), lambda p: 0.9 * (1 + math.cos(2 * math.pi * 200 * p / 40)) / 2 + 0.1),
    ],
    ids=["fixed", "linear", "falling", "half_a_cosine", "cycles"],
)
def test_schedules(temperature: Temperature, formula: Callable[[float], float], progress: float) -> None:
    assert float(temperature(progress, contrast())) == pytest.approx(formula(progress), rel=1e-14)


def test_a_learned_temperature_is_trained_with_the_network() -> None:
    """d u / d theta = d u / d tau (tau - minimum)."""
    temperature = Learned(0.2, 0.01).double()
    tau = temperature(0.0, contrast())
    assert float(tau.detach()) == pytest.approx(0.2, rel=1e-6)
    neg = torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 4, 3)
    (found,) = torch.autograd.grad(Contrast.dense(COSINES, neg).log_odds(tau).sum(), temperature.theta)
    t = float(tau.detach())
    mean_cosine = ((neg / t).softmax(-1) * neg).sum(-1)
    expected = ((COSINES - mean_cosine) / t**2).sum() * (t - 0.01)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_a_learned_temperature_stays_above_its_minimum() -> None:
    temperature = Learned(0.02, 0.01)
    optimizer = torch.optim.SGD(temperature.parameters(), lr=0.5)
    taus = []
    for _ in range(30):
        optimizer.zero_grad()
        tau = temperature(0.0, contrast())
        tau.backward()  # a loss that only asks for a lower temperature
        optimizer.step()
        taus.append(float(tau.detach()))
    assert taus == sorted(taus, reverse=True) and min(taus) > 0.01 and taus[-1] < taus[0]


@pytest.mark.parametrize(
    "temperature", [Fixed(0.2), Linear(0.1, 1e-4, 10), Cosine(0.5, 0.1, 1), MACLa(0.1, 2.0), MACLb(0.1, 0.5)]
)
def test_other_temperatures_have_no_parameters(temperature: Temperature) -> None:
    """And the logits have the type of the cosines."""
    assert not list(temperature.parameters()) and not temperature.state_dict()
    tau = temperature(0.5, contrast(COSINES.float()))
    assert tau.shape == () and contrast(COSINES.float()).log_odds(tau).dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Fixed(0), "tau=0: .*1e-6 .*1e6"),
        (lambda: Linear(0.1, -0.01, 10), "slope=-0.01: .*tau=0.1 .*epoch 10"),
        (lambda: Cosine(0.5, 0.0, 1), "final=0.0: .*1e-6 .*1e6"),
        (lambda: Cosine(0.5, 0.1, 0), "cycles=0: .*1e-6 .*1e6"),
        (lambda: MACLa(0.1, 0), "alpha=0: .*1e-6 .*1e6"),
        (lambda: MACLb(0.1, -1.0), "beta=-1.0: .*-1 .*1"),
        (lambda: Learned(0.2, 0), "minimum=0: .*1e-6 .*1e6"),
        (lambda: Learned(0.1, 0.1), "tau=0.1: .*minimum=0.1"),
    ],
)
def test_invalid_values_are_refused(make: Callable[[], Temperature], names: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{names}"):
        make()
