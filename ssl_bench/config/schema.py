"""The types of the keys of ``conf/train.yaml``, and the check of their values. Imports nothing heavy.

Groups (``loss``, ``dataset`` ...) are open here: each is typed by the constructor that its ``_target_`` names, which
``build.py`` checks.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from msgspec import Meta

from ssl_bench.config.build import KINDS, checked_call
from ssl_bench.config.identity import datasets_of, name_of_labels
from ssl_bench.config.ranges import Count, Share, TwoOrMore, ZeroOrMore, converted, near, one_of
from ssl_bench.errors import ConfigError, require

# Groups that a framework with an objective of its own leaves out.
OPTIONAL = ("head", "loss", "negatives", "temperature")
OF_RUN = ("folder", "config", "run_id", "facts", "lines")  # arguments of a dashboard that the run sets
# Shares of the labelled images; a list of images is a mapping of its file and its hash.
OF_LABELS = "shares of the labelled images above 0 and up to 1, such as [0.01,0.1,1.0]"
LABELS = Annotated[list[Share | dict[str, Any]], Meta(min_length=1, description=OF_LABELS)]
NAME = Annotated[str, Meta(pattern="^[^/:]+$", description="a name in W&B")]
Types = Mapping[str, Any]  # an annotation for each key, or those of the keys below it
TRACKING: Types = {  # the keys of W&B and TensorBoard
    "mode": Literal["offline", "online", "tensorboard", "off"],
    **dict.fromkeys(("project", "entity"), NAME | None),
    "tags": list[str],
}
LAUNCHERS: Mapping[str, Types] = {
    "here": {},
    "local": {"jobs": Count | None, "runs_per_gpu": Count},
    "slurm": {  # by submitit's names but for jobs
        **dict.fromkeys(("jobs", "nodes"), Count),
        **dict.fromkeys(("tasks_per_node", "timeout_min", "signal_delay_s", "max_num_timeout"), int),
        **dict.fromkeys(("gpus_per_node", "cpus_per_task", "cpus_per_gpu", "gpus_per_task"), int | None),
        **dict.fromkeys(("partition", "account", "qos", "constraint", "exclude", "gres"), str | None),
        **dict.fromkeys(("comment", "name", "mem_per_gpu", "mem_per_cpu", "python"), str | None),
        "mem_gb": float | None,
        "stderr_to_stdout": bool,
        "setup": list[str] | None,
        "additional_parameters": Any,
    },
}
# Any stands for a group, which its _target_ types, and for what is checked elsewhere.
TOP_LEVEL: Types = {
    **dict.fromkeys((key for key in KINDS if "." not in key), Any),
    **dict.fromkeys(("init", "launcher"), Any),
    "plugins": list[str] | dict[str, str],
    **dict.fromkeys(("tf32", "compile", "compile_views"), bool),
    **dict.fromkeys(("seed", "epochs"), ZeroOrMore),
    **dict.fromkeys(("devices", "log_every", "timeout"), Count),
    "max_steps": Count | None,
    "threads": Annotated[int, Meta(ge=1, le=1024)] | None,  # with many more, torch ends in a segmentation fault
    "name": str,
    "scale": Literal["full", "reduced"],
    "precision": Literal["auto", "fp32", "fp16", "bf16", "fp64"],
    "graph": bool | Literal["auto"],
    "reduction": Literal["mean", "sum"],
    "similarity": Literal["cosine", "arctanh", "student"],
    "cosines": Literal["auto", "dense", "tiled"],
    "device": Literal["auto", "cpu"],
    "images_on": Literal["auto", "device", "host"],
    "diagnostics": {"npc_histogram": bool, "gradient_snr": Annotated[float, Meta(gt=0, lt=1)] | None},
    "checkpoint": {"every": Count},
    "paths": dict.fromkeys(
        ("data", "outputs"), Annotated[str, Meta(min_length=1, description="a folder, in quotes if it is a number")]
    ),
    "batch_size": {"size": TwoOrMore, "chunk": int | None},
}


def check(config: Mapping[str, Any]) -> None:
    """Refuse invalid top-level values of a resolved configuration.

    Raises:
        ConfigError: naming the key and what to set.
    """
    given = {key: value for key, value in config.items() if key != "choices"}
    check_keys({"plugins": {}, "launcher": {}} | given)  # which runs of earlier versions lack
    check_launcher(config["choices"].get("launcher", "here"), given.get("launcher", {}))
    _check_evaluate(config["evaluate"])
    check_tracking(config["tracking"])
    size, chunk, devices = config["batch_size"]["size"], config["batch_size"]["chunk"], config["devices"]
    divides = chunk is None or (chunk >= 1 and size % chunk == 0 and chunk % devices == 0)
    remedy = f"a divisor of batch_size.size={size} that is a multiple of devices={devices}, or to null"
    require(divides, "batch_size.chunk", chunk, remedy)
    name = config["name"]
    visible = all(folder.strip(" ")[:1] not in ("", ".") and folder != "wandb" for folder in name.split("/"))
    require(visible and name.isprintable(), "name", name, "a folder name such as cifar10_grid")


def check_launcher(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse a launcher that does not exist, and settings that it does not have or cannot use.

    Raises:
        ConfigError: naming the key and what to set.
    """
    one_of("launcher", name, tuple(LAUNCHERS))
    check_keys(settings, LAUNCHERS[name], "launcher.")


