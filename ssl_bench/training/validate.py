"""Check that the parts of a run fit together, before images, devices or other processes are touched.

:func:`validate` checks one run, :func:`refusals` all runs of a grid. Networks that are equal in several runs are built
once.
"""

import copy
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ssl_bench.config import schema
from ssl_bench.config.build import find_target, has_argument
from ssl_bench.config.identity import evaluators, untrained
from ssl_bench.data.dataset import MissingData
from ssl_bench.errors import ConfigError, InvalidValue, require
from ssl_bench.evaluate.run import check_evaluators
from ssl_bench.hardware import check_devices
from ssl_bench.methods.base import Method
from ssl_bench.networks.trial import try_backbone
from ssl_bench.training import build
from ssl_bench.training.build import NETWORKS, OBJECTIVE, Run, Shared
from ssl_bench.training.precision import Precision

EVALUATED = (*NETWORKS, "evaluate", "augment")  # keys that the checks of the networks depend on


def refusals(
    configs: Sequence[dict[str, Any]],
    here: bool,
    ranks: Callable[[dict[str, Any]], int] = lambda config: config["devices"],
) -> list[ConfigError | None]:
    """The reasons why runs cannot be carried out; None for each run that can.

    Args:
        here: whether this machine will carry out the runs.
        ranks: number of processes of a run on this machine, if it carries out the runs.
    """
    shared, reasons = Shared(), list[ConfigError | None]([None] * len(configs))
    texts = [build.text_without_seed(config, (*NETWORKS, "negatives", "positives")) for config in configs]
    for number in sorted(range(len(configs)), key=lambda number: texts[number]):
        try:
            schema.check(configs[number])
            validate(configs[number], ranks(configs[number]) if here else None, shared)
        except ConfigError as error:
            reasons[number] = copy.copy(error)  # without the networks in its traceback and its causes
    return reasons


def validate(config: dict[str, Any], local_processes: int | None, shared: Shared | None = None) -> None:
    """Build the parts of a run and check that they fit, without opening images or a device.

    Args:
        local_processes: how many of the ``devices`` processes run on this machine; None: another machine carries
            out the run, which may have GPUs, cores and prepared images that this one does not have.

    Raises:
        ConfigError: naming the key and what to set.
    """
    if local_processes is not None:
        check_devices(local_processes, config["device"])
        cuda = config["device"] != "cpu" and torch.cuda.is_available()
        require(config["graph"] is not True or cuda, "graph", True, "auto or false: there is no GPU")
        Precision.of(config["precision"], cuda)
    run, made = build.build(config, shared), build.evaluators(config)
    _check_numbers(config, made)
    _check_objective(run)
    _check_images(run, made)
    _check_shapes(run)
    with torch.random.fork_rng(devices=[]):
        run.shared.once("tried", config, EVALUATED, lambda: _try_backbone(run))
        method = build.method(run)
    _check_method(run, method)
    try:
        images = run.dataset.check()
    except MissingData:
        if local_processes is None:
            return
        raise
    size, remedy = config["batch_size"]["size"], f"{images} or less, the images of {config['choices'].get('dataset')}"
    _check_pixels(run)
    require(size <= images or untrained(config), "batch_size.size", size, remedy)
    run.shared.once("evaluated", config, EVALUATED, lambda: _check_evaluators(run, method))


def _check_numbers(config: dict[str, Any], made: build.Evaluators) -> None:
    """Refuse a batch, epochs, baselines or evaluators that do not fit the ranks or the framework."""
    framework, chosen = find_target(config["framework"], "framework"), f"framework={config['choices'].get('framework')}"
    size, devices, epochs = config["batch_size"]["size"], config["devices"], config["epochs"]
    multiple = math.ceil(size / devices) * devices
    remedy = f"a multiple of devices={devices}, such as {multiple}, or devices to a divisor of {size}"
    require(size % devices == 0 or untrained(config), "batch_size.size", size, remedy)
    if framework.trains:
        require(epochs >= 1, "epochs", epochs, "1 or more")
    else:
        require(epochs == 0, "epochs", epochs, f"nothing: {chosen} trains nothing")
        baselines = config["evaluate"]["baselines"]
        remedy = f"[raw] or []: {chosen} evaluates the network as it is, and init=null one without weights"
        require("init" not in baselines, "evaluate.baselines", baselines, remedy)
    for name, evaluator in made.items():
        remedy = f"evaluators of the backbone: {name} needs a projection, and {chosen} has no head"
        require(framework.projects or not evaluator.needs_projection, "evaluate", [*made], remedy)


