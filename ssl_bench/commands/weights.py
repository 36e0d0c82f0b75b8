"""``ssl-bench evaluate --weights FILE ...``: evaluate networks from elsewhere, each as a run of 0 epochs."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.commands.arguments import refuse
from ssl_bench.errors import ConfigError, printable, reason

ROUNDING = 1e-4  # of the largest feature
OF_THE_IMAGES = ("in_chans", "num_classes", "img_size")  # arguments of timm that the data set and the evaluators decide
EPS_OF_TIMM = 1e-6  # of LayerNorm in its ViTs
FROZEN = "framework=frozen"
Evaluation = Callable[[Sequence[str]], Any]  # carries out the command in a worker: arguments to an Outcome


def evaluate(given: Sequence[str], overrides: Sequence[str], jobs: int) -> int:
    """Evaluate networks, several side by side.

    Args:
        given: of each network a file of weights, a folder that has one, ``timm:NAME``, ``timm:FOLDER`` or ``random``.
        overrides: of the configuration; ``which=momentum`` takes the second network of a file.
        jobs: networks at once.

    Returns:
        0; 1 if one cannot be evaluated; 2 if one of several is refused, which is named, while the others are evaluated.

    Raises:
        ConfigError: the only file cannot be read, or does not fit the backbone; or all are refused for one reason.
    """
    which, rest = _without_which(overrides)
    if len(given) == 1:
        return _alone(given[0], which, rest)
    words, configs, refusals = dict[str, list[str]](), dict[str, dict[str, Any]](), dict[str, str]()
    for name in given:  # all refusals before the first evaluation
        try:
            network = _network(name, which, rest)
            words[name] = [FROZEN, *network.words, *rest]
            with _said_of(network.path, name):
                configs[name] = _validated(words[name])
        except ConfigError as error:
            refusals[name] = str(error)
    if not configs and len(set(refusals.values())) == 1:
        raise ConfigError(refusals[given[0]])
    for name, sentence in refusals.items():
        refuse(f"{name}: {sentence.removeprefix(f'{name}: ')}")
    if not configs:
        return ConfigError.exit_code
    from ssl_bench.record import folders
    from ssl_bench.record.summary import print_grid

    code = each_one(_in_worker, {name: words[name] for name in configs}, jobs)
    print_grid({name: [(folders.find(config), 0)] for name, config in configs.items()})
    return max(code, ConfigError.exit_code if refusals else 0)


def _without_which(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of ``which``, and the other overrides. Raises ConfigError for a framework."""
    if any(override.startswith("framework=") for override in overrides):
        raise ConfigError("framework: leave it out: the networks of --weights are not trained")
    which = next((word.partition("=")[2] for word in reversed(overrides) if word.startswith("which=")), None)
    return which, [word for word in overrides if not word.startswith("which=")]


