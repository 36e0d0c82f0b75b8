"""A search with Optuna: its sampler (TPE) proposes the runs, and its pruner decides at halts which of them go on.

The trials stand in a journal in the results folder. Each proposal has a seed of its own and follows from the trials
before it: a search that was interrupted makes the same proposals. What was running goes on from its checkpoints.
"""

import hashlib
import importlib.util
import json
import math
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench import files
from ssl_bench.commands.search import Search
from ssl_bench.config.identity import evaluation_id, run_id
from ssl_bench.config.values import bounds, values
from ssl_bench.errors import ConfigError, require
from ssl_bench.launch.lock import locked
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.plan import Ends, Plan, Strategy
from ssl_bench.launch.run import Run
from ssl_bench.record.content import Failure

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


def optuna(plan: Plan) -> Strategy:
    """Search by Optuna, for each value of ``group_by`` by itself.

    At a halt a trial goes on if it is among the best share of the finished trials at that epoch, ``keep``.

    Raises:
        ConfigError: Optuna is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("hydra/sweeper=optuna needs the package optuna: pip install 'ssl-bench[optuna]'")
    from optuna import logging

    logging.set_verbosity(logging.ERROR)
    search = Search(plan)
    space, folder = plan.asked.space, plan.asked.folder
    swept = {key: space[key] for key in plan.asked.swept}
    grouped = values(swept.pop(search.group_by), folder) if search.group_by else []
    require(bool(swept), "hydra/sweeper", "optuna", "basic, or give a key several values or an interval(...)")
    distributions = {key: _distribution(override, folder) for key, override in swept.items()}
    fixed = [text for key, override in space.items() if key not in swept for text in values(override)[:1]]
    plan.total = plan.asked.sweeper["n_trials"] * max(1, len(grouped))
    for group in grouped or [""]:
        given = [override for override in fixed if not override.startswith(f"{search.group_by}=")]
        yield from _Trials(search, [*given, group] if group else given, distributions).batches()
    search.conclude()


class _Trials:
    """The trials of one group.

    Args:
        fixed: overrides of all trials.
    """

    def __init__(
        self,
        search: Search,
        fixed: Sequence[str],
        distributions: Mapping[str, "BaseDistribution"],
    ) -> None:
        self.search, self.plan, self.settings = search, search.plan, search.plan.asked.sweeper
        self.fixed, self.distributions = fixed, distributions
        self.refused = set[int]()  # numbers of runs that cannot be

    def _run(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """The overrides of a run."""
        return *self.fixed, *(f"{key}={value}" for key, value in params.items())

    def _composed(self, params: Mapping[str, Any]) -> Run:
        run = self.plan.compose(self._run(params))
        if not run.refusal:
            self.search.check(run.config)
        return run

    def batches(self) -> Generator[Sequence[Run], Ends, None]:
        """Carry out what the study lacks, in batches."""
        from optuna.distributions import distribution_to_json

        edges = {key: _examples(distribution) for key, distribution in self.distributions.items()}
        first = {key: texts[0] for key, texts in edges.items()}
        run, metric = self._composed(first), self.search.metric
        if run.refusal:
            raise run.refusal
        config, evaluator = run.config, metric.partition("/")[0]
        spaces = {key: distribution_to_json(distribution) for key, distribution in self.distributions.items()}
        content = [run_id(config), evaluation_id(evaluator, config["evaluate"][evaluator]), config["epochs"]]
        content += [spaces, metric, self.search.epochs, self.settings["seed"]]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]
        folder = Path(config["paths"]["outputs"]) / config["name"] / f"optuna-{digest}"
        if not self.plan.skip and not (folder / "optuna.journal").exists():
            self._check_edges(first, edges)
        with locked(folder, wait=True):
            yield from self._batches(self._study(folder, f"{config['name']}-{digest}"))

    def _check_edges(self, first: Mapping[str, Any], edges: Mapping[str, Sequence[Any]]) -> None:
        """Refuse the search if a value of a key cannot be, whichever value another key has."""
        pairs = [(key, text) for key in edges for text in edges[key]]
        runs = [self._composed({**first, key: text}) for key, text in pairs]
        for place, error in self.plan.refused(runs).items():
            key, text = pairs[place]
            others = [{**first, key: text, other: value} for other, value in pairs if other != key]
            if len(self.plan.refused([self._composed(params) for params in others])) == len(others):
                raise error

    def _study(self, folder: Path, name: str) -> "Study":
        """The study in a folder, made if there is none."""
        import optuna
        from optuna.storages.journal import JournalFileBackend

        path = folder / "optuna.journal"
        print(f"study {name} in {path}", flush=True)
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)  # of a killed process: this one owns the folder
        pruner = optuna.pruners.PercentilePruner(100 * self.search.keep, self.settings["n_startup_trials"])
        try:
            if path.exists() and not all(line.endswith(b"\n") for line in files.read_lines(path)):
                raise ValueError("a line that is cut short, which Optuna would write on")
            self.storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
            return optuna.create_study(
                study_name=name, storage=self.storage, direction="maximize", pruner=pruner, load_if_exists=True
            )
        except OSError:
            raise
        except Exception as error:  # Optuna believes what the lines say
            remedy = "remove it: the same command makes it again from the runs, which are not trained again"
            raise ConfigError(f"{path} is damaged: {remedy}") from error

    def _batches(self, study: "Study") -> Generator[Sequence[Run], Ends, None]:
        """Carry out what a study lacks, in batches."""
        from optuna.trial import TrialState

        width, count = self.settings["n_jobs"], self.settings["n_trials"]
        before = study.trials[:count]
        self._add(before)
        for trial in before:
            run = self.plan.runs.get(self._run(trial.params))
            if run is None or run.number in self.refused:
                continue
            if trial.state is TrialState.PRUNED and not run.done:
                self.search.note(run, Outcome(State.HALTED))
            if trial.state is TrialState.FAIL:
                failure = files.read_json(run.folder / "failed.json", Failure)
                self.search.note(run, Outcome.failed(failure["reason"] if failure else "it failed before"))
        if ended := sum(trial.state.is_finished() for trial in before):
            self.plan.ended += ended
            print(f"{ended} of {count} trials are done already", flush=True)
        for start in range(0, count, width):
            stop = min(start + width, count)
            for number in range(len(study.trials), stop):
                self._propose(study, number)
            batch = [trial for trial in study.trials[start:stop] if trial.state is TrialState.RUNNING]
            refused = self._add(batch)
            for trial in batch:
                if error := refused.get(trial.number):
                    study.tell(trial.number, state=TrialState.FAIL)
                    print(f"trial {trial.number}: cannot be: {error}", flush=True)
            left = [trial for trial in batch if trial.number not in refused]
            yield from self._train(study, {trial.number: self.plan.runs[self._run(trial.params)] for trial in left})

    def _add(self, trials: Sequence["FrozenTrial"]) -> dict[int, ConfigError]:
        """Add the runs of trials to the grid; return by trial why its run cannot be: it fails, or is left out."""
        plan, runs = self.plan, [self._composed(trial.params) for trial in trials]
        refused = plan.refused(runs)
        if plan.skip:
            plan.left_out |= {runs[place].overrides: None for place in refused}
        plan.add([run for place, run in enumerate(runs) if not (plan.skip and place in refused)])
        for place, error in refused.items():
            if run := plan.runs.get(runs[place].overrides):
                self.refused.add(run.number)
                self.search.note(run, Outcome.failed(str(error), error.exit_code))
        return {trials[place].number: error for place, error in refused.items()}

    def _propose(self, study: "Study", number: int) -> None:
        """Add a running trial to a study, in one line of its journal: nothing is left that was proposed in part."""
        import numpy as np
        import optuna

        seed = int(np.random.SeedSequence([self.settings["seed"], number]).generate_state(1)[0])
        startup = self.settings["n_startup_trials"]
        sampler = optuna.samplers.TPESampler(n_startup_trials=startup, seed=seed, constant_liar=True)
        copy = optuna.create_study(sampler=sampler, direction="maximize")
        copy.add_trials(study.trials)
        proposed = copy.ask(dict(self.distributions)).params
        params = {key: _rounded(value, self.distributions[key]) for key, value in proposed.items()}
        state, distributions = optuna.trial.TrialState.RUNNING, dict(self.distributions)
        study.add_trial(optuna.create_trial(state=state, params=params, distributions=distributions))

    def _train(self, study: "Study", runs: Mapping[int, Run]) -> Generator[Sequence[Run], Ends, None]:
        """Train trials from halt to halt and tell the study how they end.

        Args:
            runs: the run of each trial; two trials can have the same.
        """
        from optuna.trial import TrialState

        search = self.search
        alive = [trial for trial in runs if not self._told_as_twin(study, trial)]
        for epoch in [*(search.epochs or [])[:-1], None]:
            measured = yield from search.values_at(epoch, {runs[trial] for trial in alive})
            for trial in [*alive]:
                run, end = runs[trial], ""
                value = measured[run.number]
                if value is None:
                    study.tell(trial, state=TrialState.FAIL)
                    end = "failed"
                elif epoch is None:
                    study.tell(trial, value)
                    end = f"{search.metric} {value:.4g}"
                elif self._pruned(study, trial, epoch, value) and not run.done:
                    study.tell(trial, state=TrialState.PRUNED)
                    end = f"pruned after epoch {epoch} with {search.metric} {value:.4g}"
                if end:
                    alive.remove(trial)
                    print(f"trial {trial}: {end}: {' '.join(search.setting(run))}", flush=True)

    def _told_as_twin(self, study: "Study", number: int) -> bool:
        """Let a trial end as an earlier one with the same values, if there is one."""
        trials = study.trials
        twin = next((t for t in trials if t.state.is_finished() and t.params == trials[number].params), None)
        if twin is None:
            return False
        for epoch, value in twin.intermediate_values.items():
            self.storage.set_trial_intermediate_value(trials[number]._trial_id, epoch, value)
        self.storage.set_trial_state_values(trials[number]._trial_id, twin.state, twin.values)
        print(f"trial {number}: proposed again, as trial {twin.number}", flush=True)
        return True

    def _pruned(self, study: "Study", number: int, epoch: int, value: float) -> bool:
        """Report the value of a trial at a halt; whether the pruner ends it there."""
        self.storage.set_trial_intermediate_value(study.trials[number]._trial_id, epoch, value)
        return study.pruner.prune(study, study.trials[number])


def _distribution(override: Any, folder: Path | None) -> "BaseDistribution":
    """Optuna's form of the values of a key: choices as they are written, a range without its stop, an interval.

    Raises:
        ConfigError: it has no number, or a logarithm is asked for of numbers that have none.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    try:
        if override.is_range_sweep() and not value.shuffle:
            low, high = sorted(bounds(override)[1:])
            kind: Any = IntDistribution if isinstance(low, int) else FloatDistribution
            return kind(low, high, step=abs(value.step))
        if override.is_interval_sweep():
            kind = IntDistribution if isinstance(value.start, int) else FloatDistribution
            return kind(value.start, value.end, log="log" in value.tags)
        return CategoricalDistribution([text.partition("=")[2] for text in values(override, folder)])
    except (IndexError, ValueError) as error:
        raise ConfigError(f"{override.input_line}: {str(error).rstrip('.')}") from error


def _rounded(value: Any, distribution: Any) -> Any:
    """A proposed number with the four digits that a person would write, inside its interval; others as they are."""
    if not isinstance(value, float):
        return value
    digits = 4 if distribution.step is None else 12
    return min(max(float(f"{value:.{digits}g}"), distribution.low), distribution.high)


def _examples(distribution: Any) -> list[Any]:
    """Values to check a key by: all choices, or both ends of an interval and a number between."""
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    between = distribution.low + (distribution.high - distribution.low) / math.pi
    whole = isinstance(distribution.low, int)
    return [distribution.low, int(between) if whole else _rounded(between, distribution), distribution.high]
