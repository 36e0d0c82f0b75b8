"""Train one run on one rank: build, resume, train, evaluate, record.

Shapes: B images on this rank; W ranks; V views.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssl_bench.config.identity import extensible, untrained
from ssl_bench.data.batch import Loader
from ssl_bench.data.source import Source
from ssl_bench.distributed import Votes, rank, world
from ssl_bench.errors import RunError
from ssl_bench.methods.contrastive import Contrastive
from ssl_bench.record import checkpoint, runs
from ssl_bench.record.dashboard import Tracker
from ssl_bench.record.terminal import Progress
from ssl_bench.signals import Interrupt, Interrupted, stop_if_asked
from ssl_bench.training import build, graph
from ssl_bench.training.evaluation import Evaluation
from ssl_bench.training.meter import raise_bad_loss
from ssl_bench.training.optim import Schedule
from ssl_bench.training.precision import Precision, bf16_is_slow, set_matmul_options
from ssl_bench.training.state import TrainingState
from ssl_bench.training.step import Stepper
from ssl_bench.training.watch import Watch

log = logging.getLogger("ssl_bench")


def train(config: dict[str, Any], folder: Path, device: torch.device, command: str | None) -> None:
    """Carry out a run on this rank: train it from its last checkpoint on, and write its ``results.json``.

    Of a run that is trained already, only the evaluations that ``results.json`` lacks are carried out. If the run
    cannot be resumed, nothing in its directory changes.

    Args:
        folder: directory of the run, whose name is its run_id.
        command: the command that trains the run, to be written beside its configuration; None: train nothing.

    Raises:
        Interrupted: a signal came; a checkpoint was written.
        RunError: the loss became NaN or infinite, a file cannot be written or read, or the run cannot be resumed.
    """
    run = Training(config, device)
    state, last = run.state, run.schedule.last_step
    with Interrupt(Votes()) as interrupt, contextlib.ExitStack() as stack:
        former = runs.read_results(folder)
        former = former if former and former["run_id"] == folder.name else None
        trained = resume(run, folder, former, command is not None)
        facts = trained.get("facts", {}) if trained else begin(run, folder, command)
        record = Tracker(folder, config, folder.name, state.step, facts, state.evaluated_step) if rank() == 0 else None
        tracker = record and stack.enter_context(record)
        if state.step < last:
            step = run.stepper()
            run.evaluation.if_due(tracker)  # due here if a signal came before it
            with Progress(last, state.step, run.schedule.steps_per_epoch, config["epochs"], rank() == 0) as progress:
                while state.step < last:
                    logged = (state.step + 1) % config["log_every"] == 0 or state.step + 1 == last
                    diagnostics = step(logged)
                    if run.device.type == "cpu":  # a GPU, which computes later, has its speed after two rows
                        progress.after_step(state.step)
                    if logged:
                        log_row(run, diagnostics, progress, tracker)
                    stop = interrupt.agreed()
                    if stop or is_saved(run):
                        save(run, folder)
                    if stop:
                        raise Interrupted(stop)
                    if run.evaluation.if_due(tracker):
                        save(run, folder)
                        progress.restart(state.step)
        elif not (trained or last or config["init"]):  # a run of 0 epochs: save the random network
            save(run, folder)
        interrupt.saved = True
        stop_if_asked()
        run.evaluation.finish(folder, former["evaluations"] if former else [], trained, facts, tracker)


class Training:
    """The parts of one run on one rank, before its first step.

    Attributes:
        run: data, views and optimiser.
        state: networks, and everything else that a step changes.
        chunk: images of this rank per pass; None: all at once.
    """

    def __init__(self, config: dict[str, Any], device: torch.device) -> None:
        self.config, self.device = config, device
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats(device)  # a former run of this process has left its peak
        self.precision = Precision.of(config["precision"], device.type == "cuda")
        set_matmul_options(config["tf32"])
        self.run = build.build(config)
        self.state = TrainingState(self.run, self.precision, device)
        size, chunk = config["batch_size"]["size"], config["batch_size"]["chunk"]
        size = world() if untrained(config) else size  # no batch is ever made, and there may be fewer images than size
        images = self._on_device(self.run.dataset.pretrain())
        self.loader = Loader(images, self.run.views, size, device, config["seed"], self.precision.weights)
        per_epoch = self.loader.steps_per_epoch
        self.schedule = Schedule.of(self.run.recipe, size, config["epochs"], per_epoch, config["max_steps"])
        self.chunk = chunk and chunk // world()
        self.evaluation = Evaluation(self.run, self.state, self.schedule, self.precision)
        self.watch = Watch(self.run, self.state, self.loader, self.precision)

    def _on_device(self, images: Source) -> Source:
        """The training images, on the GPU if ``images_on`` allows it; ``auto``: if a third of its memory suffices."""
        where = self.config["images_on"]
        if self.device.type != "cuda" or where == "host" or images.nbytes is None:
            return images
        free = torch.cuda.mem_get_info(self.device)[0]
        if where == "auto" and images.nbytes > free / 3:
            return images
        return images.to(self.device)

    def stepper(self) -> Callable[[bool], dict[str, Tensor]]:
        """Make the function that carries out a step and returns its diagnostics: all of them if called with True."""
        self.state.method.train()
        with_views = self.device.type == "cuda" and self.config["compile_views"]
        if with_views or self.config["compile"]:
            torch._dynamo.reset()  # the limit of compiled functions counts those of earlier runs of this process too
        for views in dict.fromkeys(self.loader.views if with_views else ()):
            views.compile()
        if self.config["compile"]:
            log.info("compiling the networks in the first step, which can take a minute")
            for part in self.state.method.networks():
                part.compile()  # in place: the names in the checkpoint stay
        stepper = Stepper(self.state, self.schedule, self.precision, self.loader, self.chunk)
        if self.device.type == "cuda":
            votes, wanted = Votes(), self.config["graph"]
            reason = "graph=false" if wanted is False else graph.reason_against(self.config, self.loader.images)
            reason = votes.first(reason)
            if reason and wanted is True:
                raise RunError(f"graph=true: {reason}: set graph=auto or false")
            if not reason:
                new = partial(graph.CudaRecording, torch.cuda.graph_pool_handle())
                return graph.GraphedStepper(stepper, self.loader, wanted is True, new, votes)
            log.info("steps are not replayed as a CUDA graph: %s", reason)
        if self.chunk is None:
            stepper.distribute()
        return stepper


# ---- the beginning


def resume(run: Training, folder: Path, former: Mapping[str, Any] | None, trains: bool) -> Mapping[str, Any] | None:
    """Restore the last checkpoint, if there is one.

    Args:
        former: content of the run's ``results.json``; None: there is no such file.
        trains: whether the remaining steps may be trained.

    Returns:
        ``former`` if all steps are trained, else None.

    Raises:
        RunError: there are results and no checkpoint; the run is past ``epochs``; or steps remain, which may not be
            trained, or cannot be trained from a checkpoint without the optimiser's state.
    """
    state, schedule, last = run.state, run.schedule, run.schedule.last_step
    only_init = build.has_no_checkpoint(run.config, folder)
    resumed = not only_init and state.resume(folder, folder.name, trains)
    if former is not None and not (resumed or only_init):
        remedy = checkpoint.anew(folder)
        raise RunError(f"{folder} has results, but no checkpoint that can be evaluated; {remedy}")
    epoch = schedule.epoch(state.step)
    if state.step > last:
        raise RunError(f"{folder} is trained to epoch {epoch:g} already: set epochs to {math.ceil(epoch)} or more")
    if former is not None:  # the rows of its evaluation stay
        state.evaluated_step = max(state.evaluated_step, former.get("facts", {}).get("steps", 0))
        if state.step == last and former["config"].get("epochs") == run.config["epochs"]:
            return former
    if not trains:
        raise RunError(f"{folder} is not trained to its end: train it with the command that began it")
    if state.networks_only and state.step < last:
        why = f"{checkpoint.FILE} has networks only; {checkpoint.anew(folder)}"
        raise RunError(f"{folder} cannot go on from epoch {epoch:g}: {why}")
    if resumed:
        log.info("resuming at step %d of %d (epoch %d)", state.step, last, state.step // schedule.steps_per_epoch)
        if changes := state.changed_conditions():
            log.warning("resumed with %s: the weights can differ from those of a run that was never stopped", changes)
    return None


def begin(run: Training, folder: Path, command: str | None) -> dict[str, Any]:
    """Write the configuration and the command of a run that trains, and log a summary of it; return its facts."""
    if command is not None and rank() == 0:
        runs.begin(folder, run.config, command)
    size, share, schedule = run.loader.batch_size, run.loader.batch_size // world(), run.schedule
    images, recipe, method = len(run.loader.images), run.run.recipe, run.state.method
    facts: dict[str, Any] = method.facts(size) | {
        "images_per_rank": share,
        "ranks": world(),
        "train_images": images,
        "steps": schedule.last_step,
        "lr": schedule.lr,
        "parameters": sum(p.numel() for p in method.encoder.parameters()),
    }
    negatives, option = facts.get("negatives_per_anchor"), run.config["choices"].get("negatives")
    if isinstance(method, Contrastive) and method.negatives.varies:
        last = schedule.progress(schedule.last_step - 1)
        facts["negatives_per_anchor_at_end"] = method.negatives.count(size, last)
    at_end = facts.get("negatives_per_anchor_at_end", negatives)
    if weights := getattr(getattr(method.encoder, "backbone", None), "initial_weights", ""):
        facts["init"] = weights
    log.info("parameters: %s, %s on %s", f"{facts['parameters']:,}", run.precision.name, run.device)
    if not schedule.last_step:
        return facts
    if negatives is not None:
        later = "" if at_end is negatives else f" at the start, {at_end} at the end"
        batch = f"a batch of {size} images" + (f", {share} on each of {world()} ranks" if world() > 1 else "")
        log.info("negatives per anchor: %d%s (negatives=%s, %s)", negatives, later, option, batch)
    scaled = f"optimizer.lr={recipe.lr:g} scaled to the batch size by optimizer.rule={recipe.rule}"
    log.info("learning rate: %.6g (%s)", schedule.lr, scaled)
    if recipe.warmup_epochs >= run.config["epochs"]:
        log.warning("the warm-up lasts the whole training: optimizer.warmup_epochs is not less than epochs")
    if run.precision.name == "bf16" and run.device.type == "cpu" and bf16_is_slow():
        log.warning("precision=bf16 takes many times as long as fp32: this processor has no instructions for it")
    log.info("%d steps to train, %d per epoch", schedule.last_step - run.state.step, schedule.steps_per_epoch)
    return facts


# ---- after a step


def log_row(run: Training, diagnostics: dict[str, Tensor], progress: Progress, tracker: Tracker | None) -> None:
    """Write a row of metrics and show it."""
    step, row = run.state.step, row_of(run, diagnostics)
    row["images_per_second"] = progress.rate(step) * run.loader.batch_size
    row["seconds"] = run.state.seconds()
    if run.watch.measure_if_due(step, row):
        progress.restart(step)
    progress.show(step, row)
    if tracker is not None:
        tracker.row(step, row)


def row_of(run: Training, diagnostics: dict[str, Tensor]) -> dict[str, Any]:
    """Make a row of metrics: the mean loss since the last row, and the diagnostics of this step."""
    state, step, scaled, lr_at = run.state, run.state.step, run.precision.scaled, run.schedule.lr_at
    if not run.config["diagnostics"]["npc_histogram"]:
        diagnostics.pop("npc/histogram", None)
    if scaled:
        diagnostics["loss_scale"] = state.scale()
    loss, bad_step, bad_tau, skipped, values = state.meter.read([*diagnostics.values()])
    if bad_step >= 0:
        raise_bad_loss(bad_step, lr_at(bad_step), bad_tau)
    named = {name: values.pop(0) if v.ndim == 0 else [values.pop(0) for _ in v] for name, v in diagnostics.items()}
    skips = {"skipped_steps": skipped} if scaled else {}
    return {"epoch": run.schedule.epoch(step), "loss": loss, "lr": lr_at(step - 1), **named, **skips}


def is_saved(run: Training) -> bool:
    """Whether a checkpoint is due after the last step."""
    every = run.config["checkpoint"]["every"] * run.schedule.steps_per_epoch
    return run.state.step % every == 0 or run.state.step == run.schedule.last_step


def save(run: Training, folder: Path) -> None:
    """Write a checkpoint; at the end of a run that cannot be extended to more epochs, one with the networks only."""
    ended = run.state.step == run.schedule.last_step and not extensible(run.config)
    run.state.save(folder, folder.name, run.schedule.lr_at, networks_only=ended)
