"""The fake GPU's backward pass is torch's; launches are counted by phase, and may only fall."""

import contextlib
import copy
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import benchmark_launches
import fake_gpu

from ssl_bench.data.batch import Batch
from ssl_bench.methods.base import Method
from ssl_bench.objective import tiles
from ssl_bench.parts import Parts
from tests.devices.test_steps import base, combinations
from tests.methods.training import has_own_objective, options
from tests.objective.test_combinations import SIZE, OneLayer

# Launches of a step with eager views by phase, in torch 2.15. They may only fall: when they do, write the new number.
COMMON = {"draws": 82, "views": 225, "optimiser": 2, "meter": 3, "rest": 2}
RECORDED = {
    "simclr": COMMON | {"forward": 95, "loss": 21, "backward": 124, "after_step": 1},
    "moco_v2": COMMON | {"forward": 94, "momentum": 94, "loss": 20, "backward": 120, "after_step": 8},
}


@pytest.mark.skipif(not torch.__version__.startswith("2.15."), reason="other releases have other operations")
@pytest.mark.parametrize("name", ["simclr", pytest.param("moco_v2", marks=pytest.mark.slow)])
def test_the_launches_of_a_step_do_not_grow(name: str) -> None:
    launches = benchmark_launches.step(benchmark_launches.METHODS[name])
    assert launches.waits == 0
    assert dict(launches.counts) == RECORDED[name], "if a number has fallen, lower it in RECORDED"


def test_views_allocations_and_questions_are_no_launches() -> None:
    with fake_gpu.fake_gpu(), fake_gpu.Launches() as launches:
        x = torch.empty(4, 6, device="cuda")
        _ = (
            x.T,
            x[1:],
            x.view(2, 12),
            x.expand(3, 4, 6),
            x.detach(),
            x.split(2),
            x.shape,
            x.is_contiguous(),
            x.new_empty(3),
        )
        assert launches.counts.total() == 0
        _ = x + 1, x.add_(1), x.T.contiguous(), x.clone(), x.long(), torch.zeros(3, device="cuda"), x.fill_(0.0)
        assert launches.counts.total() == 7
        with launches.phase("lists"):
            torch._foreach_add_([x, x.clone()], 1.0)  # the copy and one for the list
        _ = torch.empty(4) + 1  # not on the GPU
    assert launches.counts == {"": 7, "lists": 2}
    assert launches.operations["lists"] == {"clone": 1, "_foreach_add_": 1}


