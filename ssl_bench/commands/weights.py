"""``ssl-bench evaluate --weights FILE ...``: evaluate networks from elsewhere, each as a run of 0 epochs."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench.errors import ConfigError, reason

FROZEN = "framework=frozen"
Evaluation = Callable[[Sequence[str]], Any]  # carries out the command in a worker: arguments to an Outcome


def evaluate(evaluation: Evaluation, given: Sequence[str], overrides: Sequence[str], jobs: int) -> int:
    """Evaluate networks, several side by side.

    Args:
        evaluation: carries out the command for one of several networks.
        given: of each network a file of weights, ``timm:NAME``, ``timm:FOLDER`` or ``random``.
        overrides: of the configuration; ``which=momentum`` takes the second network of a file.
        jobs: networks at once.

    Raises:
        ConfigError: a file cannot be read, or does not fit the backbone.
    """
    if any(override.startswith("framework=") for override in overrides):
        raise ConfigError("framework: leave it out: the networks of --weights are not trained")
    which = [word.partition("=")[2] for word in overrides if word.startswith("which=")]
    rest = [word for word in overrides if not word.startswith("which=")]
    words = [[FROZEN, *_network(name, which[-1] if which else None, rest), *rest] for name in given]
    if len(given) == 1:
        from ssl_bench.commands import train

        return train.main(words[0])
    from ssl_bench.config import compose, schema
    from ssl_bench.config.from_disk import find_prepared
    from ssl_bench.record import folders
    from ssl_bench.record.summary import print_grid
    from ssl_bench.training.parts import Parts

    configs = [find_prepared(compose.load(words_of_one)) for words_of_one in words]
    for config in configs:  # all refusals before the first evaluation
        schema.check(config)
        Parts(config).validate(1)
    code = each_one(evaluation, {name: ["--weights", name, *overrides] for name in given}, jobs)
    print_grid({name: [(folders.find(config), 0)] for name, config in zip(given, configs, strict=True)})
    return code


def each_one(evaluation: Evaluation, arguments: Mapping[str, Sequence[str]], jobs: int) -> int:
    """Evaluate with each of some arguments, by what they evaluate, so many at once; return the largest exit code."""
    from ssl_bench.launch.workers import Worker, side_by_side

    def start(what: str, patient: object) -> Worker:
        return Worker(f"the process that evaluates {what}", evaluation, [arguments[what]])

    codes = list[int]()
    for _, outcome in side_by_side(list(arguments), jobs, start):
        codes.append(outcome.code)
        for line in filter(None, (outcome.detail, outcome.reason and f"ssl-bench: {outcome.reason}")):
            print(line, file=sys.stderr)
    return max(codes)


def _network(given: str, which: str | None, overrides: Sequence[str]) -> list[str]:
    if given == "random":
        return ["init=null"]
    if given.startswith("timm:"):
        return _of_timm(given, given.removeprefix("timm:"), overrides)
    return [_init(Path(given), which)]


def _init(path: Path, which: str | None = None) -> str:
    from ssl_bench.config.typed import quoted

    file = quoted(str(path.absolute()))
    return f"init={{path: {file}, which: {which}}}" if which else f"init={file}"


def _of_timm(given: str, name: str, overrides: Sequence[str]) -> list[str]:
    """Weights of timm by their name, or in a folder that timm has written, with timm's view of an image."""
    import json

    import timm  # heavy: only where it is used

    folder = Path(name)
    try:
        if folder.is_dir():
            described = json.loads((folder / "config.json").read_text())
            name, config, path = described["architecture"], described["pretrained_cfg"], folder / "model.safetensors"
        else:
            from huggingface_hub import hf_hub_download

            config = vars(timm.get_pretrained_cfg(name))
            path = Path(hf_hub_download(config["hf_hub_id"], config.get("hf_hub_filename") or "model.safetensors"))
    except Exception as error:  # of a network, a cache, a file and timm's tables
        remedy = "give a file of its weights, a folder with config.json and model.safetensors, or a network of timm's"
        raise ConfigError(f"{given}: its weights cannot be had ({reason(error)}): {remedy}") from error
    chosen = ["backbone=timm", f"backbone.name={name.partition('.')[0]}", _init(path)]
    wanted = _view(config, chosen, overrides)
    print(f"{given}: as timm has it, {', '.join(wanted)}", flush=True)
    return [*chosen, *wanted]


def _view(config: dict[str, Any], chosen: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The overrides with which a data set makes the view of an image that timm says, as far as it has the keys."""
    from ssl_bench.config import compose

    node = compose.load([FROZEN, *chosen, *overrides])["dataset"]
    size = config["input_size"][-1]
    view = {"mean": list(config["mean"]), "std": list(config["std"])} if node["channels"] == 3 else {}
    if "resize" in node:
        view |= {"size": size, "resize": round(size / (config.get("crop_pct") or 0.875))}
        view |= {"interpolation": config["interpolation"]}
    wanted = {f"dataset.{key}": value for key, value in view.items()}
    given = {word.partition("=")[0] for word in overrides}
    return [f"{key}={str(value).replace(' ', '')}" for key, value in wanted.items() if key not in given]
