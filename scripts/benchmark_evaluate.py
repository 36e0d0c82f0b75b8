"""Seconds and memory of the evaluators beside scikit-learn, lightly and faiss on the same random features.

    python scripts/benchmark_evaluate.py                         # everything, about 10 minutes on two cores
    python scripts/benchmark_evaluate.py --only knn --rounds 7

What is not installed is left out of the comparison. An environment of its own for the alternatives:

    python -m venv .venv-benchmark
    .venv-benchmark/bin/pip install -e . lightly faiss-cpu
    OMP_WAIT_POLICY=PASSIVE .venv-benchmark/bin/python scripts/benchmark_evaluate.py

Every round runs each contender once, in turns, so that a busy machine is busy for all of them. Printed are the fastest
and the median round, the ratio of the fastest rounds to ours, and the peak memory of a fresh process above what its
inputs and a small first call had taken.
"""

import argparse
import platform
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.evaluate.knn import knn_predict
from ssl_bench.evaluate.linear import fit_linear

Data = tuple[Tensor, Tensor, Tensor]  # queries [Q, D], bank [N, D], labels [N]
CLASSES, TEMPERATURE, WARM_UP = 10, 0.1, 500


def make_data(queries: int, bank: int, width: int) -> Data:
    """Ten overlapping Gaussian clusters."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, width, generator=generator) / 4
    labels = torch.randint(0, CLASSES, (bank,), generator=generator)
    features = torch.randn(bank, width, generator=generator).add_(centres[labels])
    return torch.randn(queries, width, generator=generator), features, labels


def knn_ours(data: Data, k: int) -> Any:
    return knn_predict(*data, k=k, temperature=TEMPERATURE, num_classes=CLASSES)[:, 0]


def knn_scikit_learn(data: Data, k: int) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    def weights(distance: Any) -> Any:
        return torch.from_numpy(1 - distance).div_(TEMPERATURE).exp_().numpy()

    queries, bank, labels = (x.numpy() for x in data)
    peer = KNeighborsClassifier(k, metric="cosine", weights=weights, algorithm="brute")
    return torch.from_numpy(peer.fit(bank, labels).predict(queries))


def knn_lightly(data: Data, k: int) -> Any:
    from lightly.utils.benchmarking.knn import knn_predict as predict

    queries, bank, labels = data
    bank_t = F.normalize(bank, dim=1).T.contiguous()
    parts = F.normalize(queries, dim=1).split(512)  # it makes the dense product of what it is given
    ranking = [predict(q, bank_t, labels, num_classes=CLASSES, knn_k=k, knn_t=TEMPERATURE) for q in parts]
    return torch.cat(ranking)[:, 0]


def knn_faiss(data: Data, k: int) -> Any:
    import faiss

    queries, bank, labels = data
    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(bank.shape[1])
    index.add(F.normalize(bank, dim=1).numpy())
    cosines, nearest = map(torch.from_numpy, index.search(F.normalize(queries, dim=1).numpy(), k))
    scores = torch.zeros(len(queries), CLASSES).scatter_add_(1, labels[nearest], (cosines / TEMPERATURE).exp())
    return scores.argmax(1)


def linear_ours(data: Data, epochs: int, rates: list[float], together: bool) -> Any:
    settings: Any = {"epochs": epochs, "batch_size": 512, "momentum": 0.9, "weight_decay": 0.0}
    _, features, labels = data
    for lrs in [rates] if together else [[rate] for rate in rates]:
        generator = torch.Generator().manual_seed(0)
        fit_linear(features, labels, lrs, num_classes=CLASSES, generator=generator, **settings)


def linear_scikit_learn(data: Data, epochs: int) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    _, features, labels = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        LogisticRegression(max_iter=epochs).fit(features.numpy(), labels.numpy())


def linear_loader(data: Data, epochs: int) -> Any:
    """The usual loop: DataLoader, autograd, torch's SGD."""
    _, features, labels = data
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, labels), batch_size=512, shuffle=True)
    layer = torch.nn.Linear(features.shape[1], CLASSES)
    optimizer = torch.optim.SGD(layer.parameters(), 0.01, momentum=0.9)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(layer(x), y).backward()
            optimizer.step()


