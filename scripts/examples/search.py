"""Search settings with Optuna: the value of a trial is the mean accuracy of its runs over three seeds.

    pip install optuna
    python scripts/examples/search.py 20 dataset=folder dataset.root=photos epochs=20

The trials are in search.journal, which optuna-dashboard shows, and the runs in outputs/search. The same command goes
on: it repeats a trial that was stopped, whose finished runs are not trained again, until 20 are complete. knn_val holds
out training images, so that nothing is chosen by test images.
"""

import math
import sys

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import ssl_bench
from ssl_bench.errors import RunError


def mean_over_seeds(trial: optuna.Trial) -> float:
    trial.suggest_float("optimizer.lr", 0.01, 3, log=True)
    trial.suggest_float("temperature.tau", 0.05, 1, log=True)
    setting = [f"{key}={value}" for key, value in trial.params.items()]
    try:
        runs = ssl_bench.train([*sys.argv[2:], *setting, "seed=0,1,2", "evaluate=knn_val"], name="search")
    except RunError:  # of all seeds
        return math.nan  # for Optuna a trial that failed
    return float(runs["knn_val/top1"].mean(skipna=False))


storage = optuna.storages.JournalStorage(JournalFileBackend("search.journal"))
study = optuna.create_study(storage=storage, study_name="search", direction="maximize", load_if_exists=True)
for stopped in study.get_trials(states=[TrialState.RUNNING]):
    study.tell(stopped.number, state=TrialState.FAIL)
    study.enqueue_trial(stopped.params)
for _ in range(int(sys.argv[1]) - len(study.get_trials(states=[TrialState.COMPLETE]))):
    trial = study.ask()
    study.tell(trial, mean_over_seeds(trial))
print(f"trial {study.best_trial.number}: {study.best_value:.4f} with {study.best_params}")
