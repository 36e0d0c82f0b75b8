"""Value, time and memory of `ssl_bench.PairLoss` for every loss, against a naive loop in float64 and against lightly.

    python scripts/benchmark_api.py                          # 4,096 images, D = 128: about 8 minutes on two cores
    python scripts/benchmark_api.py --images 512 --rounds 3

The losses have the arguments of conf/loss and the negatives that they are made for. `apart` is the relative difference
to the naive loop, of the value in float32 and in float64; swd draws another sample in float32. Time and memory are
measured as in benchmark_losses.py: wall time of forward and backward in alternating rounds, peak memory of a new
process; ratios are to infonce.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from benchmark_losses import TAU, WIDTH, Contender, lightly, make_views, step
from timing import alternate, environment, extra_megabytes, print_table, try_each
from torch import Tensor
from torch.nn.functional import normalize

import ssl_bench
from ssl_bench.api import options
from ssl_bench.objective.losses import SWD

BASE, SMALL = "infonce", 64


def naive(views: tuple[Tensor, Tensor]) -> dict[str, float]:
    """The losses from a loop over the anchors, in float64; s cosine with the positive, k with the negatives."""
    raw, t = torch.stack(views).detach().double(), TAU
    z = normalize(raw, dim=-1)
    each: dict[str, list[float]] = {}
    for v in (0, 1):
        for i in range(z.shape[1]):
            a, p = z[v, i], z[1 - v, i]
            own, cross, mirror = (torch.cat([x[:i], x[i + 1 :]]) for x in (z[v] @ a, z[1 - v] @ a, z[1 - v] @ p))
            s, k = a @ p, torch.cat([own, cross])
            top, rest = (s / t).exp(), (k / t).exp().sum()
            second_top, second_rest = (s / (10 * t)).exp(), (k / (10 * t)).exp().sum()
            infonce, w = torch.log1p(rest / top), rest / (top + rest)
            q = torch.cat([torch.ones_like(s)[None], mirror]).div(t).log_softmax(0)
            r = torch.cat([s[None], cross]).div(t).log_softmax(0)
            values = {
                "infonce": infonce,
                "eqco": torch.log1p(256 / len(k) * rest / top),
                "dcl": rest.log() - s / t,
                "flatnce": torch.ones_like(s),
                "macl": infonce / w,
                "macl_w": (2 - s) * infonce / w,
                "dual_temperature": infonce / w * second_rest / (second_top + second_rest),
                "decoupled_nt_xent": 0.1 * (top + rest).log() - s,
                "relic": -r[0] + (r.exp() * (r - q)).sum(),
                "byol": 2 - 2 * s,
                "alignment": 2 - 2 * s,
                "uniformity": (-2 * (2 - 2 * k)).exp().mean(),
                "rest": rest.log(),
                "s": s,
            }
            for name, value in values.items():
                each.setdefault(name, []).append(float(value))  # a tensor would pin the heap
    found = {name: torch.tensor(column, dtype=torch.float64).view(2, -1) for name, column in each.items()}  # [2, N]
    s, weights = found.pop("s"), (found["alignment"] / -2 + 1).div(0.5).exp()
    found["dclw"] = found.pop("rest") - (2 - weights / weights.mean(1, keepdim=True)) * s / t
    found["align_uniform"] = found.pop("alignment") + found.pop("uniformity").mean(1, keepdim=True).log()
    rotation, sample = SWD().draw(raw[..., 0].numel(), raw)
    sorted_rows = [(x @ rotation).sort(0).values for x in (raw.flatten(0, 1), sample)]
    found["swd"] = (raw[0] - raw[1]).square().mean() / 2 + 5 * (sorted_rows[0] - sorted_rows[1]).square().mean()
    return {name: float(value.mean()) for name, value in found.items()}


def lightly_macl(z1: Tensor, z2: Tensor) -> Tensor:
    from lightly.loss import MACLLoss

    value: Tensor = MACLLoss(temperature=TAU)(z1, z2)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(environment(["lightly"], device))
    print(f"\nN = {arguments.images} images, D = {WIDTH}, tau = {TAU}, {arguments.rounds} rounds")
    small, full = partial(make_views, SMALL, device), partial(make_views, arguments.images, device)
    names = [BASE, *(name for name in options.names("loss") if name != BASE)]
    # Evaluation mode: random draws stay those of the first step.
    contenders: dict[str, Contender] = {name: ssl_bench.PairLoss(name, TAU).eval() for name in names}
    contenders |= {f"lightly {name}": partial(lightly, name=name) for name in ("NT-Xent", "DCL", "DCLW")}
    contenders["lightly MACL"] = lightly_macl
    _, missing = try_each({name: partial(step, contender, small()) for name, contender in contenders.items()})
    contenders = {name: contender for name, contender in contenders.items() if name not in missing}
    views = full()
    expected = naive(views)

    def value(name: str) -> str:
        return f"{float(contenders[name](*views).detach()):.5f}"

    def apart(name: str, dtype: torch.dtype) -> str:
        if name not in expected or (name == "swd" and dtype == torch.float32):
            return "-"
        found = float(contenders[name](*(z.detach().to(dtype) for z in views)))
        return f"{abs(found / expected[name] - 1):.1e}"

    def extra(name: str) -> str:
        return f"{extra_megabytes(partial(step, contenders[name]), small, full, device):.0f}"

    columns: dict[str, Callable[[str], str]] = {"value": value, "apart f32": partial(apart, dtype=torch.float32)}
    columns |= {"apart f64": partial(apart, dtype=torch.float64), "extra MB": extra}
    calls = {name: partial(step, contender, views) for name, contender in contenders.items()}
    times = alternate(calls, arguments.rounds)
    print_table({name: spent.wall for name, spent in times.items()}, BASE, "ms", 1e3, columns, missing)


if __name__ == "__main__":
    main()