def configuration(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration of one network, as :func:`evaluate` takes it.

    Raises:
        ConfigError: its file cannot be read, or does not fit the backbone.
    """
    which, rest = _without_which(overrides)
    network = _network(name, which, rest)
    with _said_of(network.path, name):
        return _validated([FROZEN, *network.words, *rest])


def _alone(name: str, which: str | None, overrides: Sequence[str]) -> int:
    """Evaluate the only network of a command."""
    from ssl_bench.commands import train

    network = _network(name, which, overrides)
    with _said_of(network.path, name):
        return train.run_command(train.read([FROZEN, *network.words, *overrides]))[0]


def _in_worker(words: Sequence[str]) -> Any:
    """A training of no epochs in a worker, which prints its own sentences."""
    from ssl_bench.commands import train
    from ssl_bench.launch.outcome import Outcome, State

    code = train.main(words)
    return Outcome(State.FAILED if code else State.DONE, code)


def _validated(words: Sequence[str]) -> dict[str, Any]:
    """The configuration of one of several networks, which can be evaluated."""
    from ssl_bench.config import compose, schema
    from ssl_bench.config.from_disk import find_prepared
    from ssl_bench.training.checked import CheckedParts

    config = find_prepared(compose.load(list(words)))
    schema.check(config)
    CheckedParts(config).validate(1)
    return config


@dataclass(frozen=True)
class Network:
    """A network of the command.

    Attributes:
        path: of its file of weights; ``Path()`` if it has none.
        words: of a training of no epochs that evaluates it.
    """

    path: Path
    words: list[str]


@contextlib.contextmanager
def _said_of(path: Path, name: str) -> Iterator[None]:
    """Say a refusal of ``init``, a file of weights, in the words of this command: the network as it was given."""
    try:
        yield
    except ConfigError as error:
        sentence = str(error)
        if path == Path() or not sentence.startswith("init"):
            raise
        sentence = sentence.replace(printable(str(path.absolute())), printable(name))
        for key, word in ((f"init={printable(name)}", name), ("or init.which to", "or set which to")):
            sentence = sentence.replace(key, word)
        raise ConfigError(sentence.replace("init.which", "which").replace("set init to", "give")) from error


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


def _network(given: str, which: str | None, overrides: Sequence[str]) -> Network:
    if given == "random":
        return Network(Path(), ["init=null"])
    if given.startswith("timm:"):
        return _of_timm(given, given.removeprefix("timm:"), overrides)
    init = _init(Path(given), which)
    words = [*_of_transformers(given, overrides), *_of_a_run(given, [init], overrides)]
    return Network(Path(given), [*words, init])


def _file(given: str) -> Path:
    """The file of weights in a folder; what is no such folder as it is."""
    from ssl_bench.config.from_disk import OF_FOLDER

    inside = Path(given) / OF_FOLDER
    return inside if inside.is_file() else Path(given)


def _of_a_run(given: str, chosen: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """How the network of a run normalises images that have no bounds; those of uint8 keep the values of their set."""
    from ssl_bench.networks.trained_on import BOUNDED, trained_on

    images = trained_on(_file(given))
    if images is None or images["image_dtype"] == BOUNDED:
        return []
    with _said_of(Path(given), given):
        wanted = _view({"mean": images["mean"], "std": images["std"]}, chosen, overrides)
    if wanted:
        print(printable(f"{given}: as in its training, {', '.join(wanted)}"), flush=True)
    return wanted


def _of_transformers(given: str, overrides: Sequence[str]) -> list[str]:
    """The argument of a network of timm that transformers has written beside its weights, unless it is timm's own."""
    from ssl_bench.networks.names import described

    of_file = described(_file(given)) or {}
    eps = of_file.get("layer_norm_eps", EPS_OF_TIMM)
    if eps == EPS_OF_TIMM or "backbone=timm" not in overrides:
        return []
    word = f"backbone.args.layer_norm_eps={eps}"
    print(printable(f"{given}: as its config.json has it, {word}"), flush=True)
    return [word]


def override(value: Any) -> str:
    """A value of JSON as Hydra reads it back."""
    from ssl_bench.config.typed import quoted

    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {override(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(override, value))}]"
    if isinstance(value, str):
        return quoted(value)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _init(path: Path, which: str | None = None) -> str:
    from ssl_bench.config.typed import quoted

    file = quoted(str(path.absolute()))
    return f"init={{path: {file}, which: {which}}}" if which else f"init={file}"


