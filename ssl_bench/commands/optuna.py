"""A search with Optuna: its sampler (TPE) proposes the runs, and its pruner decides at halts which of them go on.

The trials stand in a journal in the results folder. Each proposal has a seed of its own and follows from the trials
before it: a search that was interrupted makes the same proposals. What was running goes on from its checkpoints.
"""

import hashlib
import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench import files
from ssl_bench.commands.search import SearchSweeper
from ssl_bench.commands.sweeper import GridSweeper, bounds, values
from ssl_bench.config.identity import evaluation_id, run_id
from ssl_bench.errors import ConfigError, require
from ssl_bench.launch.lock import locked
from ssl_bench.launch.outcome import Failure, Outcome, State
from ssl_bench.record import journal

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


class OptunaSweeper(SearchSweeper):
    """Searches by Optuna, for each value of ``group_by`` by itself.

    At a halt a trial goes on if it is among the best share of the finished trials at that epoch, ``keep``.

    Args:
        n_trials: of each group, with those that fail or are pruned.
        n_jobs: trials that are proposed and trained at a time; None: as many as the launcher starts.
        n_startup_trials: proposed at random; as many must have finished before one is pruned.
        seed: of the proposals.
    """

    def __init__(self, n_trials: int, n_jobs: int | None, n_startup_trials: int, seed: int, **search: Any) -> None:
        super().__init__(**search)
        self.n_trials, self.n_jobs, self.n_startup_trials, self.seed = n_trials, n_jobs, n_startup_trials, seed
        self.refused = set[int]()  # numbers of runs that cannot be

    def setup(self, **given: Any) -> None:
        """Prepare as for any grid.

        Raises:
            ConfigError: Optuna is not installed.
        """
        if importlib.util.find_spec("optuna") is None:
            raise ConfigError("hydra/sweeper=optuna needs the package optuna: pip install 'ssl-bench[optuna]'")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        super().setup(**given)
        launcher = given["config"].hydra.launcher
        self.n_jobs = self.n_jobs or launcher.get("n_jobs", launcher.get("array_parallelism", 1))

    def carry_out(self) -> None:
        """Carry out the trials of every group."""
        self.check_group()
        swept = {key: override for key, override in self.space.items() if override.is_sweep_override()}
        grouped = values(swept.pop(self.group_by)) if self.group_by else []
        require(bool(swept), "hydra/sweeper", "optuna", "basic, or give a key several values or an interval(...)")
        distributions = {key: _distribution(override) for key, override in swept.items()}
        fixed = [text for key, override in self.space.items() if key not in swept for text in values(override)[:1]]
        for group in grouped or [""]:
            given = [override for override in fixed if not override.startswith(f"{self.group_by}=")]
            if not self._search([*given, group] if group else given, distributions):
                return
        self.conclude()

    def _search(self, fixed: Sequence[str], distributions: Mapping[str, "BaseDistribution"]) -> bool:
        """Carry out the trials of a group; return whether none was interrupted.

        Args:
            fixed: overrides of all trials.
        """
        from optuna.distributions import distribution_to_json

        edges = {key: _examples(distribution) for key, distribution in distributions.items()}
        first = {key: texts[0] for key, texts in edges.items()}
        config = self.composer.load(_run(fixed, first), self.primary)
        self.check_run(config)
        evaluator = self.metric.partition("/")[0]
        spaces = {key: distribution_to_json(distribution) for key, distribution in distributions.items()}
        content = [run_id(config), evaluation_id(evaluator, config["evaluate"][evaluator]), config["epochs"]]
        content += [spaces, self.metric, self.epochs, self.seed]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]
        folder = Path(config["paths"]["outputs"]) / config["name"] / f"optuna-{digest}"
        if not GridSweeper.skip and not (folder / "optuna.journal").exists():
            self._check_edges(fixed, first, edges)
        with locked(folder, wait=True):
            return self._carried_out(self._study(folder, f"{config['name']}-{digest}"), fixed, distributions)

    def _check_edges(self, fixed: Sequence[str], first: Mapping[str, Any], edges: Mapping[str, Sequence[Any]]) -> None:
        """Refuse the search if a value of a key cannot be, whichever value another key has."""
        values = [(key, text) for key in edges for text in edges[key]]
        runs = [self.compose(_run(fixed, {**first, key: text})) for key, text in values]
        for place, error in self.check(runs).items():
            key, text = values[place]
            others = [{**first, key: text, other: each} for other, each in values if other != key]
            if len(self.check([self.compose(_run(fixed, params)) for params in others])) == len(others):
                raise error

    def _study(self, folder: Path, name: str) -> "Study":
        """The study in a folder, made if there is none."""
        import optuna
        from optuna.storages.journal import JournalFileBackend

        path = folder / "optuna.journal"
        print(f"study {name} in {path}", flush=True)
        journal.mend(path)
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)  # of a killed process: this one owns the folder
        pruner = optuna.pruners.PercentilePruner(100 * self.keep, self.n_startup_trials)
        try:
            self.storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
            return optuna.create_study(
                study_name=name, storage=self.storage, direction="maximize", pruner=pruner, load_if_exists=True
            )
        except OSError:
            raise
        except Exception as error:  # Optuna believes what the lines say
            remedy = "remove it: the same command makes it again from the runs, which are not trained again"
            raise ConfigError(f"{path} is damaged: {remedy}") from error

    def _carried_out(
        self, study: "Study", fixed: Sequence[str], distributions: Mapping[str, "BaseDistribution"]
    ) -> bool:
        """Carry out what a study lacks, in batches; return whether none was interrupted."""
        from optuna.trial import TrialState

        width: Any = self.n_jobs
        before = study.trials[: self.n_trials]
        self._add(fixed, before)
        for trial in before:
            number = self.numbers.get(_run(fixed, trial.params))
            if number is None or number in self.refused:
                continue
            if trial.state is TrialState.PRUNED and number not in self.finished:
                self.note(number, Outcome(State.HALTED))
            if trial.state is TrialState.FAIL:
                failure = files.read_json(self.folders[number] / "failed.json", Failure)
                self.note(number, Outcome.failed(failure["reason"] if failure else "it failed before"))
        told = sum(trial.state.is_finished() for trial in before)
        if told:
            print(f"{told} of {self.n_trials} trials are done already", flush=True)
        for start in range(0, self.n_trials, width):
            stop = min(start + width, self.n_trials)
            for number in range(len(study.trials), stop):
                self._propose(study, number, distributions)
            batch = [trial for trial in study.trials[start:stop] if trial.state is TrialState.RUNNING]
            refused = self._add(fixed, batch)
            for trial in batch:
                if error := refused.get(trial.number):
                    study.tell(trial.number, state=TrialState.FAIL)
                    print(f"trial {trial.number}: cannot be: {error}", flush=True)
            left = [trial for trial in batch if trial.number not in refused]
            if not self._train(study, {trial.number: self.numbers[_run(fixed, trial.params)] for trial in left}):
                return False
        return True

    def _add(self, fixed: Sequence[str], trials: Sequence["FrozenTrial"]) -> dict[int, ConfigError]:
        """Add the runs of trials to the grid; return by trial why its run cannot be: it fails, or is left out."""
        runs = [self.compose(_run(fixed, trial.params)) for trial in trials]
        refused = self.check(runs)
        if GridSweeper.skip:
            self.left_out |= {runs[place].overrides: None for place in refused}
        self.add([run for place, run in enumerate(runs) if not (GridSweeper.skip and place in refused)])
        for place, error in refused.items():
            number = self.numbers.get(runs[place].overrides)
            if number is not None:
                self.refused.add(number)
                self.note(number, Outcome.failed(str(error), error.exit_code))
        return {trials[place].number: error for place, error in refused.items()}

    def _propose(self, study: "Study", number: int, distributions: Mapping[str, "BaseDistribution"]) -> None:
        """Add a running trial to a study, in one line of its journal: nothing is left that was proposed in part."""
        import optuna

        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        sampler = optuna.samplers.TPESampler(n_startup_trials=self.n_startup_trials, seed=seed, constant_liar=True)
        copy = optuna.create_study(sampler=sampler, direction="maximize")
        copy.add_trials(study.trials)
        proposed = copy.ask(dict(distributions)).params
        params = {key: _rounded(value, distributions[key]) for key, value in proposed.items()}
        state = optuna.trial.TrialState.RUNNING
        study.add_trial(optuna.create_trial(state=state, params=params, distributions=dict(distributions)))

    def _train(self, study: "Study", runs: Mapping[int, int]) -> bool:
        """Train trials from halt to halt and tell the study how they end; return whether none was interrupted.

        Args:
            runs: the number of the run of each trial; two trials can have the same.
        """
        from optuna.trial import TrialState

        alive = [trial for trial in runs if not self._told_as_twin(study, trial)]
        for epoch in [*(self.epochs or [])[:-1], None]:
            found = self.values_at(epoch, {runs[trial] for trial in alive})
            if found is None:
                return False
            for trial in [*alive]:
                run, value, end = runs[trial], found[runs[trial]], ""
                if value is None:
                    study.tell(trial, state=TrialState.FAIL)
                    end = "failed"
                elif epoch is None:
                    study.tell(trial, value)
                    end = f"{self.metric} {value:.4g}"
                elif self._pruned(study, trial, epoch, value) and run not in self.finished:
                    study.tell(trial, state=TrialState.PRUNED)
                    end = f"pruned after epoch {epoch} with {self.metric} {value:.4g}"
                if end:
                    alive.remove(trial)
                    print(f"trial {trial}: {end}: {' '.join(self.setting(run))}", flush=True)
        return True

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


def _run(fixed: Sequence[str], params: Mapping[str, Any]) -> tuple[str, ...]:
    """The overrides of a run."""
    return *fixed, *(f"{key}={value}" for key, value in params.items())


def _distribution(override: Any) -> "BaseDistribution":
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
        return CategoricalDistribution([each.partition("=")[2] for each in values(override)])
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
