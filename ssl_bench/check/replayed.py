"""Train steps of a finished run again from its own states, evaluate its network again, and compare.

What has other bits is computed once more from weights that differ by NOISE: how far this ``twin`` goes is what rounding
does to this run, and ROOM times as much is the bound, up to LIMIT. In float32 the losses of the first steps of a
training can go ten times as far with each step; those whose bound would be above LIMIT are not compared.
"""

import copy
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.check.finding import Finding, Verdict
from ssl_bench.check.recorded import Recorded, finding
from ssl_bench.config import schema
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.evaluate.metric import ACCURACIES, declared
from ssl_bench.hardware import local_device
from ssl_bench.launch import ranks
from ssl_bench.record import checkpoint, evaluations, results
from ssl_bench.record.evaluations import Entry
from ssl_bench.training.engine import TAIL, Training
from ssl_bench.training.parts import Parts

FARTHEST = 100  # steps until the first row of metrics
ROOM, FLOOR = 10.0, 1e-4  # times the twin's difference, and the least bound
LIMIT = {"loss": 0.2, "weights": 0.1}  # the largest bounds: of a loss, relative; of weights, as a share of their change
IMAGES, SHARE, LEAST = 2, 0.002, 1e-3  # bounds of an accuracy: test images, or a share of them; of others, relative
NOTHING: dict[str, Any] = {"every": 0, "watch": 0, "baselines": [], "on": None}  # below evaluate
NOISE = {"fp64": 2.0**-46, "fp32": 2.0**-15, "fp16": 2.0**-11, "bf16": 2.0**-9}  # relative, of the twin's weights
Weights = Mapping[str, Any]
NONE: Weights = {}
Rows = Mapping[int, Mapping[str, Any]]


def checks(folder: Path, changes: Mapping[str, Any]) -> Iterator[Finding]:
    """All that can be found out about a finished run; ``changes`` of its configuration say how, not what.

    Raises:
        ConfigError: there is no finished run, or it cannot be carried out on this machine.
    """
    run = Recorded(folder, changes)
    with tempfile.TemporaryDirectory(prefix="ssl-bench-", ignore_cleanup_errors=True) as scratch:
        Parts(run.config).validate(run.config["devices"])
        training = Training(run.config, run.name, Path(scratch), local_device(0, run.config["device"]))
        end = training.schedule.last_step
        yield finding("identity", run.identity(), f"{run.name} everywhere, as config.yaml gives it")
        yield finding("config", run.configuration(), "the same in results.json, images and plugins as they are here")
        yield finding("steps", run.steps(training), f"{end} of them, settings of the optimiser as in config.yaml")
        yield finding("metrics", run.metrics(training), f"{len(run.results['metrics'])} are the same wherever they are")
        rows = f"{len(run.losses)} rows have the epochs, learning rates and temperatures of config.yaml"
        yield finding("schedule", run.schedule(training), rows)
        replay = Replay(run, training, Path(scratch))
        yield replay.start()
        yield replay.end()
        evaluated, facts = replay.evaluations()
        yield evaluated
        yield finding(
            "facts", run.facts(facts), f"{len(facts)} are the same, such as {facts.get('parameters')} weights"
        )


