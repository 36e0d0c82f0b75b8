"""Everything that the steps of a training change, and how it is saved and resumed."""

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ssl_bench.distributed import rank, world
from ssl_bench.errors import RunError, in_one_line
from ssl_bench.hardware import move
from ssl_bench.networks.norm import group_statistics
from ssl_bench.record import checkpoint
from ssl_bench.record.environment import commit, conditions, now
from ssl_bench.record.runs import COMPUTED, OF_GPUS
from ssl_bench.seeding import rng_state, seed_everything, set_rng_state
from ssl_bench.training import build
from ssl_bench.training.meter import Meter, raise_bad_loss
from ssl_bench.training.precision import Precision
from ssl_bench.training.snr import GradientSNR


class TrainingState:
    """Networks, optimiser and counters of one rank.

    Attributes:
        method: networks and objective.
        initial: copy of the encoder at initialisation, if ``evaluate.baselines`` has ``init``.
        snr: moments of the gradients, if ``diagnostics.gradient_snr`` is set.
        step: number of optimiser steps carried out.
        evaluated_step: step of the last evaluation before the end.
        starts: commit (``git``) and time (``at``) of the run's first process, and of each later one that had another
            commit.
        networks_only: whether the checkpoint has no state of the optimiser, without which no step can follow.
        peak: largest memory of the GPU in bytes up to the last reset of torch's count, 0 without a reset.
    """

    def __init__(self, run: build.Run, precision: Precision, device: torch.device) -> None:
        config = run.config
        self._earlier_seconds, self._started = 0.0, time.monotonic()
        seed_everything(config["seed"])
        self.method = build.method(run).to(precision.weights)
        baselines = config["evaluate"]["baselines"]
        self.initial: nn.Module | None = copy.deepcopy(self.method.encoder) if "init" in baselines else None
        group_statistics(self.method, self.method.groups)
        move(self.method, device)
        self.optimizer: torch.optim.Optimizer = run.recipe.optimizer(self.method)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision.scaled)
        self._one = torch.ones((), device=device)
        decay = config["diagnostics"]["gradient_snr"]
        self.snr = GradientSNR(self.method.parameters(), decay) if decay is not None else None
        self.meter = Meter(device, precision.weights)
        self.step, self.evaluated_step, self.peak = 0, 0, 0
        self.device, self._former_conditions, self.networks_only = device, dict[str, Any](), False
        self._settings = {name: config[name] for name in COMPUTED if device.type == "cuda" or name not in OF_GPUS}
        self.starts: list[dict[str, str | None]] = [{"git": commit(), "at": now()}]

    def scale(self) -> torch.Tensor:
        """Factor [] of the loss in the backward pass; 1 unless in fp16."""
        return self.scaler.scale(self._one)

    def seconds(self) -> float:
        """Seconds that the run has taken so far, in all its processes together."""
        return self._earlier_seconds + time.monotonic() - self._started

    def conditions(self) -> dict[str, Any]:
        """Versions, hardware and settings that are not in the run_id and can change the last bits of a result."""
        return conditions(self.device) | self._settings

    def changed_conditions(self) -> str:
        """Names the conditions that differ from those of the process that wrote the checkpoint; empty if none does."""
        pairs = [(name, now, self._former_conditions.get(name, now)) for name, now in self.conditions().items()]
        return "; ".join(f"{name} {now} (before: {then})" for name, now, then in pairs if now != then)

    def save(self, folder: Path, run_id: str, lr_at: Callable[[int], float], networks_only: bool = False) -> None:
        """Write a checkpoint; every rank calls this.

        Its key ``judged`` is ``evaluated_step``; ``ranks`` has what differs between the ranks.

        Args:
            networks_only: leave out what only further steps need.

        Raises:
            RunError: a loss since the last row of metrics was not finite, or a weight is not; nothing is written.
                The sentence names the learning rate of that step, which ``lr_at`` gives.
        """
        local = {"rng": rng_state(), "meter": list(self.meter.summary()), "conditions": self.conditions()}
        ranks: list[Any] = [local]
        if world() > 1:
            ranks = [None] * world()
            dist.all_gather_object(ranks, local)
        for _, _, bad_step, tau, _ in (of_rank["meter"] for of_rank in ranks):
            if bad_step >= 0:
                raise_bad_loss(int(bad_step), lr_at(int(bad_step)), tau)
        if not torch.stack([weight.isfinite().all() for weight in self.method.parameters()]).all():
            at = f"step {self.step} (lr {lr_at(self.step - 1):.6g})"
            remedy = "a smaller optimizer.lr or optimizer.weight_decay, or a warm-up may help"
            raise RunError(f"the weights are not finite after {at}: {remedy}")
        if rank() == 0:
            counters = {"run_id": run_id, "step": self.step, "judged": self.evaluated_step, "ranks": ranks}
            states = {name: part.state_dict() for name, part in self._stateful_parts(networks_only).items()}
            clocks = {"seconds": self.seconds(), "starts": self.starts}
            checkpoint.save(folder, counters | clocks | states)

    def resume(self, folder: Path, run_id: str, trains: bool = True) -> bool:
        """Restore the last checkpoint; False if there is none.

        Args:
            trains: whether the training goes on.

        Raises:
            RunError: it cannot be read, or does not fit this run.
        """
        state = checkpoint.load(folder, run_id) if trains else checkpoint.final(folder)
        if state is None:
            return False
        try:
            self._restore(state)
        except torch.OutOfMemoryError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            name, reason = type(error).__name__, in_one_line(error)
            remedy = checkpoint.anew(folder)
            raise RunError(f"the checkpoint of {folder} does not fit this run ({name}: {reason}); {remedy}") from error
        return True

    def _restore(self, state: dict[str, Any]) -> None:
        """Set everything to the content of a checkpoint; any error means that it does not belong to this run."""
        self.networks_only = "optimizer" not in state or "pruned" in state  # the latter: by version 0.4
        for name, part in self._stateful_parts(self.networks_only).items():
            if state[name] or name != "scaler":  # an empty state: the scaler was not in use
                part.load_state_dict(state[name])
        self.step, self.evaluated_step = int(state["step"]), int(state["judged"])
        self._earlier_seconds = float(state["seconds"])
        ranks = state["ranks"]
        former = [dict(start) for start in state["starts"]]
        self.starts = former + [start for start in self.starts if start["git"] != former[-1]["git"]]
        self._former_conditions = dict(ranks[0]["conditions"])
        if len(ranks) == world():  # on another number of ranks the global generators start from the seed
            set_rng_state(ranks[rank()]["rng"])
            total, count, bad_step, bad_tau, skipped = map(float, ranks[rank()]["meter"])
            self.meter.restore((total, count, bad_step, bad_tau, skipped))

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """Every tensor on the device that a step changes, by its kind."""
        moments = [value for of_weight in self.optimizer.state.values() for value in of_weight.values()]
        scale = [value for value in vars(self.scaler).values() if isinstance(value, torch.Tensor)]
        return {
            "weights": [*self.method.parameters()],
            "buffers": [*self.method.buffers()],
            "moments": [value for value in moments if isinstance(value, torch.Tensor)],
            "meter": self.meter.tensors(),
            "scale": scale,
        }

    def _stateful_parts(self, networks_only: bool) -> dict[str, Any]:
        parts: dict[str, Any] = {"method": self.method}
        if not networks_only:
            parts |= {"optimizer": self.optimizer, "scaler": self.scaler} | ({"snr": self.snr} if self.snr else {})
        return parts
