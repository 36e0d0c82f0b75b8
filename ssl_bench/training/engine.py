"""The loop of one rank: build, resume, train, evaluate, save, write the row.

B images on this rank   W ranks   V views
"""

import contextlib
import copy
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench import parts as assemble
from ssl_bench.data.arrays import Source
from ssl_bench.data.batch import Step
from ssl_bench.data.loader import Loader
from ssl_bench.distributed import average_gradients, parallel, rank, world
from ssl_bench.errors import RunError
from ssl_bench.evaluate.artifacts import Artifact
from ssl_bench.evaluate.run import run_evaluators
from ssl_bench.hardware import Precision, move
from ssl_bench.networks.norm import OwnStatistics, synchronise
from ssl_bench.record import checkpoint, plots
from ssl_bench.record.environment import environment, peak_memory
from ssl_bench.record.progress import Progress, clock
from ssl_bench.record.wandb import Tracker
from ssl_bench.seeding import rng_state, seed_everything, set_rng_state
from ssl_bench.training import chunked
from ssl_bench.training.estimate import out_of_memory, step_cost
from ssl_bench.training.interrupt import Interrupt, Interrupted
from ssl_bench.training.meter import Meter, refuse_bad_loss
from ssl_bench.training.snr import GradientSNR

log = logging.getLogger("ssl_bench")


