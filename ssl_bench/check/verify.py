"""``ssl-bench verify`` asks four questions about a finished run.

    identity   is its directory, and are its files, of the run_id that its configuration has?
    start      do its first steps, from the weights that the seed gives, have the recorded losses?
    end        do its last steps, from the state before them, have the recorded losses, and give its last weights?
    results    do its last weights have the recorded numbers?

An answer is good, wrong, or skipped: the question cannot be answered. A run is verified if all four answers are good.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ssl_bench.check import rounding
from ssl_bench.check.answer import Answer, Verdict
from ssl_bench.check.recorded import Recorded, State
from ssl_bench.check.replayed import Replay, Trained
from ssl_bench.disk import temporary
from ssl_bench.errors import RunError
from ssl_bench.record import hits
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
        yield begun
        ended = end(run, replay, begun)
        yield ended
        compared = [answer.values["same_bits"] for answer in (begun, ended) if "same_bits" in answer.values]
        yield results(run, replay, same_bits=compared != [] and all(compared))


# ---- identity


def identity(run: Recorded) -> Answer:
    """The run_id of the configuration, beside those of the directory, the results and the checkpoints."""
    right = run.ids["the configuration in results.json"]
    others = [f"{what} is of {run_id}" for what, run_id in run.ids.items() if run_id != right]
    if others:
        return Answer("identity", f"{'; '.join(others)}; and the configuration of {right}", Verdict.WRONG)
    return Answer("identity", f"{right} everywhere, as the configuration gives it", Verdict.GOOD)


# ---- start and end


def start(run: Recorded, replay: Replay) -> Answer:
    """The steps to the first row of ``metrics.jsonl``, and at least TAIL, from the weights that the seed gives."""
    first = min(run.losses, default=1)
    return steps("start", run, replay, replay.initial, min(max(TAIL, first), replay.last_step), first)


def end(run: Recorded, replay: Replay, begun: Answer) -> Answer:
    """The steps from ``previous.pt`` to ``last.pt``; those of ``begun`` if they are all steps of the training."""
    last, before = (run.states.get(name) for name in ("last.pt", "previous.pt"))
    if last is None:
        return Answer("end", run.unread["last.pt"], Verdict.SKIPPED)
    if last["step"] != replay.last_step:
        words = f"last.pt is of step {last['step']}, and the configuration ends at step {replay.last_step}"
        return Answer("end", words, Verdict.WRONG)
    if begun.values.get("stop") == replay.last_step:
        return Answer("end", "there are no steps but those of start", begun.verdict, values=begun.values)
    if before is None or not 0 <= before["step"] < last["step"]:
        why = run.unread.get("previous.pt", "previous.pt is no earlier state")
        why = "ssl-bench prune has removed previous.pt" if last.get("pruned") else why
        return Answer("end", f"the last steps cannot be trained again: {why}", Verdict.SKIPPED)
    groups = {"param_groups": replay.initial["optimizer"]["param_groups"]}  # rates and decay are the configuration's
    begin = before | {"optimizer": before["optimizer"] | groups}
    return steps("end", run, replay, begin, last["step"], run.config["log_every"])


def steps(name: str, run: Recorded, replay: Replay, begin: State, stop: int, log_every: int) -> Answer:
    """Train from a state to the step ``stop``, and compare the losses, and the weights if the run ended there.

    The answer's values are ``stop`` and, if something was compared, whether all of it has the ``same_bits``.
    """
    window = f"steps {begin['step'] + 1} to {stop}"
    try:
        again = replay.train(name, begin, stop, log_every)
    except RunError as error:
        return Answer(name, f"{window} cannot be trained again: {error}", Verdict.WRONG)
    losses = comparable_losses(run, begin, again)
    last = run.states.get("last.pt", {})
    weights = last["method"] if last.get("step") == stop else None
    if not losses and weights is None:
        return Answer(name, f"{window}: no row of metrics.jsonl is of them", Verdict.SKIPPED)
    other_losses = [step for step, loss in losses.items() if loss != again.losses[step]]
    other_weights = weights is not None and not rounding.alike(weights, again.weights)
    if not other_losses and not other_weights:
        words = f"{window}: {len(losses)} losses{'' if weights is None else ' and all weights'} have the same bits"
        return Answer(name, words, Verdict.GOOD, values={"stop": stop, "same_bits": True})
    if weights is not None and not other_weights:
        pair = f"{losses[other_losses[0]]:.6g} recorded, {again.losses[other_losses[0]]:.6g} now"
        words = f"{window}: all weights have the same bits, and the loss of step {other_losses[0]} does not: {pair}"
        return Answer(name, words, Verdict.WRONG)
    noisy = replay.perturbed(begin)
    twin = replay.train(f"{name}-twin", noisy, stop, log_every)
    apart = [rounding.losses_apart(losses, again.losses, twin.losses)] if losses else []
    if weights is not None:
        states = begin["method"], noisy["method"]
        apart.append(rounding.weights_apart(weights, again.weights, twin.weights, *states, replay.parameters))
    verdict = Verdict.GOOD if all(part.within for part in apart) else Verdict.WRONG
    words = "; ".join(part.words for part in apart)
    return Answer(name, f"{window}: {words}", verdict, values={"stop": stop, "same_bits": False})


def comparable_losses(run: Recorded, begin: State, again: Trained) -> dict[int, float]:
    """The recorded losses by step, of those rows that are the mean over the same steps as a row that was found now."""

    def before(losses: Mapping[int, float]) -> dict[int, int]:
        """The step of each row, with that of the row before it."""
        after = [begin["step"], *sorted(step for step in losses if step > begin["step"])]
        return {step: former for former, step in pairwise(after)}

    recorded, now = before(run.losses), before(again.losses)
    if len(begin["ranks"]) != run.config["devices"] and begin["ranks"][0]["meter"][1]:
        now.pop(min(now), None)  # other ranks have no losses of the steps before
    return {step: run.losses[step] for step, former in now.items() if recorded.get(step) == former}


# ---- results

Key = tuple[str, str, str]  # of a number: id and network of its evaluation, and its name


def results(run: Recorded, replay: Replay, same_bits: bool) -> Answer:
    """All evaluations of ``last.pt``, computed again.

    Args:
        same_bits: the steps that were trained again have the same bits: then numbers must be equal, too.
    """
    last = run.states.get("last.pt")
    if last is None or last["step"] != replay.last_step:
        return Answer("results", "there is no last.pt of the last step", Verdict.SKIPPED)
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
    recorded, now = numbers(run.folder, entries), dict(numbers(folder, computed))
    if unmatched := [key[-1] for key, _ in recorded if key not in now]:
        return rounding.Apart(f"no evaluation gives {first_two(unmatched)}", False)
    different = {key: value for key, value in recorded if not equal(value, now[key])}
    if not different:
        return rounding.Apart(f"{len(recorded)} numbers are the same to the last bit", True)
    bounds = dict.fromkeys(different, 0.0)
    if not same_bits:
        some = [entry for entry in entries if (entry["id"], entry["network"]) in {key[:2] for key in different}]
        noisy = replay.perturbed(last, 1 / 16)  # nothing grows here from step to step
        twin = dict(numbers(*replay.evaluate("results-twin", noisy, some)))
        bounds = {
            key: rounding.number_bound(key[-1], now[key], twin.get(key, now[key]), tested(computed, key))
            for key in different
        }
    apart = {key: abs(value - now[key]) for key, value in different.items()}
    words = {
        key: f"{key[-1]}: {value:.6g} recorded, {now[key]:.6g} now, bound {bounds[key]:.1g}"
        for key, value in different.items()
    }
    if beyond := [words[key] for key in different if not apart[key] <= bounds[key]]:
        return rounding.Apart(first_two(beyond), False)
    farthest = max(different, key=lambda key: apart[key] / bounds[key])
    same = len(recorded) - len(different)
    return rounding.Apart(f"{same} of {len(recorded)} numbers are the same to the last bit; {words[farthest]}", True)


def tested(entries: Sequence[Entry], key: Key) -> int | None:
    """How many images a number is of, if its evaluation has counted them."""
    of_key = (entry for entry in entries if (entry["id"], entry["network"]) == key[:2])
    return next((counted["images"] for entry in of_key for counted in entry.get("hits", {}).values()), None)


def numbers(folder: Path, entries: Sequence[Entry]) -> list[tuple[Key, float]]:
    """The numbers of some entries; an accuracy with its images twice: as it stands, and as the bits of these say."""
    listed = []
    for entry in entries:
        for name, value in entry["metrics"].items():
            listed.append(((entry["id"], entry["network"], name), value))
        for name in entry.get("hits", ()):
            bits = hits.read(folder, entry, name)
            share = math.nan if bits is None else float(bits.mean())
            listed.append(((entry["id"], entry["network"], f"{name}{rounding.BY_IMAGES}"), share))
    return listed


def equal(one: float, other: float) -> bool:
    """Whether two numbers are equal; NaN equals NaN."""
    return one == other or (one != one and other != other)


def first_two(words: Sequence[str]) -> str:
    return "; ".join(words[:2]) + f"; {len(words) - 2} more" * (len(words) > 2)
