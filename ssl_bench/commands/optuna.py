"""A search with Optuna: its sampler (TPE) proposes the runs, and its pruner decides at halts which of them go on.

A trial is a setting, and its value the mean over the seeds of the grid. The trials stand in a journal in the results
folder. Each proposal has a seed of its own and follows from the trials before it: a search that was interrupted makes
the same proposals. What was running goes on from its checkpoints, and a trial that failed is carried out again, unless
it cannot be or a run of it diverged.
"""

import hashlib
import importlib.util
import json
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ssl_bench import files
from ssl_bench.commands.search import Search
from ssl_bench.commands.search_space import distribution, examples, rounded
from ssl_bench.config.identity import evaluation_id, run_id
from ssl_bench.config.values import values
from ssl_bench.errors import ConfigError, require
from ssl_bench.launch.lock import locked
from ssl_bench.launch.outcome import DIVERGED, Outcome, State
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
    if "seed" in swept and swept["seed"].is_interval_sweep():
        raise ConfigError(f"{swept['seed'].input_line}: set seed to values such as 0,1,2, with which each trial is run")
    seeds = values(swept.pop("seed"), folder) if "seed" in swept else []
    require(bool(swept), "hydra/sweeper", "optuna", "basic, or give a key several values or an interval(...)")
    distributions = {key: distribution(override, folder) for key, override in swept.items()}
    fixed = [text for key, override in space.items() if key not in swept for text in values(override)[:1]]
    plan.total = plan.asked.sweeper["n_trials"] * max(1, len(grouped)) * max(1, len(seeds))
    left_out = (f"{search.group_by}=", *(["seed="] if seeds else []))
    given = [override for override in fixed if not override.startswith(left_out)]
    for group in grouped or [""]:
        yield from _Trials(search, [*given, group] if group else given, seeds, distributions).batches()
    search.conclude()