class Replay:
    """Carries out parts of a run again, in a folder of its own.

    Args:
        run: as it is recorded.
        training: its objects, as they are before its first step.
        scratch: an empty folder.
    """

    def __init__(self, run: Recorded, training: Training, scratch: Path) -> None:
        self.run, self.training, self.scratch = run, training, scratch
        self.parameters = dict(training.state.method.named_parameters()).keys()
        self.initial = self._initial()

    def _initial(self) -> dict[str, Any]:
        self.training.state.save(self.scratch / "initial", self.run.name, self.training.schedule.lr_at)
        return checkpoint.read(self.scratch / "initial" / "checkpoints" / "last.pt")

    # ---- steps

    def start(self) -> Finding:
        """The first steps, from the initialisation that the seed gives."""
        first, end = min(self.run.losses, default=1), self.training.schedule.last_step
        stop = min(max(TAIL, first), FARTHEST, end)
        return self._steps("start", self.initial, stop, first if first <= FARTHEST else 1, fresh=True)

    def end(self) -> Finding:
        """The last steps, from the state before the last one."""
        last, before = (self.run.states.get(name) for name in ("last.pt", "previous.pt"))
        if last is None:
            return Finding("end", self.run.unread["last.pt"], Verdict.WRONG)
        if before is None or not 0 <= before["step"] < last["step"]:
            if self.training.schedule.last_step <= TAIL:
                return Finding("end", "the run has no more steps than those from the start", Verdict.SKIPPED)
            why = self.run.unread.get("previous.pt", "previous.pt is no earlier state")
            why = "ssl-bench prune has removed previous.pt" if last.get("pruned") else why
            return Finding("end", f"the last steps cannot be trained again: {why}", Verdict.WRONG)
        groups = {"param_groups": self.initial["optimizer"]["param_groups"]}  # rates, decay, momentum of config.yaml
        before = before | {"optimizer": before["optimizer"] | groups}
        return self._steps("end", before, last["step"], self.run.config["log_every"])

    def _steps(self, name: str, state: dict[str, Any], stop: int, log_every: int, fresh: bool = False) -> Finding:
        """Train from a state to the step ``stop``, and compare the losses, and the weights if the run ended there."""
        begin, window = state["step"], f"steps {state['step'] + 1} to {stop}"
        try:
            rows, weights = self._train(name, None if fresh else state, stop, log_every)
        except RunError as error:
            return Finding(name, f"{window} cannot be trained again: {error}", Verdict.WRONG)
        ours, theirs = _intervals(rows, begin), _intervals(self.run.losses, begin)
        if len(state["ranks"]) != self.run.config["devices"] and state["ranks"][0]["meter"][1]:
            ours.pop(min(ours), None)  # other ranks have no losses of the steps before
        recorded = {step: self.run.losses[step] for step in ours if ours[step] == theirs.get(step)}
        last = self.run.states.get("last.pt", {})
        ends = last["method"] if last.get("step") == stop else None
        if not recorded and ends is None:
            return Finding(name, f"{window}: no row of metrics.jsonl is of them", Verdict.SKIPPED)
        different = {s: difference(rows[s]["loss"], row["loss"]) for s, row in recorded.items()}
        same = sum(rows[s]["loss"] == row["loss"] for s, row in recorded.items())
        equal = ends is None or alike(weights, ends)
        if same == len(recorded) and equal:
            what = f"{len(recorded)} losses{' and all weights' * (ends is not None)}"
            return Finding(name, f"{window}: {what} have the same bits", Verdict.GOOD)
        if equal and ends is not None:
            step = next(s for s, row in recorded.items() if rows[s]["loss"] != row["loss"])
            pair = f"{recorded[step]['loss']:.6g} recorded, {rows[step]['loss']:.6g} found"
            words = f"all weights have the same bits, and the loss of step {step} does not: {pair}"
            return Finding(name, f"{window}: {words}", Verdict.WRONG)
        noisy, noise = self._perturbed(state)
        twin_rows, twin = self._train(f"{name}-twin", noisy, stop, log_every)
        told, wrong, room, far = 0, "", FLOOR, 0.0
        for step, apart in different.items():
            room = max(room, ROOM * difference(twin_rows[step]["loss"], rows[step]["loss"]))
            if told and room > LIMIT["loss"]:
                break
            told, far, bound = told + 1, max(far, apart), min(room, LIMIT["loss"])
            if not apart <= bound:
                pair = f"{recorded[step]['loss']:.6g} recorded, {rows[step]['loss']:.6g} found"
                wrong = f"the loss of step {step} is {pair}, {apart:.1e} apart, bound {bound:.1e}"
                break
        found = [wrong or f"losses of {told} rows at most {far:.1e} apart, bound {bound:.1e}"] if told else []
        if told < len(recorded) and not wrong:
            found.append(f"{len(recorded) - told} rows not compared, which rounding alone changes too much")
        if ends is not None:
            far, bound = self._apart(weights, ends, twin, state["method"], noise)
            found.append(f"weights {far:.1e} of their change apart, bound {bound:.1e}")
            wrong = wrong or found[-1] * (not far <= bound)
        return Finding(name, f"{window}: {'; '.join(found)}", Verdict.WRONG if wrong else Verdict.GOOD)

    def _train(self, name: str, state: dict[str, Any] | None, stop: int, log_every: int) -> tuple[Rows, Weights]:
        """The rows and the networks of a training from a state to the step ``stop``."""
        settings = {"max_steps": stop, "log_every": log_every, "evaluate": NOTHING}
        folder = self._launch(name, state, self.run.config | settings)
        rows = {row["step"]: row for row in files.read_json_lines(folder / "metrics.jsonl") if "loss" in row}
        return rows, checkpoint.read(folder / "checkpoints" / "last.pt")["method"]

    def _launch(self, name: str, state: dict[str, Any] | None, config: dict[str, Any]) -> Path:
        """Carry out a configuration from a state; return the folder.

        Raises:
            ConfigError, RunError: it cannot be carried out.
            SystemExit: a signal stopped it.
        """
        folder = self.scratch / name / self.run.name
        if state is not None and not (folder / "checkpoints").exists():
            checkpoint.save(folder / "checkpoints", state | {"run_id": self.run.name})
        config = config | {"pictures": False, "paths": config["paths"] | {"outputs": str(self.scratch / name)}}
        outcome = ranks.launch(config, self.run.name, folder, "ssl-bench verify", separate=True, quiet=True)
        if outcome.code > 128:
            raise SystemExit(outcome.code)
        if not outcome.finished:
            raise (ConfigError if outcome.code == ConfigError.exit_code else RunError)(outcome.reason)
        return folder

    def _perturbed(self, state: dict[str, Any], share: float = 1.0) -> tuple[dict[str, Any], Weights]:
        """A state whose weights differ by a share of NOISE, and by how much."""
        generator, method, noise = torch.Generator().manual_seed(0), dict(state["method"]), dict[str, Tensor]()
        precision, config = self.training.precision.name, self.run.config
        tf32 = precision == "fp32" and config["tf32"] and self.training.device.type == "cuda"
        size = share * NOISE["fp16" if tf32 else precision]
        for name in sorted(self.parameters):
            weight = method[name]
            method[name] = weight + size * weight * torch.randn(weight.shape, generator=generator).to(weight.dtype)
            noise[name] = method[name] - weight
        return copy.copy(state) | {"method": method}, noise

    def _apart(
        self, found: Weights, recorded: Weights, twin: Weights, before: Weights, noise: Weights
    ) -> tuple[float, float]:
        """How far the recorded weights are from those found, as a share of their change, and the bound.

        The trained weights count together; a buffer, such as the statistics of a batch norm, counts by itself.
        """
        numbers = {n: v for n, v in found.items() if isinstance(v, Tensor) and v.is_floating_point()}
        if any(value.shape != getattr(recorded.get(name), "shape", None) for name, value in numbers.items()):
            return math.inf, 0.0

        def apart(one: Weights, other: Weights, names: Iterable[str], less: Weights = NONE) -> float:
            """The norm of the difference of some tensors."""
            pairs = ((one[n].double() - other[n].double() - (less[n].double() if n in less else 0.0)) for n in names)
            return math.hypot(*(float(each.norm()) for each in pairs))

        far, room = list[float](), list[float]()
        for names in (sorted(self.parameters), *([name] for name in numbers.keys() - self.parameters)):
            least = 1e-3 * math.hypot(*(float(numbers[n].norm()) for n in names)) if len(names) == 1 else 0.0
            scale = max(apart(numbers, before, names), least, 1e-12)
            far.append(apart(numbers, recorded, names) / scale)
            room.append(apart(twin, numbers, names, noise) / scale)
        bounds = [min(LIMIT["weights"], FLOOR + ROOM * each) for each in room]
        worst = max(range(len(far)), key=lambda i: far[i] / bounds[i])
        return far[worst], bounds[worst]

    # ---- evaluations

    def evaluations(self) -> tuple[Finding, Mapping[str, Any]]:
        """All evaluations of the last checkpoint, and the facts of the run."""
        epochs = self.run.config["epochs"]
        entries = [entry for entry in self.run.entries if entry["epochs"] == epochs]
        state = self.run.states.get("last.pt")
        if state is None:
            return Finding("results", self.run.unread["last.pt"], Verdict.WRONG), {}
        try:
            found, facts = self._evaluated("results", state, entries)
        except RunError as error:
            return Finding("results", f"the checkpoint cannot be evaluated: {error}", Verdict.WRONG), {}
        pairs = list(_pairs(entries, found))
        different = [(entry, name) for entry, name, told, now in pairs if not same(told, now)]
        left = len(self.run.entries) - len(entries)
        rest = f"; {left} evaluations of other epochs were not computed again" * bool(left)
        if not pairs:
            return Finding("results", f"the run has no evaluation{rest}", Verdict.SKIPPED), facts
        if not different:
            return Finding("results", f"{len(pairs)} numbers are the same to the last bit{rest}", Verdict.GOOD), facts
        noisy_state, _ = self._perturbed(state, 1 / 16)  # nothing grows here from step to step
        twin, _ = self._evaluated("results-twin", noisy_state, [entry for entry, _ in different])
        noisy = {(entry["id"], entry["network"], name): now for entry, name, _, now in _pairs(entries, twin)}
        wrong, most, what = list[str](), 0.0, ""
        for entry, name, told, now in pairs:
            room = ROOM * abs(noisy.get((entry["id"], entry["network"], name), now) - now) + _least(entry, name, now)
            far = abs(told - now)
            if not same(told, now) and not far <= room:
                wrong.append(f"{name}: {told:.6g} recorded, {now:.6g} found, bound {room:.1e}")
            elif far > most:
                most, what = far, f", {name} by {far:.1e} (bound {room:.1e})"
        if wrong:
            more = f"; {len(wrong) - 2} more" * (len(wrong) > 2)
            return Finding("results", f"{'; '.join(wrong[:2])}{more}{rest}", Verdict.WRONG), facts
        equal = len(pairs) - len(different)
        return Finding("results", f"{equal} of {len(pairs)} numbers are the same{what}{rest}", Verdict.GOOD), facts

    def _evaluated(
        self, name: str, state: dict[str, Any], entries: Sequence[Entry]
    ) -> tuple[list[Entry], Mapping[str, Any]]:
        """The entries of a state that has the last step, computed here, and the facts of the run."""
        config = self.run.config
        for node in _rounds(entries) or [NOTHING]:
            schema.check(config | {"evaluate": node})
            folder = self._launch(name, state, config | {"evaluate": node})
        found: Any = results.read(folder)
        return evaluations.entries(found), found["facts"]