class Run:
    """One cell on one rank.

    Args:
        config: resolved and validated.
        run_id: its identity.
        folder: its directory.
        device: of this rank.
    """

    def __init__(self, config: dict[str, Any], run_id: str, folder: Path, device: torch.device) -> None:
        self.config, self.run_id, self.folder, self.device = config, run_id, folder, device
        self.started = time.monotonic()
        self.precision = Precision.of(config["precision"], device.type == "cuda")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config["tf32"]
        torch.backends.cudnn.benchmark = True
        seed_everything(config["seed"])
        self.method = assemble.method(config).to(self.precision.weights)
        self.encoder = self.method.encoder
        self.initial = copy.deepcopy(self.encoder) if "init" in config["evaluate"]["baselines"] else None
        if world() > 1 and self.method.norm == "sync":
            synchronise(self.method, device)
        move(self.method, device)
        self.statistics = OwnStatistics(self.method, self.method.norm)
        self.recipe = assemble.recipe(config)
        self.lr = self.recipe.scaled_lr(config["batch_size"]["size"])
        self.optimizer = self.recipe.optimizer(self.method)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision.scaled)
        self.dataset = assemble.dataset(config)
        images = self._place(self.dataset.pretrain())
        size, chunk = config["batch_size"]["size"], config["batch_size"]["chunk"]
        self.chunk = chunk and chunk // world()
        decay = config["diagnostics"]["gradient_snr"]
        self.snr = GradientSNR(self.method.parameters(), decay) if decay is not None else None
        self.loader = Loader(images, assemble.views(config), size, device, config["seed"], self.precision.weights)
        self.per_epoch = self.loader.steps_per_epoch
        self.steps = config["epochs"] * self.per_epoch
        self.last_step = min(self.steps, config["max_steps"] or self.steps)
        self.warmup = self.recipe.warmup_epochs / config["epochs"]
        self.meter = Meter(device)
        self.step, self.judged, self.seconds, self.per_image = 0, 0, 0.0, 0.0

    def __call__(self) -> dict[str, float]:
        """Trains from where the last checkpoint left off, evaluates and writes ``results.json``; gives its metrics.

        Raises:
            Interrupted: a signal came; a checkpoint was written.
            RunError: the loss became NaN or infinite, or a file cannot be written or read.
        """
        with Interrupt() as interrupt:
            self._resume()
            self._introduce()
            known = self.folder, self.config, self.run_id, self.step, self.facts
            tracker = Tracker(*known) if rank() == 0 else None
            try:
                if self.step < self.last_step:
                    with self._memory():
                        self._train(interrupt, tracker)
                interrupt.at_once = True  # everything is saved: an evaluation need not be waited for
                if interrupt.number:
                    raise Interrupted(interrupt.number)
                metrics, artifacts = self._evaluate(baselines=True)
                if tracker is not None:
                    pictures = plots.keep(self.folder / "figures", artifacts, tracker.path)
                    self._record(metrics)
                    tracker.row(self.step, {"epoch": self.step / self.per_epoch, **metrics}, pictures)
                    tracker.finish(metrics, 0)
                return metrics
            except BaseException as error:
                if tracker is not None:
                    tracker.finish({}, 128 + error.number if isinstance(error, Interrupted) else 1)
                raise

    # ---- training

    def _train(self, interrupt: Interrupt, tracker: Tracker | None) -> None:
        every = self.config["log_every"]
        save_every = self.config["checkpoint"]["every"] * self.per_epoch
        if self.config["compile"]:
            torch._dynamo.reset()  # what it compiled for runs before this one counts towards its limit
            for part in self.method.networks():
                part.compile()  # in place: the names in the checkpoint stay
        network = parallel(self.method, self.device) if self.chunk is None else self.method
        self.method.train()
        self._judge(tracker)  # where a signal came first
        since, before = time.monotonic(), self.step
        with Progress(self.last_step, self.step, self.per_epoch, self.config["epochs"], shown=rank() == 0) as progress:
            for images in self.loader.steps(self.step, self.last_step):
                logging_now = (self.step + 1) % every == 0 or self.step + 1 == self.last_step
                found = self._one_step(network, images, logging_now)
                self.step += 1
                if logging_now:
                    row = self._read(found)
                    now = time.monotonic()
                    rate = (self.step - before) * self.loader.batch_size / (now - since)
                    since, before = now, self.step
                    row |= {"images_per_second": rate, "seconds": self._elapsed()}
                    progress.show(self.step, row)
                    if tracker is not None:
                        tracker.row(self.step, row)
                else:
                    progress.advance(self.step)
                stop = interrupt.agreed()
                if stop or self.step % save_every == 0 or self.step == self.last_step:
                    self._save()
                if stop:
                    raise Interrupted(stop)
                if self._judge(tracker):
                    self._save()
                    since, before = time.monotonic(), self.step

    def _judge(self, tracker: Tracker | None) -> bool:
        """Evaluates on the way, where that is due at this step and not done yet; gives whether it did."""
        every = self.config["evaluate"]["every"] * self.per_epoch
        if not every or self.step % every or self.step in (0, self.judged, self.last_step):
            return False
        metrics, _ = self._evaluate(baselines=False)
        if tracker is not None:
            tracker.row(self.step, {"epoch": self.step / self.per_epoch, **metrics})
        self.judged = self.step
        return True

    def _one_step(self, network: nn.Module, images: Step, diagnostics: bool) -> dict[str, Tensor]:
        lr, progress = self._lr(self.step), self.step / self.steps
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        if self.chunk is None:
            with self._autocast():
                loss, found = network(images.batch(), progress, diagnostics)
            self.scaler.scale(loss).backward()
        else:
            part, share, scale = images.batch, len(images.ids), self.scaler.scale
            loss, found = chunked.backward(
                self.method, part, share, self.chunk, progress, diagnostics, self._autocast, scale
            )
            average_gradients(self.method)
        if self.snr is not None:
            self.scaler.unscale_(self.optimizer)
            self.snr.add()
            found |= self.snr.read() if diagnostics else {}
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.method.after_step(progress)
        self.meter.add(self.step, loss, found.get("tau", torch.zeros_like(loss)))
        return found

    def _lr(self, step: int) -> float:
        return self.lr * self.recipe.factor(step / self.steps, self.warmup)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = self.precision.autocast
        return torch.autocast(self.device.type, dtype) if dtype else contextlib.nullcontext()

    def _read(self, found: dict[str, Tensor]) -> dict[str, Any]:
        """The row of a step: the mean loss since the row before, and the diagnostics of the step itself."""
        loss, bad, bad_tau = self.meter.read()
        if bad >= 0:
            refuse_bad_loss(bad, self._lr(bad), bad_tau)
        if not self.config["diagnostics"]["npc_histogram"]:
            found.pop("npc/histogram", None)
        values = torch.cat([v.double().flatten() for v in found.values()]).tolist()  # one synchronisation for all
        named = {name: values.pop(0) if v.ndim == 0 else [values.pop(0) for _ in v] for name, v in found.items()}
        return {"epoch": self.step / self.per_epoch, "loss": loss, "lr": self._lr(self.step - 1), **named}

    # ---- state

    def _save(self) -> None:
        """Writes the checkpoint of this step, unless the loss was not finite on the way to it."""
        self.method.collect()
        mine = {"rng": rng_state(), "meter": self.meter.state.tolist()}
        mine["statistics"] = self.statistics.read()
        ranks: list[Any] = [mine]
        if world() > 1:
            ranks = [None] * world()
            dist.all_gather_object(ranks, mine)
        for _, _, bad, tau in (each["meter"] for each in ranks):
            if bad >= 0:
                refuse_bad_loss(int(bad), self._lr(int(bad)), tau)
        if rank() == 0:
            state = {"run_id": self.run_id, "step": self.step, "judged": self.judged, "ranks": ranks}
            state["seconds"] = self._elapsed()
        with self.statistics.averaged():
            if rank() == 0:
                state |= {name: part.state_dict() for name, part in self._stateful().items()}
                checkpoint.save(self.folder / "checkpoints", state)

    def _resume(self) -> None:
        state = checkpoint.load(self.folder / "checkpoints", self.run_id)
        if state is None:
            return
        for name, part in self._stateful().items():
            if state[name] or name != "scaler":  # one that was not scaled has nothing to say to one that is
                part.load_state_dict(state[name])
        self.step, self.judged, self.seconds = state["step"], state["judged"], state["seconds"]
        ranks = state["ranks"]
        if len(ranks) == world():  # on another number of ranks the global generators start from the seed
            set_rng_state(ranks[rank()]["rng"])
            self.meter.state.copy_(torch.tensor(ranks[rank()]["meter"]))
            self.statistics.write(ranks[rank()]["statistics"])
        log.info("resuming at step %d of %d (epoch %d)", self.step, self.last_step, self.step // self.per_epoch)

    def _stateful(self) -> dict[str, Any]:
        parts = {"method": self.method, "optimizer": self.optimizer, "scaler": self.scaler}
        return parts if self.snr is None else parts | {"snr": self.snr}

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.started

    # ---- evaluation and record

    def _evaluate(self, baselines: bool) -> tuple[dict[str, float], dict[str, Artifact]]:
        """Evaluate the network, and the baselines if asked; the random state of the training is restored."""
        kept = rng_state()
        networks: dict[str, nn.Module | None] = {"": self.encoder}
        if baselines and self.initial is not None:
            networks["_init"] = move(self.initial, self.device)
        if baselines and "raw" in self.config["evaluate"]["baselines"]:
            networks["_raw"] = None
        with self.statistics.averaged():
            targets = assemble.targets(self.config, self.dataset, networks, self.device, self.precision)
            judged = run_evaluators(assemble.evaluators(self.config), targets)
        set_rng_state(kept)
        return judged

    def _record(self, metrics: dict[str, float]) -> None:
        results = {
            "run_id": self.run_id,
            "name": self.config["name"],
            "config": self.config,
            "metrics": metrics,
            "environment": environment(self.device) | peak_memory(self.device) | {"precision": self.precision.name},
            "facts": self.facts,
            "seconds": round(self._elapsed(), 3),
        }
        files.write_json(self.folder / "results.json", results)

    def _introduce(self) -> None:
        """Says before the first step what this run amounts to."""
        size, share = self.loader.batch_size, self.loader.batch_size // world()
        self.facts = self.method.facts(size) | {
            "images_per_rank": share,
            "ranks": world(),
            "train_images": len(self.loader.images),
            "steps": self.last_step,
            "lr": self.lr,
            "parameters": sum(p.numel() for p in self.encoder.parameters()),
        }
        negatives, chosen = self.facts.get("negatives_per_anchor"), self.config["choices"]
        choice = chosen.get("negatives", chosen.get("framework"))  # where a framework brings its own
        if negatives is not None:
            say = "negatives per anchor: %d (%s, %d images over %d ranks, %d on each)"
            log.info(say, negatives, choice, size, world(), share)
            if negatives > len(self.loader.images):
                log.warning("that is more than the %d images: some are there twice or more", len(self.loader.images))
        log.info("lr after scaling: %.6g (%s rule from %g)", self.lr, self.recipe.rule, self.recipe.base_lr)
        if self.recipe.warmup_epochs >= self.config["epochs"]:
            log.warning("the rate rises to the end: optimizer.warmup_epochs is not less than epochs")
        log.info("parameters: %s, %s on %s", f"{self.facts['parameters']:,}", self.precision.name, self.device)
        if self.step < self.last_step:
            left = self.last_step - self.step
            seconds, self.per_image = step_cost(self.method, self.loader, share, self.precision)
            seconds *= left
            self.facts["estimated_seconds"] = round(seconds, 1)
            log.info("%d steps to go, %d an epoch: about %s", left, self.per_epoch, clock(seconds))

    @contextlib.contextmanager
    def _memory(self) -> Iterator[None]:
        """Says what would fit where a step does not."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self.device)
            peak = torch.cuda.max_memory_allocated(self.device)
            spare = torch.cuda.memory_reserved(self.device) - sum(p.nbytes for p in self.method.parameters()) * 4
            size = self.chunk * world() if self.chunk is not None else self.loader.batch_size
            raise RunError(out_of_memory(size, world(), peak, total, free + spare, self.per_image)) from error

    def _place(self, images: Source) -> Source:
        """The training images in the device's memory, if they are to be there and fit beside the training."""
        where = self.config["images_on"]
        if self.device.type != "cuda" or where == "host" or images.nbytes is None:
            return images
        free = torch.cuda.mem_get_info(self.device)[0]
        if where == "auto" and images.nbytes > free / 3:
            return images
        return images.to(self.device)