class _Trials:
    """The trials of one group.

    Args:
        fixed: overrides of all trials.
        seeds: overrides of the runs of a trial; none: it is one run.
    """

    def __init__(
        self,
        search: Search,
        fixed: Sequence[str],
        seeds: Sequence[str],
        distributions: Mapping[str, "BaseDistribution"],
    ) -> None:
        self.search, self.plan, self.settings = search, search.plan, search.plan.asked.sweeper
        self.fixed, self.seeds, self.distributions = fixed, seeds, distributions
        self.edges = {key: examples(distribution) for key, distribution in distributions.items()}
        self.refused = set[int]()  # numbers of runs that cannot be

    def _overrides(self, params: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """The overrides of each run of a trial."""
        setting = *self.fixed, *(f"{key}={value}" for key, value in params.items())
        return [(*setting, seed) for seed in self.seeds] or [setting]

    def _composed(self, params: Mapping[str, Any]) -> list[Run]:
        """The runs of a trial, as they are before they are added to the grid."""
        runs = [self.plan.compose(overrides) for overrides in self._overrides(params)]
        for run in runs:
            if not run.refusal:
                self.search.check(run.config)
        return runs

    def _runs(self, trial: "FrozenTrial") -> list[Run]:
        """The runs of a trial in the grid; none if it was left out."""
        return [self.plan.runs[run] for run in self._overrides(trial.params) if run in self.plan.runs]

    def batches(self) -> Generator[Sequence[Run], Ends, None]:
        """Carry out what the study lacks, in batches."""
        from optuna.distributions import distribution_to_json

        run, metric = self._composed(self._first)[0], self.search.metric
        if run.refusal:
            raise run.refusal
        config, evaluator = run.config, metric.partition("/")[0]
        spaces = {key: distribution_to_json(distribution) for key, distribution in self.distributions.items()}
        content = [run_id(config), evaluation_id(evaluator, config["evaluate"][evaluator]), config["epochs"]]
        content += [spaces, metric, self.search.epochs, self.settings["seed"]]
        content += [self.seeds] * bool(self.seeds) + ["minimize"] * (self.search.sign < 0)
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]
        folder = Path(config["paths"]["outputs"]) / config["name"] / f"optuna-{digest}"
        if not (folder / "optuna.journal").exists():
            self._check_edges()
        with locked(folder, wait=True):
            yield from self._batches(self._study(folder, f"{config['name']}-{digest}"))

    @property
    def _first(self) -> dict[str, Any]:
        """A first value of each key."""
        return {key: texts[0] for key, texts in self.edges.items()}

    def _check_edges(self) -> None:
        """Refuse the search if a value of a key cannot be, whichever value another key has; not with ``skip``."""
        first, pairs = self._first, [(key, text) for key, texts in self.edges.items() for text in texts]
        if self.plan.skip:
            return
        runs = [self._composed({**first, key: text})[0] for key, text in pairs]
        for place, error in self.plan.refused(runs).items():
            key, text = pairs[place]
            others = [{**first, key: text, other: value} for other, value in pairs if other != key]
            if len(self.plan.refused([self._composed(params)[0] for params in others])) == len(others):
                raise error

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Optuna's word for what is better."""
        return "maximize" if self.search.sign > 0 else "minimize"

    def _study(self, folder: Path, name: str) -> "Study":
        """The study in a folder, made if there is none."""
        import optuna
        from optuna.storages.journal import JournalFileBackend

        self.journal = path = folder / "optuna.journal"
        print(f"study {name} in {path}", flush=True)
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)  # of a killed process: this one owns the folder
        pruner = optuna.pruners.PercentilePruner(100 * self.search.keep, self.settings["n_startup_trials"])
        try:
            _drop_cut_line(path)
            self.storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
            return optuna.create_study(
                study_name=name, storage=self.storage, direction=self.direction, pruner=pruner, load_if_exists=True
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
            if trial.state in (TrialState.PRUNED, TrialState.FAIL):
                self._note(trial)
        if ended := sum(trial.state.is_finished() for trial in before):
            self.plan.ended += ended * max(1, len(self.seeds))
            print(f"{ended} of {count} trials are done already", flush=True)
        if before and ended < count:  # what all need may have gone since
            self._check_edges()
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
            yield from self._train(study, {t.number: self._runs(t) for t in batch if t.number not in refused})

    def _note(self, trial: "FrozenTrial") -> None:
        """Record how the runs of a trial ended, which was pruned or failed before."""
        runs = [run for run in self._runs(trial) if not run.done and run.number not in self.refused]
        failures = {run: content for run in runs if (content := files.read_json(run.folder / "failed.json", Failure))}
        failed = trial.state.name == "FAIL"
        for run in runs:
            if not failed or (failures and run not in failures):
                self.search.note(run, Outcome(State.HALTED))
                continue
            reason = failures[run]["reason"] if failures else "it failed before"
            remedy = f"; to try it again, remove {self.journal}: the same command makes it again from the runs"
            self.search.note(run, Outcome.failed(reason + remedy * (DIVERGED not in reason)))

    def _add(self, trials: Sequence["FrozenTrial"]) -> dict[int, ConfigError]:
        """Add the runs of trials to the grid; return by trial why its run cannot be: it fails, or is left out."""
        plan, pairs = self.plan, [(trial.number, run) for trial in trials for run in self._composed(trial.params)]
        refused = plan.refused([run for _, run in pairs])
        if plan.skip:
            plan.left_out |= {pairs[place][1].overrides: None for place in refused}
        by_trial = {pairs[place][0]: error for place, error in refused.items()}
        added = [run for place, (trial, run) in enumerate(pairs) if trial not in by_trial or place in refused]
        plan.add([run for run in added if run.overrides not in plan.left_out])
        for place, error in refused.items():
            if run := plan.runs.get(pairs[place][1].overrides):
                self.refused.add(run.number)
                self.search.note(run, Outcome.failed(str(error), error.exit_code))
        return by_trial

    def _propose(self, study: "Study", number: int) -> None:
        """Add a running trial to a study, in one line of its journal: nothing is left that was proposed in part."""
        import numpy as np
        import optuna

        seed = int(np.random.SeedSequence([self.settings["seed"], number]).generate_state(1)[0])
        startup = self.settings["n_startup_trials"]
        sampler = optuna.samplers.TPESampler(n_startup_trials=startup, seed=seed, constant_liar=True)
        copy = optuna.create_study(sampler=sampler, direction=self.direction)
        copy.add_trials(study.trials)
        proposed = copy.ask(dict(self.distributions)).params
        params = {key: rounded(value, self.distributions[key]) for key, value in proposed.items()}
        state, distributions = optuna.trial.TrialState.RUNNING, dict(self.distributions)
        study.add_trial(optuna.create_trial(state=state, params=params, distributions=distributions))

    def _train(self, study: "Study", runs: Mapping[int, list[Run]]) -> Generator[Sequence[Run], Ends, None]:
        """Train trials from halt to halt and tell the study how they end.

        A trial that failed and may be carried out again stays a running one.

        Args:
            runs: those of each trial; two trials can have the same.
        """
        from optuna.trial import TrialState

        search = self.search
        alive = [trial for trial in runs if not self._told_as_twin(study, trial)]
        for epoch in [*(search.epochs or [])[:-1], None]:
            yield from search.train([run for trial in alive for run in runs[trial]], epoch)
            for trial in [*alive]:
                standing, end = search.standing(runs[trial], epoch), ""
                value = standing.mean
                if any(map(self._final, standing.failed)):
                    study.tell(trial, state=TrialState.FAIL)
                    end = "failed"
                elif standing.failed or (value is None and epoch is None):
                    end = "failed, and the same command carries it out again"
                elif value is None:  # it was trained further, and has no place here
                    continue
                elif epoch is None:
                    study.tell(trial, value)
                    end = f"{search.metric} {standing.text}"
                elif self._pruned(study, trial, epoch, value) and not all(run.done for run in runs[trial]):
                    study.tell(trial, state=TrialState.PRUNED)
                    end = f"pruned after epoch {epoch} with {search.metric} {standing.text}"
                if end:
                    alive.remove(trial)
                    print(f"trial {trial}: {end}: {' '.join(search.setting(runs[trial][0]))}", flush=True)

    def _final(self, run: Run) -> bool:
        """Whether a run that failed would fail again: it diverged."""
        end = self.search.ends.get(run.number)
        return end is None or end.state is not State.FAILED or DIVERGED in end.reason

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


def _drop_cut_line(path: Path) -> None:
    """Remove the last line of a journal if a process was killed, or the disk was full, while it was written."""
    *lines, last = [b"", *files.read_lines(path)] if path.exists() else [b""]
    if last and not last.endswith(b"\n"):
        files.write_bytes(path, b"".join(lines))
        print(f"{path}: its last line was cut short, and is left out", flush=True)