class Shared(nn.Module):
    """A network with what a graph can have: parts used twice, broadcasts, mixed types, a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten())
        self.head, self.scale, self.unused = (
            nn.Linear(144, 5),
            nn.Parameter(torch.ones(1, 5)),
            nn.Parameter(torch.ones(2)),
        )

    def forward(self, x: Tensor) -> Tensor:
        z = self.head(self.layers(x)) + self.head(self.layers(x.flip(0)))  # [6, 5]
        q = nn.functional.normalize(z * self.scale, dim=1)
        tau = torch.tensor(0.2, dtype=torch.float64) * self.scale.mean()
        rows, _ = tiles.pooled_lse(q, q, tau, None, None, None)
        first, second = z.double().chunk(2)
        return rows.mean() + (first * second.detach()).sum() * 1e-3


def test_the_backward_pass_equals_torchs() -> None:
    torch.manual_seed(0)
    network, x = Shared(), torch.randn(6, 3, 8, 8)
    other = copy.deepcopy(network)
    for _ in range(2):  # the second time, gradients are added
        network(x).backward()
        fake_gpu.backward(other(x))
    for (name, ours), theirs in zip(other.named_parameters(), network.parameters(), strict=True):
        if name == "unused":
            assert ours.grad is None and theirs.grad is None
        else:
            assert ours.grad is not None and theirs.grad is not None and theirs.grad.any()
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-7)
    leaf, unrelated = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    (found,) = fake_gpu.grad((leaf.exp() * leaf).sum(), leaf)
    assert found is not None and leaf.grad is None
    torch.testing.assert_close(found, (leaf.exp() * (leaf + 1)).detach())
    assert fake_gpu.grad(leaf.sum(), unrelated) == (None,)
    several = [leaf * 2, leaf * 3]
    fake_gpu.backward(several, [torch.ones(3), torch.full((3,), 2.0)])
    assert leaf.grad is not None and leaf.grad.tolist() == [8.0, 8.0, 8.0]


def on_meta(config: dict[str, Any], walk: bool) -> dict[str, Counter[str]]:
    """Operations of the forward and backward on the device ``meta``, with torch's engine or the walk in Python."""
    torch.manual_seed(0)
    parts = Parts(config)
    method: Method = fake_gpu.on_device(parts.method, "meta")
    ids = torch.empty(8, dtype=torch.int64, device="meta")
    batch = Batch([torch.empty(8, 1, SIZE, SIZE, device="meta") for _ in parts.views], ids, ids)
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch("torch.Generator", fake_gpu.FakeGenerator))
        stack.enter_context(patch("torch.autocast", lambda *arguments, **options: contextlib.nullcontext()))
        launches = stack.enter_context(fake_gpu.Launches("meta"))
        with launches.phase("forward"):
            loss, _, kept = method(batch, 0.5)
        with launches.phase("backward"):
            fake_gpu.backward(loss) if walk else loss.backward()
        with launches.phase("after"):
            optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], 0.1, 0.9, foreach=True)
            optimizer.step()
            method.after_step(0.5, kept)
    assert all(p.grad is not None and p.grad.shape == p.shape for p in method.parameters() if p.requires_grad)
    return launches.operations


def check_on_meta(config: dict[str, Any]) -> None:
    theirs, ours = on_meta(config, walk=False), on_meta(config, walk=True)
    # torch's engine adds gradients in place where it can: add_ is add.
    for found in (theirs, ours):
        found["backward"]["add"] += found["backward"].pop("add_", 0)
    assert theirs == ours and theirs["backward"].total() > 10


@pytest.fixture(autouse=True)
def small_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssl_bench.networks.backbones.DigitsResNet", OneLayer)


@pytest.mark.parametrize("framework", ["simclr", "npid"])
def test_some_methods_run_on_meta_with_torchs_engine(framework: str) -> None:
    check_on_meta(base(framework))


@pytest.mark.slow
@pytest.mark.parametrize("framework", options("framework"))
def test_every_method_runs_on_meta_with_torchs_engine(framework: str) -> None:
    for config in [base(framework)] if has_own_objective(framework) else combinations(framework)[::8]:
        check_on_meta(config)


def test_the_benchmark_prints_a_row_for_each_method(capsys: pytest.CaptureFixture[str]) -> None:
    def step(overrides: list[str]) -> fake_gpu.Launches:
        made = fake_gpu.Launches()
        made.counts.update({"views": 5, "loss": 2})
        return made

    def missing() -> fake_gpu.Launches:
        raise ModuleNotFoundError("no", name="kornia")

    typed = ["benchmark_launches.py", "--only", "simclr", "npid"]
    replaced: dict[str, Any] = {"step": step, "OTHERS": {"plain loop, kornia": missing}}
    with patch.multiple(benchmark_launches, **replaced), patch.object(sys, "argv", typed):
        benchmark_launches.main()
        printed = capsys.readouterr().out
        sys.argv.append("--json")
        benchmark_launches.main()
    lines = [line.split() for line in printed.splitlines()]
    assert ["views", "loss", "total", "waits"] in lines and ["npid", "5", "2", "7", "0"] in lines
    assert "plain loop, kornia  not installed (kornia)" in printed
    row = {"views": 5, "loss": 2, "waits": 0}
    assert json.loads(capsys.readouterr().out) == {"simclr": row, "npid": row}