def _rounds(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Nodes ``evaluate`` that ask for all entries between them: one has an evaluator once, and one dataset."""
    nodes: list[dict[str, Any]] = []
    for entry in entries:
        settings = {key: value for key, value in entry["settings"].items() if key not in ("on", "labels")}
        place = {"on": entry["settings"].get("on"), "labels": [entry["settings"].get("labels", 1.0)]}
        name = entry["evaluator"]
        fitting = (each for each in nodes if place.items() <= each.items() and each.get(name, settings) == settings)
        if (node := next(fitting, None)) is None:
            nodes.append(node := NOTHING | place)
        node[name] = settings
        if entry["network"]:
            node["baselines"] = sorted({*node["baselines"], entry["network"].removeprefix("_")})
    return nodes


def _pairs(told: Sequence[Entry], found: Sequence[Entry]) -> Iterator[tuple[Entry, str, float, float]]:
    """The numbers of the recorded entries, each with the one that was found."""
    for entry in told:
        for other in found:
            if (other["id"], other["network"]) == (entry["id"], entry["network"]):
                for name, value in entry["metrics"].items():
                    yield entry, name, value, other["metrics"].get(name, math.nan)


def _least(entry: Entry, name: str, value: float) -> float:
    """The least bound of a metric: some test images of an accuracy, a share of another number."""
    if declared(ACCURACIES, name):
        count = next((each["images"] for each in entry.get("hits", {}).values()), 1 / SHARE)
        return max((IMAGES + 0.5) / count, SHARE)
    return LEAST * abs(value)


def _intervals(rows: Rows, begin: int) -> dict[int, int]:
    """The rows after the step ``begin``, each with the one before: a row has the mean loss since then."""
    steps = [begin, *sorted(step for step in rows if step > begin)]
    return {after: before for before, after in pairwise(steps)}


def same(one: float, other: float) -> bool:
    """Whether two numbers are equal; NaN equals NaN."""
    return one == other or (one != one and other != other)


def difference(one: float, other: float) -> float:
    """The relative difference of two losses."""
    return abs(one - other) / max(abs(other), 1e-3)


def alike(one: Any, other: Any) -> bool:
    """Whether two states have the same bits."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(value, other[key]) for key, value in one.items())
    return bool(one == other)