def check_keys(node: Mapping[str, Any], types: Types = TOP_LEVEL, prefix: str = "") -> None:
    """Refuse unknown keys, and values of another type than their key's.

    The constructor of a ``_target_`` checks the values of its group, and :func:`check_tracking` those of ``tracking``.

    Raises:
        ConfigError: a key is unknown or missing, or a value has another type.
    """
    for key in node:
        if key not in types:
            near_key = near(f"{prefix}{key}", [f"{prefix}{name}" for name in types])
            raise ConfigError(f"there is no key {prefix}{key}{near_key}; `ssl-bench train --cfg job` prints them all")
    for key, hint in types.items():
        path = f"{prefix}{key}"
        if key not in node:
            raise ConfigError(f"{path} is missing: set {path}")
        value = node[key]
        if path in KINDS and not (value is None and path in OPTIONAL):
            require(isinstance(value, Mapping), path, value, f"one of its options, or {path}.<argument> to a value")
        elif isinstance(hint, Mapping):
            require(isinstance(value, Mapping), path, value, f"a mapping, such as {path}.{next(iter(hint))}")
            check_keys(value, hint, f"{path}.")
        else:
            converted(value, hint, path)


def _check_evaluate(node: Mapping[str, Any]) -> None:
    """Refuse wrong values of the keys of ``evaluate`` that are no evaluators, such as ``every`` and ``labels``."""
    for key, hint in {"every": ZeroOrMore, "watch": ZeroOrMore, "baselines": list[Literal["init", "raw"]]}.items():
        converted(node.get(key), hint, f"evaluate.{key}")
    labels = converted(node.get("labels", [1.0]), LABELS, "evaluate.labels")
    remedy = "different shares of the labelled images, or files that list images: [0.01,0.1,1.0] or [1percent.txt]"
    require(len({*map(name_of_labels, labels)}) == len(labels), "evaluate.labels", labels, remedy)
    on = [images for images in datasets_of(node) if images is not None]
    named = all(isinstance(images, Mapping) and isinstance(images.get("dataset"), str) for images in on)
    require(named, "evaluate.on", node.get("on"), "a dataset, or to {dataset: folder, root: DIR}")
    names = [images["dataset"] for images in on]
    require(len({*names}) == len(names), "evaluate.on", names, "data sets of different names, which metrics have")
    for name, evaluator in node.items():
        setting = name in ("every", "watch", "baselines", "labels", "on") or isinstance(evaluator, Mapping)
        require(setting, f"evaluate.{name}", evaluator, "an evaluator, or leave it out")


def check_tracking(node: Any) -> None:
    """Refuse a dashboard that cannot be used, names that W&B would refuse, and TensorBoard where it is not installed.

    Raises:
        ConfigError: naming the key and what to set.
    """
    require(isinstance(node, Mapping), "tracking", node, "one of its options")
    if "_target_" in node:
        checked_call(node, "tracking", OF_RUN)
        return
    check_keys(node, TRACKING, "tracking.")
    # A folder of that name in the working directory is found too, but has no origin.
    if node["mode"] == "tensorboard" and not getattr(find_spec("tensorboard"), "origin", None):
        remedy = 'pip install "ssl-bench[tensorboard]", or set tracking=offline'
        raise ConfigError(f"tracking=tensorboard needs the package tensorboard: {remedy}")
