"""Whether the parts of a run fit together, asked before images, devices or other processes are touched."""

import math
import os
from collections.abc import Mapping

import torch

from ssl_bench import files
from ssl_bench.config.build import find_target, has_argument
from ssl_bench.config.identity import evaluators, untrained
from ssl_bench.data.dataset import MissingData
from ssl_bench.errors import InvalidValue, require
from ssl_bench.evaluate.run import check_evaluators
from ssl_bench.hardware import check_devices
from ssl_bench.networks.trial import try_backbone, try_map
from ssl_bench.training.parts import OBJECTIVE, Parts
from ssl_bench.training.precision import Precision


class CheckedParts(Parts):
    """The parts of a run, with the refusal of values and of parts that do not fit together."""

    def validate(self, local_processes: int | None) -> None:
        """Build and check everything without opening images or a device.

        Args:
            local_processes: how many of the ``devices`` processes run on this machine; None: another machine carries
                out the run, which may have GPUs, cores and prepared images that this one does not have.

        Raises:
            ConfigError: naming the key and what to set.
        """
        devices, size = self.config["devices"], self.config["batch_size"]["size"]
        if local_processes is not None:
            self._check_machine(local_processes)
        self.check_values()
        self._check_images()
        self._check_shapes()
        with torch.random.fork_rng(devices=[]):
            self._check_backbone()
            method = self.method
        try:
            self.recipe.groups(method)
        except InvalidValue as refusal:
            raise refusal.within("optimizer") from refusal
        method.check_groups(devices, self.config["batch_size"]["chunk"] or size)
        method.facts(size)
        try:
            images = self.dataset.check()
        except MissingData:
            if local_processes is None:
                return
            raise
        if "raw" in self.config["evaluate"]["baselines"]:
            self._check_pixels()
        remedy = f"{images} or less, the images of {self.choices.get('dataset', 'dataset')}"
        require(size <= images or untrained(self.config), "batch_size.size", size, remedy)
        self._check_evaluators()

    def check_values(self) -> None:
        """Refuse values that a constructor refuses, of all parts that need neither networks nor files.

        Raises:
            ConfigError: naming the key and what to set.
        """
        devices, size = self.config["devices"], self.config["batch_size"]["size"]
        multiple = math.ceil(size / devices) * devices
        remedy = f"a multiple of devices={devices}, such as {multiple}, or devices to a divisor of {size}"
        require(size % devices == 0 or untrained(self.config), "batch_size.size", size, remedy)
        self._check_epochs()
        _ = self.dataset, self.views, self.recipe, self.evaluators
        self._check_projection()
        for group in (*OBJECTIVE, "positives"):
            node = self.config[group]
            if node is not None and not has_argument(node, group, "instances"):
                self._part(group)

    def _check_epochs(self) -> None:
        """Refuse a training of no epochs, and a network without training that is to be trained."""
        epochs = self.config["epochs"]
        if find_target(self.config["framework"], "framework").trains:
            require(epochs >= 1, "epochs", epochs, "1 or more")
            return
        choice, baselines = f"framework={self.choices.get('framework')}", self.config["evaluate"]["baselines"]
        require(epochs == 0, "epochs", epochs, f"nothing: {choice} trains nothing")
        other = f"[raw] or []: {choice} evaluates the network as it is, and init=null one without weights"
        require("init" not in baselines, "evaluate.baselines", baselines, other)

    def _check_projection(self) -> None:
        """Refuse evaluators that need a projection, for a network that has none."""
        if find_target(self.config["framework"], "framework").projects:
            return
        chosen = f"framework={self.choices.get('framework')}"
        for name, evaluator in self.evaluators.items():
            if evaluator.needs_projection:
                remedy = f"evaluators of the backbone: {name} needs a projection, and {chosen} has no head"
                raise InvalidValue("evaluate", [*self.evaluators], remedy)

    def _check_machine(self, processes: int) -> None:
        """Refuse a run of ``processes`` on this machine if it does not have the GPUs or the cores for it."""
        check_devices(processes, self.config["device"])
        cuda = self.config["device"] != "cpu" and torch.cuda.is_available()
        require(self.config["graph"] is not True or cuda, "graph", True, "auto or false: there is no GPU")
        Precision.of(self.config["precision"], cuda)

    def _check_images(self) -> None:
        """Refuse to train or to evaluate on the images of a data set that has none."""
        if self.dataset.has_images:
            return
        name, framework = f"dataset={self.choices.get('dataset')}", self.choices.get("framework")
        require(untrained(self.config), "framework", framework, f"frozen: {name} has no images to train on")
        readers = [name for name, evaluator in self.evaluators.items() if evaluator.reads_images]
        require(not readers, "evaluate", readers, f"mutual_information: {name} has no images")

    def _check_shapes(self) -> None:
        """Refuse shapes of one part that another one does not have. The files in conf/ take them from each other."""
        _ = self.dataset  # refuses channels and sizes that are not positive
        config, size = self.config, self.views[0].size
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
        if self.dataset.dtype != "uint8":
            self._check_unbounded()

    def _check_unbounded(self) -> None:
        """Refuse what needs values from 0 to 1: images of another type than uint8 have no bounds."""
        augment, framework, of = self.config["augment"], self.config["framework"], f"images of {self.dataset.dtype}"
        nodes = {"augment": augment} | {f"augment.{k}": v for k, v in augment.items() if isinstance(v, Mapping)}
        for key, node in nodes.items():
            bright = node.get("solarize", 0)
            require(bright == 0, f"{key}.solarize", bright, f"0: {of} have no brightest value to invert them at")
        bounded = "uint8" in getattr(find_target(framework, "framework"), "needs", ())
        remedy = f"another one: its objective is for images of uint8, not for {of}"
        require(not bounded, "framework", self.choices.get("framework"), remedy)
        photos = [name for name, node in evaluators(self.config["evaluate"]).items() if "images" in node]
        require(not photos, "evaluate", photos, f"others: these have photos of their own, in uint8, and not {of}")

    def _check_backbone(self) -> None:
        """Refuse a backbone that computes no features of the views, or of the images that it is evaluated on."""
        node, augment, channels = self.config["backbone"], self.config["augment"], self.config["dataset"]["channels"]
        crops = {name: crop for name, crop in augment.items() if isinstance(crop, Mapping)}
        keys = {crop.get("size"): f"augment.{name}.size" for name, crop in crops.items()}
        keys[self.dataset.size] = "dataset.size"
        sizes = {view.size: keys.get(view.size, "augment.size") for view in self.views}
        if self.evaluators:
            sizes[self.dataset.size] = "dataset.size"
        for size, key in sizes.items():
            try_backbone(self.backbone, node, channels, size, key)
        if "map" in getattr(find_target(self.config["framework"], "framework"), "needs", ()):
            name, framework = self.choices.get("backbone"), self.choices.get("framework")
            try_map(self.backbone, str(name), f"framework={framework}", channels, self.views[0].size)

    def _check_pixels(self) -> None:
        """Refuse raw pixels of the centres of photos that take more than half of this machine's memory."""
        for _, _, dataset in self.evaluated:
            if dataset.eval_view and not dataset.has_pixels:
                count, size = dataset.check(), dataset.eval_view["size"]
                needed = 4 * count * dataset.channels * size**2
                remedy = f"[init]: the pixels of {count:,} images of {size} x {size} take {needed / 1e9:,.0f} GB"
                fits = needed < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
                require(fits, "evaluate.baselines", self.config["evaluate"]["baselines"], remedy)

    def _check_evaluators(self) -> None:
        """Refuse evaluators that cannot work with the images or the network."""
        networks, cpu = {"": self.method.encoder}, torch.device("cpu")
        for data, targets in self.targets_by_data(networks, cpu, Precision.of("fp32", False)):
            check_evaluators(self.evaluators_for(*data), targets)
        for sentence in self.copied:
            files.say_once(sentence)