def _check_objective(run: Run) -> None:
    """Build the objective before the networks: its constructors refuse wrong settings, and take no time."""
    loss = run.config["loss"]
    if loss is not None and hasattr(find_target(loss, "loss"), "fresh"):
        raise ConfigError(f"loss._target_={loss['_target_']}: rename its method fresh, which is called for_update now")
    for group in (*OBJECTIVE, "positives"):
        if run.config[group] is not None and not has_argument(run.config[group], group, "instances"):
            build.part(run, group)


def _check_images(run: Run, made: build.Evaluators) -> None:
    """Refuse trainings and evaluators of images on a dataset that has none."""
    if not run.dataset.has_images:
        choices, name = run.config["choices"], f"dataset={run.config['choices'].get('dataset')}"
        remedy = f"frozen: {name} has no images to train on"
        require(untrained(run.config), "framework", choices.get("framework"), remedy)
        readers = [name for name, evaluator in made.items() if evaluator.reads_images]
        require(not readers, "evaluate", readers, f"mutual_information: {name} has no images")


def _check_shapes(run: Run) -> None:
    """Refuse channels, sizes and widths that differ between two parts. The files in conf/ take them from each other."""
    config, size, dtype = run.config, run.views[0].size, run.dataset.dtype
    channels, width = config["dataset"]["channels"], (config["head"] or {}).get("out")
    of_images, of_views = f"{channels}, the channels of the images", f"{size}, the size of the views"
    shapes = [
        ("backbone", "in_channels", channels, of_images),
        ("framework", "channels", channels, of_images),
        ("framework", "size", size, of_views),
        ("negatives", "dim", width, f"{width}, which is head.out"),
        ("positives", "dim", width, f"{width}, which is head.out"),
    ]
    for group, key, value, remedy in shapes:
        given = (config[group] or {}).get(key, value)
        require(given == value, f"{group}.{key}", given, remedy)
    if dtype == "uint8":  # others have no bounds
        return
    augment, of = config["augment"], f"images of {dtype}"
    for key, node in {"augment": augment, **{f"augment.{name}": node for name, node in augment.items()}}.items():
        bright = node.get("solarize", 0) if isinstance(node, Mapping) else 0
        require(bright == 0, f"{key}.solarize", bright, f"0: {of} have no brightest value to invert them at")
    bounded = "uint8" in getattr(find_target(config["framework"], "framework"), "needs", ())
    remedy = f"another one: its objective is for images of uint8, not for {of}"
    require(not bounded, "framework", config["choices"].get("framework"), remedy)
    photos = [name for name, node in evaluators(config["evaluate"]).items() if "images" in node]
    require(not photos, "evaluate", photos, f"others: these have photos of their own, in uint8, and not {of}")


def _try_backbone(run: Run) -> None:
    """Refuse a backbone that computes no features of the views, or of the images that it is evaluated on."""
    config, choices = run.config, run.config["choices"]
    crops = {name: crop for name, crop in config["augment"].items() if isinstance(crop, Mapping)}
    keys = {crop.get("size"): f"augment.{name}.size" for name, crop in crops.items()}
    keys[run.dataset.size] = "dataset.size"
    sizes = {view.size: keys.get(view.size, "augment.size") for view in run.views}
    if evaluators(config["evaluate"]):
        sizes[run.dataset.size] = "dataset.size"
    maps = "map" in getattr(find_target(config["framework"], "framework"), "needs", ())
    needs_map = f"framework={choices.get('framework')}" if maps else ""
    try_backbone(config["backbone"], config["dataset"]["channels"], sizes, needs_map, choices.get("backbone", ""))


def _check_method(run: Run, method: Method) -> None:
    """Refuse an optimiser, groups of batch statistics or a batch size that do not fit the method."""
    batch = run.config["batch_size"]
    try:
        run.recipe.groups(method)
    except InvalidValue as refusal:
        raise refusal.within("optimizer") from refusal
    method.check_groups(run.config["devices"], batch["chunk"] or batch["size"])
    method.facts(batch["size"])


def _check_pixels(run: Run) -> None:
    """Refuse raw pixels of the centres of photos that take more than half of this machine's memory."""
    baselines = run.config["evaluate"]["baselines"]
    for _, _, images in run.evaluated if "raw" in baselines else ():
        if images.eval_view and not images.has_pixels:
            count, size = images.check(), images.eval_view["size"]
            needed = 4 * count * images.channels * size**2
            remedy = f"[init]: the pixels of {count:,} images of {size} x {size} take {needed / 1e9:,.0f} GB"
            fits = needed < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
            require(fits, "evaluate.baselines", baselines, remedy)


def _check_evaluators(run: Run, method: Method) -> None:
    """Refuse evaluators that cannot work with the images or the network."""
    for _, made, targets in build.cells(run, {"": method.encoder}, torch.device("cpu"), Precision.of("fp32", False)):
        check_evaluators(made, targets)