def _of_timm(given: str, name: str, overrides: Sequence[str]) -> Network:
    """Weights of timm by their name, or in a folder that timm has written, with timm's view of an image.

    The arguments with which timm builds the network become ``backbone.args``. If no override changes the backbone, its
    features must be those of timm's own network.
    """
    import json

    import timm  # heavy: only where it is used

    folder, args = Path(name), dict[str, Any]()
    try:
        if folder.is_dir():
            described = files.parse_json(files.read_bytes(folder / "config.json"))
            name, config, path = described["architecture"], described["pretrained_cfg"], folder / "model.safetensors"
            args = {key: value for key, value in described.get("model_args", {}).items() if key not in OF_THE_IMAGES}
            if "${" in json.dumps(args) or not all(key.isidentifier() for key in (name.partition(".")[0], *args)):
                raise ValueError("its config.json names no network with arguments")
        else:
            from huggingface_hub import hf_hub_download

            config = vars(timm.get_pretrained_cfg(name))
            path = Path(hf_hub_download(config["hf_hub_id"], config.get("hf_hub_filename") or "model.safetensors"))
        view = _view_of_timm(config)
    except Exception as error:  # of a network, a cache, a file and timm's tables
        remedy = "give a file of its weights, a folder with config.json and model.safetensors, or a network of timm's"
        raise ConfigError(f"{given}: its weights cannot be had ({reason(error)}): {remedy}") from error
    chosen = ["backbone=timm", f"backbone.name={name.partition('.')[0]}", _init(path)]
    chosen += [f"backbone.args={override(args)}"] if args else []
    with _said_of(path, given):
        wanted = _view(view, chosen, overrides)
    said = [*(f"backbone.args.{key}={override(value)}" for key, value in args.items()), *wanted]
    print(printable(f"{given}: as timm has it, {', '.join(said)}"), flush=True)
    if not any(word.startswith("backbone") for word in overrides):
        with _said_of(path, given):
            compare_with_timm(given, f"local-dir:{folder}" if folder.is_dir() else name, [*chosen, *wanted, *overrides])
    return Network(path, [*chosen, *wanted])


def _view_of_timm(config: Mapping[str, Any]) -> dict[str, Any]:
    """The view of an image that timm says, by keys of a data set of photos."""
    size, interpolation = int(config["input_size"][-1]), str(config["interpolation"])
    if not interpolation.isidentifier():
        raise ValueError("config.json has no interpolation")
    view = {key: [float(value) for value in config[key]] for key in ("mean", "std")}
    return view | {
        "size": size,
        "resize": round(size / float(config.get("crop_pct") or 0.875)),
        "interpolation": interpolation,
    }


def compare_with_timm(given: str, name: str, words: Sequence[str]) -> None:
    """Refuse a network whose features of two images are not those of the one that timm loads.

    Raises:
        ConfigError: they differ by more than rounding, or timm cannot load it.
    """
    import timm  # heavy: only where it is used
    import torch

    from ssl_bench.config import compose
    from ssl_bench.training.checked import CheckedParts

    config = compose.load([FROZEN, *words])
    channels, size = (config["dataset"][key] for key in ("channels", "size"))
    node = config["backbone"]
    fixed = getattr(timm.get_pretrained_cfg(node["name"]), "fixed_input_size", False)
    sized: dict[str, Any] = {"img_size": size} if fixed else {}
    images = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        parts = CheckedParts(config)
        parts.check_values()
        mine = parts.backbone.eval()
        try:
            theirs = timm.create_model(name, pretrained=True, num_classes=0, in_chans=channels, **sized)
            expected = theirs.eval()(images)
        except Exception as error:  # timm has no error class for weights that do not fit
            remedy = "give the file of its weights, and backbone=timm with the arguments of its network"
            raise ConfigError(f"{given}: timm itself cannot load it ({reason(error)}): {remedy}") from error
        features = mine(images)
    largest = float((features - expected).abs().max()) if features.shape == expected.shape else float("inf")
    if not largest <= ROUNDING * float(expected.abs().max()):
        fault = f"its features are not those of timm, by up to {largest:.2g} of {float(expected.abs().max()):.2g}"
        raise ConfigError(f"{given}: {fault}: give the file of its weights, and backbone= the network of these weights")


def _view(view: Mapping[str, Any], chosen: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The overrides with which a data set makes this view of an image, as far as it has the keys.

    Raises:
        ConfigError: the weights are those of a run, which was trained on images of another type.
    """
    from ssl_bench.config import compose
    from ssl_bench.networks.trained_on import BOUNDED, check_images, trained_on

    config = compose.load([FROZEN, *chosen, *overrides])
    node, weights = config["dataset"], Path(config["init"]["path"])
    check_images(weights, node)
    normalised = node["channels"] == 3 if node.get("dtype", BOUNDED) == BOUNDED else trained_on(weights) is not None
    keys = ["mean", "std"] * normalised + ["size", "resize", "interpolation"] * ("resize" in node)
    given = {word.partition("=")[0] for word in overrides}
    wanted = {f"dataset.{key}": str(view[key]).replace(" ", "") for key in keys if key in view}
    return [f"{key}={value}" for key, value in wanted.items() if key not in given]
