"""Compare time and memory of kNN with scikit-learn, lightly and faiss on random features, and measure the linear probe.

    python scripts/benchmark_evaluate.py                         # everything, about 10 minutes on two cores
    python scripts/benchmark_evaluate.py --only knn --rounds 7

Packages that are not installed are left out of the comparison. A separate environment for the alternatives:

    python -m venv .venv-benchmark
    .venv-benchmark/bin/pip install -e . lightly faiss-cpu
    OMP_WAIT_POLICY=PASSIVE .venv-benchmark/bin/python scripts/benchmark_evaluate.py

On a processor with AVX-512, these variables keep every contender to AVX2:

    export ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
    export FAISS_SIMD_LEVEL=AVX2 OPENBLAS_CORETYPE=Haswell

Every round runs each contender once, in turns, so that a busy machine slows all of them. The table has wall seconds,
the ratio of the fastest rounds to ours, and the peak memory of a new process beyond its inputs and a small first call.
"torch.matmul alone" multiplies matrices of the same size in blocks and drops the products: a kNN can be faster only
with a faster product, such as the convolution that ours uses.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timing import alternate, environment, extra_megabytes, print_table, try_each
from torch import Tensor

from ssl_bench.evaluate.knn import knn_predict
from ssl_bench.evaluate.linear import LinearProbe
from ssl_bench.hardware import local_device

Data = tuple[Tensor, Tensor, Tensor]  # queries [Q, D], bank [N, D], labels [N]
CLASSES, TEMPERATURE, SMALL = 10, 0.1, 500


def make_data(queries: int, bank: int, width: int) -> Data:
    """Features in ten overlapping Gaussian clusters."""
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
    classifier = KNeighborsClassifier(k, metric="cosine", weights=weights, algorithm="brute")
    return torch.from_numpy(classifier.fit(bank, labels).predict(queries))


def knn_lightly(data: Data, k: int) -> Any:
    from lightly.utils.benchmarking.knn import knn_predict as predict

    queries, bank, labels = data
    bank_t = F.normalize(bank, dim=1).T.contiguous()
    parts = F.normalize(queries, dim=1).split(512)  # it stores the product with all queries of a call
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


def product_alone(data: Data, k: int) -> Any:
    queries, bank, _ = data
    for some_entries in bank.split(4096):
        for some_queries in queries.split(1024):
            torch.matmul(some_entries, some_queries.T)


def linear_ours(data: Data, epochs: int, rates: list[float], together: bool) -> Any:
    (_, features, labels), probe = data, LinearProbe(epochs=epochs)
    grid, every = [(rate, 0.0) for rate in rates], torch.arange(len(data[1]))
    for settings in [grid] if together else [[setting] for setting in grid]:
        probe.fit(features, labels, settings, CLASSES, torch.Generator().manual_seed(0), every)


def compare(
    title: str, contenders: Mapping[str, Callable[[Data], Any]], arguments: argparse.Namespace, predicts: bool
) -> None:
    """Print a table of the contenders, ours first; where they predict, with the share of predictions equal to ours."""
    full = partial(make_data, arguments.queries, arguments.bank, arguments.width)
    small = partial(make_data, min(SMALL, arguments.queries), min(SMALL, arguments.bank), arguments.width)
    tried, missing = try_each({name: partial(contender, small()) for name, contender in contenders.items()})
    data = full()
    answers: dict[str, Any] = {}

    def answer(name: str) -> None:
        answers[name] = contenders[name](data)

    times = alternate({name: partial(answer, name) for name in tried}, arguments.rounds, warm_up=0)
    ours = next(iter(times))
    columns = {"extra MB": lambda name: f"{extra_megabytes(contenders[name], small, full):.0f}"}
    if predicts:
        columns["agreement"] = lambda name: (
            "" if answers[name] is None else f"{(answers[name] == answers[ours]).double().mean():.2%}"
        )
    print(f"\n{title}")
    seconds = {name: spent.wall for name, spent in times.items()}
    print_table(seconds, ours, "s", 1, columns, missing, typical=min)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["knn", "linear"])
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--bank", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--k", type=int, default=200, help=f"at most {SMALL}")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    local_device(0)  # as runs do: on Linux, freed memory stays with the process
    torch.set_num_threads(arguments.threads)
    print(environment(["numpy", "scikit-learn", "lightly", "faiss-cpu"]))
    size = f"{arguments.bank} x {arguments.width}"
    if arguments.only != "linear":
        each = {"ssl_bench": knn_ours, "scikit-learn": knn_scikit_learn, "lightly": knn_lightly, "faiss": knn_faiss}
        each["torch.matmul alone"] = product_alone
        contenders = {name: partial(knn, k=arguments.k) for name, knn in each.items()}
        title = f"kNN: {arguments.queries} queries, bank {size}, k = {arguments.k}"
        compare(title, contenders, arguments, predicts=True)
    if arguments.only != "knn":
        eight = [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
        epochs = arguments.epochs
        contenders = {
            "ssl_bench, 1 rate": partial(linear_ours, epochs=epochs, rates=eight[:1], together=True),
            "8 rates at once": partial(linear_ours, epochs=epochs, rates=eight, together=True),
            "8 rates one by one": partial(linear_ours, epochs=epochs, rates=eight, together=False),
        }
        compare(f"linear probe: {size}, {epochs} epochs, batch 512", contenders, arguments, predicts=False)


if __name__ == "__main__":
    main()