def importable(contender: Callable[..., Any], data: Data) -> bool:
    """Tries a contender on a few rows, which also loads what it needs."""
    try:
        contender(tuple(x[:WARM_UP] for x in data))
    except ImportError:
        return False
    return True


def peak_megabytes(restart: bool = False) -> float:
    """The most memory this process has held, on Linux since the last restart."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if restart:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM"))


def extra_memory(contender: Callable[..., Any], sizes: tuple[int, int, int], threads: int) -> float:
    torch.set_num_threads(threads)
    data = make_data(*sizes)
    importable(contender, data)
    before = peak_megabytes(restart=True)
    contender(data)
    return peak_megabytes() - before


def compare(
    title: str, contenders: Mapping[str, Callable[..., Any]], arguments: argparse.Namespace, agree: bool
) -> None:
    """The first contender is ours. `agree`: they predict, and how often they predict the same is printed."""
    sizes = (arguments.queries, arguments.bank, arguments.width)
    data = make_data(*sizes)
    present = {name: contender for name, contender in contenders.items() if importable(contender, data)}
    seconds: dict[str, list[float]] = {name: [] for name in present}
    answers: dict[str, Any] = {}
    for _ in range(arguments.rounds):
        for name, contender in present.items():
            start = time.perf_counter()
            answers[name] = contender(data)
            seconds[name].append(time.perf_counter() - start)
    print(f"\n{title}\n{'':26}{'fastest s':>10}{'median s':>10}{'ratio':>8}{'extra MB':>10}{'agreement':>11}")
    ours = next(iter(seconds))
    for name in contenders:
        if name not in present:
            print(f"{name:26}not installed")
            continue
        with get_context("spawn").Pool(1) as pool:
            memory = pool.apply(extra_memory, (present[name], sizes, torch.get_num_threads()))
        best, median = min(seconds[name]), statistics.median(seconds[name])
        same = f"{(answers[name] == answers[ours]).double().mean().item():11.2%}" if agree else ""
        print(f"{name:26}{best:10.2f}{median:10.2f}{best / min(seconds[ours]):8.2f}{memory:10.0f}{same}", flush=True)


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as lines:
            cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    found = [f"{platform.system()}, {cpu}, {torch.get_num_threads()} threads", f"python {platform.python_version()}"]
    for package in ("torch", "numpy", "scikit-learn", "lightly", "faiss-cpu"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed")
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["knn", "linear"])
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--bank", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--k", type=int, default=200, help=f"at most {WARM_UP}")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(machine())
    size = f"{arguments.bank} x {arguments.width}"
    if arguments.only != "linear":
        peers = {"ssl_bench": knn_ours, "scikit-learn": knn_scikit_learn, "lightly": knn_lightly, "faiss": knn_faiss}
        contenders = {name: partial(peer, k=arguments.k) for name, peer in peers.items()}
        compare(f"kNN: {arguments.queries} queries, bank {size}, k = {arguments.k}", contenders, arguments, agree=True)
    if arguments.only != "knn":
        eight = [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
        epochs = arguments.epochs
        contenders = {
            "ssl_bench, 1 rate": partial(linear_ours, epochs=epochs, rates=eight[:1], together=True),
            "8 rates at once": partial(linear_ours, epochs=epochs, rates=eight, together=True),
            "8 rates one by one": partial(linear_ours, epochs=epochs, rates=eight, together=False),
            "DataLoader, 1 rate": partial(linear_loader, epochs=epochs),
            "scikit-learn L-BFGS": partial(linear_scikit_learn, epochs=epochs),
        }
        compare(f"linear probe: {size}, {epochs} epochs, batch 512", contenders, arguments, agree=False)


if __name__ == "__main__":
    main()
