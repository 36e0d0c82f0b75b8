"""``ssl-bench verify`` asks four questions about a finished run.

    identity   is its directory, and are its files, of the run_id that its configuration has?
    start      do its first steps, from the weights that the seed gives, have the recorded losses?
    end        do its last steps, from the state before them, have the recorded losses, and give its last weights?
    results    do its last weights have the recorded numbers?

An answer is good, wrong, or skipped: the question cannot be answered. A run is verified if all four answers are good.
If the last steps have the same bits, it was trained on a machine like this one: then the rest must have them, too.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ssl_bench import files
from ssl_bench.check import rounding
from ssl_bench.check.answer import Answer, Verdict
from ssl_bench.check.recorded import Recorded, State
from ssl_bench.check.replayed import Replay, Trained
from ssl_bench.config.schema import directory
from ssl_bench.disk import temporary
from ssl_bench.errors import RunError
from ssl_bench.record import evaluations, hits
from ssl_bench.record.evaluations import Entry
from ssl_bench.training.engine import TAIL


def answers(folder: Path, changes: Mapping[str, Any]) -> Iterator[Answer]:
    """The answers to the four questions; ``changes`` of the configuration say how to carry it out, not what.

    Raises:
        ConfigError: there is no finished run, or it cannot be carried out on this machine.
    """
    run = Recorded(folder, changes)
    with temporary.folder() as scratch:
        replay = Replay(run, scratch)
        yield identity(run)
        begun = start(run, replay)
        ended = end(run, replay, begun)
        same_bits = ended.values.get("same_bits", False)
        if same_bits and begun.verdict is Verdict.GOOD and not begun.values["same_bits"]:
            why = "the last steps have the same bits: the first ones were trained elsewhere, or from other weights"
            begun = replace(begun, verdict=Verdict.SKIPPED, figure=f"{begun.figure}; {why}")
        yield begun
        yield ended
        yield results(run, replay, same_bits)


# ---- identity


def identity(run: Recorded) -> Answer:
    """The run_id of the configuration, beside those of the directory, the results and the checkpoints.

    The options by which tables name a run must have its classes.
    """
    right = run.ids["the configuration in results.json"]
    others = [f"{what} is of {run_id}" for what, run_id in run.ids.items() if run_id != right]
    if others:
        return Answer("identity", f"{'; '.join(others)}; and the configuration of {right}", Verdict.WRONG)
    for group, option in run.claimed["choices"].items():
        content: Any = files.read_yaml(directory() / group / f"{option}.yaml", dict, named=False) or {}
        nodes = content.get(group, content), run.claimed.get(group) or {}
        target, theirs = (str(node.get("_target_", "")).rpartition(".")[2] for node in nodes)
        if target and target != theirs:
            words = f"choices.{group}={option} is {target}, and the run has {theirs or 'none'}"
            return Answer("identity", words, Verdict.WRONG)
    return Answer("identity", f"{right} everywhere, as the configuration gives it", Verdict.GOOD)


# ---- start and end


def start(run: Recorded, replay: Replay) -> Answer:
    """The steps to the first row of ``metrics.jsonl``, and at least TAIL, from the weights that the seed gives."""
    stop = max(TAIL, min(run.losses, default=1))
    return steps("start", run, replay, replay.initial, min(stop, replay.last_step))


def end(run: Recorded, replay: Replay, begun: Answer) -> Answer:
    """The steps from ``previous.pt`` to ``last.pt``; those of ``begun`` if they are all steps of the training."""
    last, before = (run.states.get(name) for name in ("last.pt", "previous.pt"))
    if last is None:
        return Answer("end", run.unread["last.pt"], Verdict.SKIPPED)
    if last["step"] != replay.last_step:
        words = f"last.pt is of step {last['step']}, and the configuration ends at step {replay.last_step}"
        return Answer("end", words, Verdict.WRONG)
    all_compared = begun.values.get("same_bits") or replay.last_step <= TAIL
    if all_compared and begun.values.get("stop") == replay.last_step:
        return Answer("end", "there are no steps but those of start", begun.verdict, values=begun.values)
    if before is None or not 0 <= before["step"] < last["step"]:
        why = run.unread.get("previous.pt", "previous.pt is no earlier state")
        why = "ssl-bench prune has removed previous.pt" if last.get("pruned") else why
        return Answer("end", f"the last steps cannot be trained again: {why}", Verdict.SKIPPED)
    groups = {"param_groups": replay.initial["optimizer"]["param_groups"]}  # rates and decay are the configuration's
    begin = before | {"optimizer": before["optimizer"] | groups}
    return steps("end", run, replay, begin, last["step"])


def steps(name: str, run: Recorded, replay: Replay, begin: State, stop: int) -> Answer:
    """Train from a state to the step ``stop``, and compare the losses, and the weights if the run ended there.

    After many first steps rounding alone may have changed the weights altogether: those of ``end`` then tell.

    The answer's values are ``stop`` and, if something was compared, whether all of it has the ``same_bits``.
    """
    window = f"steps {begin['step'] + 1} to {stop}"
    try:
        again = replay.train(name, begin, stop)
    except RunError as error:
        return Answer(name, f"{window} cannot be trained again: {error}", Verdict.WRONG)
    losses = means(run, begin, again)
    recorded = {step: run.losses[step] for step in losses}
    last = run.states.get("last.pt", {})
    weights = last["method"] if last.get("step") == stop else None
    if not losses and weights is None:
        return Answer(name, f"{window}: no row of metrics.jsonl is of them", Verdict.SKIPPED)
    other_losses = [step for step, loss in losses.items() if not math.isclose(loss, recorded[step], rel_tol=1e-12)]
    other_weights = weights is not None and not rounding.alike(weights, again.weights)
    if not other_losses and not other_weights:
        words = f"{window}: {len(losses)} losses{'' if weights is None else ' and all weights'} have the same bits"
        return Answer(name, words, Verdict.GOOD, values={"stop": stop, "same_bits": True})
    if weights is not None and not other_weights:
        pair = f"{recorded[other_losses[0]]:.6g} recorded, {losses[other_losses[0]]:.6g} now"
        words = f"{window}: all weights have the same bits, and the loss of step {other_losses[0]} does not: {pair}"
        return Answer(name, words, Verdict.WRONG)
    noisy = replay.perturbed(begin)
    twin = replay.train(f"{name}-twin", noisy, stop)
    apart = [rounding.losses_apart(recorded, losses, means(run, begin, twin))] if losses else []
    if weights is not None and (name == "end" or stop <= TAIL):
        states = begin["method"], noisy["method"]
        apart.append(rounding.weights_apart(weights, again.weights, twin.weights, *states, replay.parameters))
    verdict = Verdict.GOOD if all(part.within for part in apart) else Verdict.WRONG
    words = "; ".join(part.words for part in apart)
    return Answer(name, f"{window}: {words}", verdict, values={"stop": stop, "same_bits": False})


def means(run: Recorded, begin: State, again: Trained) -> dict[int, float]:
    """The losses of steps that were trained ``again``, as the recorded rows have them: means since the row before.

    A row that began before the state ``begin`` goes on from the losses that this has; on another number of ranks,
    which has none of them, the row is left out.
    """
    first, before = begin["step"], int(begin["ranks"][0]["meter"][1])  # steps whose losses the first mean has, too
    kept = len(begin["ranks"]) == run.config["devices"]
    counts = dict.fromkeys(again.losses, 1) | {first + 1: 1 + before * kept}

    def mean(steps: range) -> float:
        return math.fsum(again.losses[step] * counts[step] for step in steps) / sum(counts[step] for step in steps)

    ends = [first, *(step for step in run.losses if first < step <= max(again.losses))]
    rows = list(pairwise(ends))[before > 0 and not kept :]
    return {step: mean(range(former + 1, step + 1)) for former, step in rows}


# ---- results

Key = tuple[str, str, str]  # of a number: id and network of its evaluation, and its name


def results(run: Recorded, replay: Replay, same_bits: bool) -> Answer:
    """All evaluations of ``last.pt``, computed again.

    Args:
        same_bits: the last steps, trained again, have the same bits: then numbers must be equal, too.
    """
    last = run.states.get("last.pt")
    if last is None or last["step"] != replay.last_step:
        return Answer("results", "there is no last.pt of the last step", Verdict.SKIPPED)
    if missing := evaluations.missing(run.entries, run.config):
        words = ", ".join(sorted({f"{entry['evaluator']}{entry['network']}" for entry in missing}))
        return Answer("results", f"no numbers of {words}, for which the configuration asks", Verdict.SKIPPED)
    if not run.entries:
        return Answer("results", "the run has no evaluation", Verdict.GOOD)
    entries = [entry for entry in run.entries if entry["epochs"] == run.config["epochs"]]
    try:
        apart = numbers_apart(run, replay, last, entries, same_bits)
    except RunError as error:
        return Answer("results", f"last.pt cannot be evaluated: {error}", Verdict.WRONG)
    if not apart.within:
        return Answer("results", apart.words, Verdict.WRONG)
    if left := len(run.entries) - len(entries):
        words = f"{apart.words}; {left} evaluations are of other epochs, whose weights are gone"
        return Answer("results", words, Verdict.SKIPPED)
    return Answer("results", apart.words, Verdict.GOOD)


def numbers_apart(
    run: Recorded, replay: Replay, last: State, entries: Sequence[Entry], same_bits: bool
) -> rounding.Apart:
    """Compute the evaluations of some entries again, and compare all numbers."""
    folder, computed = replay.evaluate("results", last, entries)
    made = {(entry["id"], entry["network"]) for entry in entries}
    recorded = numbers(run.folder, entries)
    now = {key: value for key, value in numbers(folder, computed) if key[:2] in made}
    if unmatched := sorted({key[-1] for key in now.keys() ^ {key for key, _ in recorded}}):
        return rounding.Apart(f"{first_two(unmatched)} only recorded, or only now", False)
    different = [(key, value) for key, value in recorded if not np.array_equal(value, now[key], equal_nan=True)]
    if not different:
        return rounding.Apart(f"{len(recorded)} numbers are the same to the last bit", True)
    twin = dict[Key, np.ndarray]()
    if not same_bits:
        other = {key[:2] for key, _ in different}
        some = [entry for entry in entries if (entry["id"], entry["network"]) in other]
        noisy = replay.perturbed(last, 1 / 16)  # nothing grows here from step to step
        twin = dict(numbers(*replay.evaluate("results-twin", noisy, some)))
    shares, words = list[float](), list[str]()
    for key, value in different:
        of_images = (right for other, right in now.items() if other[:2] == key[:2] and rounding.BY_IMAGES in other[2])
        noise, images = distance(twin.get(key, now[key]), now[key]), next(map(len, of_images), None)
        bound = 0.0 if same_bits else rounding.number_bound(key[-1], float(now[key].mean()), noise, images)
        apart = distance(value, now[key])
        shares.append(apart / bound if bound else math.inf)
        pair = f"{value.mean():.6g} recorded, {now[key].mean():.6g} now"
        words.append(f"{key[-1]}: {pair}, {apart:.1g} apart, bound {bound:.1g}")
    if beyond := [text for share, text in zip(shares, words, strict=True) if not share <= 1]:
        return rounding.Apart(first_two(beyond), False)
    same = len(recorded) - len(different)
    farthest = words[shares.index(max(shares))]
    return rounding.Apart(f"{same} of {len(recorded)} numbers are the same to the last bit; {farthest}", True)


def numbers(folder: Path, entries: Sequence[Entry]) -> list[tuple[Key, np.ndarray]]:
    """The numbers of some entries [1], and beside an accuracy with its images which of these were right [M]."""
    listed = []
    for entry in entries:
        for name, value in entry["metrics"].items():
            listed.append(((entry["id"], entry["network"], name), np.array([value], dtype=float)))
        for name in entry.get("hits", ()):
            bits = hits.read(folder, entry, name)
            right = np.array([math.nan]) if bits is None else bits.astype(float)
            listed.append(((entry["id"], entry["network"], f"{name}{rounding.BY_IMAGES}"), right))
    return listed


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """How far two numbers are apart; of images the share that is right in one of two alone."""
    return float(abs(one - other).mean()) if one.shape == other.shape else math.inf


def first_two(words: Sequence[str]) -> str:
    return "; ".join(words[:2]) + f"; {len(words) - 2} more" * (len(words) > 2)
