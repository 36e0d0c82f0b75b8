"""Say in words what a composed configuration does: the recipe of a cell, as a paper would write it.

    images      CIFAR-10 at 32 pixels, minus 0.4914 0.4822 0.4465, over 0.2023 0.1994 0.201
    training    200 epochs, 512 images per step
    optimiser   SGD 0.03 for 256 images (0.06 here), momentum 0.9, weight decay 5e-4 without norms and biases ...

A recipe is made of the resolved configuration alone. It has every key that changes results: an option without words of
its own is printed with its name and value. Only these are left out: seeds, how a run is carried out, what is recorded
beside the results, options that have no effect beside the others, and the usual values of a few (``Part.drop``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssl_bench.config.compositions import Progress, compositions
from ssl_bench.config.identity import VOLATILE
from ssl_bench.errors import ConfigError
from ssl_bench.papers.cells import Metric
from ssl_bench.papers.overrides import merge
from ssl_bench.papers.plan import Request

NAMES = {
    **{"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "stl10": "STL-10", "mnist": "MNIST", "imagenet": "ImageNet"},
    "imagenet64": "downsampled ImageNet",
}
DATASETS = (
    "ArrayDataset",
    "FolderDataset",
    "MultiDigits",
    "DigitOnImageNet",
    "BitImages",
    "RandBitArrays",
    "RandBitFolder",
)
FEATURES = {"ResNet-18": 512, "ResNet-34": 512, "ResNet-50": 2048, "ResNet-101": 2048, "ResNet-152": 2048}
WITHOUT_TAU = ("SWD", "BYOL", "AlignUniform")
STEMS = {"cifar": "3 x 3 stem of stride 1, no max-pool", "imagenet": "7 x 7 stem of stride 2, max-pool"}
FILTERS = {"bicubic_tf": "bicubic of TensorFlow"}
VIEWS = {"NPID": "one view", "MoCoCLD": "three views"}  # of an image; other methods take two


def recipes(request: Request, progress: Progress = lambda each, count: each) -> dict[str, list[str]]:
    """The recipes of the selected cells: each with the cells that have it, one text for each row of a table.

    Args:
        progress: iterates over the configurations that are composed.

    Raises:
        ConfigError: the selection or an override does not fit.
    """
    selected = [(table.name, cell) for table in request.selection.tables() for cell in request.selection.cells(table)]
    asked = {cell: (cell.command, tuple(merge(cell.overrides, request.overrides))) for _, cell in selected}
    composed = compositions(sorted({asked[cell] for cell in asked if cell.available}), progress)
    rows: dict[str, dict[str, tuple[list[str], list[str]]]] = {}  # recipe -> row -> its columns and their metrics
    for name, cell in selected:
        if cell.available:
            result = composed[asked[cell]]
            if isinstance(result, ConfigError) and request.overrides:
                raise result
        else:
            result = ConfigError(f"needs {cell.missing}" if cell.missing else "nothing to run")
        failed = isinstance(result, ConfigError)
        text = f"  no recipe: {result}" if failed else "\n".join(describe(result.config(cell.seeds[0])))
        columns, metrics = rows.setdefault(text, {}).setdefault(f"{name} {cell.label}", ([], []))
        columns.append(cell.column)
        metric = Metric.read(cell.metric) if cell.metric else Metric("no metric", "", None)
        metrics.append(f"{metric.name}@{metric.choice}".removesuffix("@"))
    return {
        text: [
            f"{row} | {', '.join(columns)} ({', '.join(dict.fromkeys(metrics))})" for row, (columns, metrics) in each
        ]
        for text, each in ((text, row.items()) for text, row in rows.items())
    }


def describe(config: Mapping[str, Any]) -> list[str]:
    """Say what a resolved configuration of ``train``, ``mi`` or ``weight`` does, one line for each topic."""
    if "information" in config:
        return _lines(_mutual_information(Part(config)))
    if "positive" in config:
        return _lines(_weight(Part(config)))
    return _lines(_training(Part({k: v for k, v in config.items() if k not in VOLATILE or k == "paths"})))


class Part:
    """A node of a configuration whose keys are taken out one after another; the rest is printed by name.

    Attributes:
        kind: name of the class that its ``_target_`` names.
        left: the keys that have not been taken yet.
    """

    def __init__(self, node: Mapping[str, Any]) -> None:
        self.left = dict(node)
        self.kind: str = str(self.left.pop("_target_", "")).rpartition(".")[2]

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is not printed by name then."""
        return self.left.pop(key, default)

    def drop(self, *keys: str, **usual: Any) -> None:
        """Leave keys out that have no effect, and those that have their usual value."""
        self.left = {k: v for k, v in self.left.items() if k not in keys and (k not in usual or v != usual[k])}

    def rest(self) -> list[str]:
        """The keys that are left, with their values."""
        return [f"{key.replace('_', ' ')} {_text(value)}" for key, value in self.left.items()]


def _lines(topics: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    return [f"  {topic:<12}{', '.join(part for part in parts if part)}" for topic, parts in topics if any(parts)]


def _text(value: Any) -> str:
    """A value as a paper prints it: 65,536, 5e-4, 0.1, a list with spaces, yes, no or none."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_text(entry)}" for key, entry in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value)) or "none"
    if not isinstance(value, int | float):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e-3 or not math.isfinite(value):
        return f"{value:.6g}"
    mantissa, exponent = f"{value:.5e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _rounded(value: float) -> str:
    return _text(float(f"{value:.4g}"))


def _range(bounds: Sequence[float]) -> str:
    return "-".join(map(_text, bounds))


# ---- ssl-bench train


def _training(top: Part) -> Iterable[tuple[str, Sequence[str]]]:
    """The topics of a training."""
    top.drop("seed", "scale", "choices")
    dataset, backbone, head = Part(top.take("dataset")), Part(top.take("backbone")), Part(top.take("head"))
    framework, evaluate = Part(top.take("framework")), dict(top.take("evaluate"))
    batch, epochs, reduction = Part(top.take("batch_size")), top.take("epochs"), top.take("reduction")
    size = batch.take("size")
    loss, negatives, temperature = (Part(top.take(key) or {}) for key in ("loss", "negatives", "temperature"))
    normal = {"mean": dataset.left.get("mean"), "std": dataset.left.get("std")}
    folder = f"{top.take('paths')['data']}/"
    network, width = _backbone(backbone, dataset.left.get("channels"))

    yield "images", _images(dataset)
    yield "training", [f"{_text(epochs)} epochs, {_text(size)} images per step", *_extras(top, batch, evaluate)]
    yield "optimiser", _optimizer(Part(top.take("optimizer")), size, epochs)
    yield "network", network
    yield "head", _head(head, width)
    yield "views", _views(top.take("augment"), VIEWS.get(framework.kind, "two views"), normal)
    if framework.kind == "Siamese":
        yield "method", _siamese(framework, loss.kind, negatives.kind)
        yield "loss", [*_loss(loss, temperature), _reduction(reduction)]
        yield "negatives", _negatives(negatives, size)
    else:
        method, objective = _own_objective(framework, size)
        yield "method", [*method, *framework.rest()]
        yield "loss", objective
    for name, node in evaluate.items():
        text = ", ".join(filter(None, _evaluator(Part(node), name, normal)))
        yield "evaluation", [f"{name}: {text.replace(folder, '')}"]
    yield "other", top.rest()


def _images(part: Part) -> list[str]:
    """The dataset."""
    part.drop("seed", "torchvision", "num_classes", "channels", "train_images", "epochs", "knn_k", "workers")
    part.drop(pretrain=["train"], train="train", test="val", classes=None, packed=False)
    if not part.left.get("packed"):
        part.drop(resize=256)  # of the evaluation, which takes the centre
    name = str(part.left.get("name", part.left.get("folder", part.kind)))
    name = NAMES.get(name, name) if part.kind in (*DATASETS, name) else f"{part.kind} {name}"
    part.drop("name", "folder")
    if "classes" in part.left:
        name = f"the classes of {part.take('classes')} in {name}"
    if part.kind == "MultiDigits":
        sizes, placement = " and ".join(map(_text, part.take("sizes") or [28])), part.take("placement")
        where = "in cells" if placement == "grid" else f"placed {placement}ly"
        name = f"{_text(part.take('digits'))} MNIST digits of {sizes} pixels, {where} on a canvas"
    elif part.kind == "DigitOnImageNet":
        name = f"{name} with one of {_text(part.take('digits'))} MNIST digits on each photo ({part.take('combine')})"
    elif part.kind == "BitImages":
        name = f"{_text(part.take('images'))} images of {_text(part.take('bits'))} channels of one bit each"
    elif part.kind.startswith("RandBit"):
        name = f"{name} with {_text(part.take('bits'))} channels of random bits"
    size, mean, std = part.take("size"), part.take("mean") or [], part.take("std") or []
    plain = not any(mean) and set(std) <= {1}
    pixels = "pixels in [0, 1]" if plain else f"minus {_text(mean)}, over {_text(std)}"
    name += f" ({' and '.join(part.take('pretrain'))})" if "pretrain" in part.left else ""
    return [f"{name} at {_text(size)} pixels", pixels if mean else "", *part.rest()]


def _extras(top: Part, batch: Part, evaluate: dict[str, Any]) -> list[str]:
    """Other facts of the training: where it stops, its precision and what is measured meanwhile."""
    every, steps, diagnostics = evaluate.pop("every", 0), top.take("max_steps"), Part(top.take("diagnostics", {}))
    evaluate.pop("baselines", None)
    batch.drop(chunk=None)
    diagnostics.drop("npc_histogram", gradient_snr=None)
    precision = top.take("precision")
    top.drop(tf32=True, compile=False, plugins=[])
    return [
        f"stopped after {_text(steps)} steps" if steps is not None else "",
        f"in {precision}" if precision != "auto" else "",
        f"evaluated every {'epoch' if every == 1 else f'{_text(every)} epochs'}" if every else "",
        *batch.rest(),
        *diagnostics.rest(),
    ]


def _optimizer(part: Part, size: int, epochs: int) -> list[str]:
    """The optimiser with its rate, decay and schedule."""
    lr, base, rule = part.take("lr"), part.take("base_batch"), part.take("rule")
    ratio = size / base
    rate = {
        "linear": f"{_text(lr)} for {_text(base)} images ({_rounded(lr * ratio)} here)",
        "sqrt": f"{_text(lr / math.sqrt(base))} sqrt(N) ({_rounded(lr * math.sqrt(ratio))} here)",
        "none": f"{_text(lr)} at every batch size",
    }[rule]
    momentum, nesterov, decay = part.take("momentum", 0.0), part.take("nesterov", False), part.take("weight_decay")
    where = "on all weights" if part.take("decay_norms", False) else "without norms and biases"
    part.drop(betas=[0.9, 0.999], trust_coefficient=0.001)
    return [
        f"{part.kind} {rate}",
        f"{'Nesterov ' if nesterov else ''}momentum {_text(momentum)}" if momentum else "",
        f"weight decay {_text(decay)} {where}" if decay else "no weight decay",
        _schedule(part, epochs),
        *part.rest(),
    ]


def _schedule(part: Part, epochs: int) -> str:
    """The course of the rate."""
    kind, milestones, final = part.take("schedule"), part.take("milestones"), part.take("final_lr")
    warmup, start = part.take("warmup_epochs"), part.take("warmup_start")
    text = {"step": f"times 0.1 after epochs {' and '.join(f'{m * epochs:.4g}' for m in milestones)}"}.get(kind, kind)
    if kind in ("cosine", "linear"):
        text = f"{kind} to {_text(final)}" + (" of the rate" if final else "")
    elif kind == "constant":
        text = "constant rate"
    beginning = f"{_text(start)} of the rate" if start else "0"
    joined = f"{text}," if kind == "step" else f"{text} after"
    return f"{joined} {_text(warmup)} epochs of warm-up from {beginning}" if warmup else text


def _backbone(part: Part, channels: int | None) -> tuple[list[str], int | None]:
    """The network, and the width of its features if it is known."""
    part.drop(in_channels=channels)
    name, width = part.kind, None
    if part.kind == "timm_backbone":
        part.drop("size")
        name = re.sub(r"^resnet(\d+)$", r"ResNet-\1", part.take("name"))
        width = FEATURES.get(name)
    elif part.kind == "wide_resnet50":
        wider = part.take("width")
        name, width = f"ResNet-50 with {_text(wider)} times the channels", 2048 * wider
    elif part.kind == "DigitsResNet":
        width = 4 * part.left["width"]
    elif part.kind == "ConvN":
        part.drop("size")
        name, width = "ConvN (three 3 x 3 convolutions, one Linear)", 128
    stem, zero = part.take("stem"), part.take("zero_init_residual")
    start = "" if zero is None else f"residual blocks {'start' if zero else 'do not start'} at zero"
    shown = "" if stem == "imagenet" and not name.startswith("ResNet") else STEMS.get(stem, "")  # the network's own
    return [name, shown, start, *part.rest()], width


def _head(part: Part, width: int | None) -> list[str]:
    """The head: its widths, and after which layers it has a BN."""
    if part.kind != "MLP":
        return [part.kind, *part.rest()]
    layers, hidden, out = part.take("layers"), part.take("hidden"), part.take("out")
    inputs = "features" if width is None else width
    widths = hidden if isinstance(hidden, list) else [inputs if hidden is None else hidden] * (layers - 1)
    norm, final = part.take("norm") and layers > 1, part.take("final_norm")
    last = {"none": "", "scale": "BN with a scale but no shift", "affine": "BN with scale and shift"}[final]
    norms = ["BN after each hidden layer" if norm else "", f"{last or 'no BN'} after the last layer"]
    shape = "-".join(map(str, (inputs, *widths, out)))
    return [f"{'linear' if layers == 1 else 'MLP'} {shape}", *(norms if norm or last else ["no BN"]), *part.rest()]


def _views(node: Mapping[str, Any], count: str, normal: Mapping[str, Any]) -> list[str]:
    """The views of an image: two alike, or several kinds."""
    if "_target_" in node:
        return [f"{count}: {', '.join(_view(Part(node), normal))}"]
    kinds = [Part(kind) for kind in node.values()]
    return ["; ".join(f"{_text(kind.take('count'))} x ({', '.join(_view(kind, normal))})" for kind in kinds)]


def _view(part: Part, normal: Mapping[str, Any]) -> list[str]:
    """How a view is made, in the order of the operations."""
    part.drop(**normal)
    if part.kind != "Views":
        return [part.kind, *part.rest()]
    size, scale, filtering = part.take("size"), part.take("scale"), part.take("interpolation")
    whole = list(scale) == [1, 1] and list(part.left.get("ratio", ())) == [1, 1]
    part.drop(*(["ratio"] if whole else []), ratio=[0.75, 4 / 3])
    flip, gray, solarize = part.take("flip"), part.take("grayscale"), part.take("solarize", 0.0)
    jitter, strength, jitter_p = part.take("jitter"), part.take("strength", 1.0), part.take("jitter_p", 0.8)
    blur, kernel, sigma = part.take("blur", 0.0), part.take("blur_kernel"), part.take("blur_sigma")
    gray_first = part.take("grayscale_first", False)
    gray_text = f"grayscale {_text(gray)}" if gray else ""
    jitter_text = f"jitter {_text([strength * each for each in jitter])} with p {_text(jitter_p)}" if jitter else ""
    colours = [gray_text, jitter_text] if gray_first else [jitter_text, gray_text]
    kernel = kernel or 2 * max(1, size // 20) + 1
    parts = [
        "the whole image" if whole else f"crop {_range(scale)} to {_text(size)} ({FILTERS.get(filtering, filtering)})",
        "" if not flip else "flip" if flip == 0.5 else f"flip {_text(flip)}",
        *colours,
        f"blur {_text(blur)} ({_text(kernel)} pixels, sigma {_range(sigma)})" if blur else "",
        f"solarise {_text(solarize)}" if solarize else "",
        *part.rest(),
    ]
    return [each for each in parts if each]


def _statistics(part: Part) -> str:
    """Over which images batch statistics are. With one group, ``local`` and ``shuffle`` are ``sync``."""
    norm, groups = part.take("norm"), part.take("groups", 1)
    if norm == "sync" or groups == 1:
        return "batch statistics over the whole batch"
    return f"batch statistics over each of {_text(groups)} groups{', others for keys' if norm == 'shuffle' else ''}"


def _momentum(part: Part) -> str:
    momentum, final = part.take("momentum"), part.take("final_momentum")
    rising = f" rising to {_text(final)}" if final is not None else ""
    return f"a momentum network of {_text(momentum)}{rising}"


def _siamese(part: Part, loss: str, negatives: str) -> list[str]:
    """The Siamese framework, by the name of the method that it amounts to."""
    averaged, symmetric, predictor = part.left["momentum"] is not None, part.take("symmetric"), part.take("predictor")
    forwards = part.take("views_forward")
    name = "one network for both views"
    if averaged:
        name = "BYOL" if predictor else "MoCo" if negatives == "Queue" else "SiMo"
        name += f": keys from {_momentum(part)}"
    elif symmetric and not predictor:
        name = "ReLIC" if loss == "ReLIC" else "SimCLR"
    part.drop(momentum=None, final_momentum=None)
    together = "one forward for both views" if forwards == "joint" else "one forward for each view"
    return [
        name,
        "both views are anchors" if symmetric else "the first view is the anchor",
        f"predictor with {_text(predictor)} hidden units" if predictor else "",
        together if symmetric or not averaged else "",  # else each network sees one view
        _statistics(part),
        *part.rest(),
    ]


def _own_objective(part: Part, size: int) -> tuple[list[str], list[str]]:
    """A method with a loss of its own: the method, and the loss."""
    kind, statistics = part.kind, _statistics(part)
    part.drop("seed", "sharded")
    if kind in ("NPID", "NPIDCLD"):
        noise, tau = part.take("noise"), _text(part.take("tau"))
        method = (
            f"NPID with a memory of one vector per image, the old one's share {_text(part.take('memory_momentum'))}"
        )
        among = f"NCE with {_text(noise)} noise images" if noise else "softmax over all images of the memory"
        loss = [f"{among} at temperature {tau}", _cld(part)]
    elif kind == "MoCoCLD":
        method = f"MoCo of two queries, whose key is a third view from {_momentum(part)}"
        loss = [
            f"InfoNCE at temperature {_text(part.take('tau'))} with the last {_text(part.take('k'))} keys",
            _cld(part),
        ]
    elif kind == "InvSpread":
        method = "Inv. Spread: each view must find the other one in the batch"
        others = f"the {_text(2 * size - 2)} views of other images"
        loss = [f"invariance, and spread from {others}, at temperature {_text(part.take('tau'))}"]
    elif kind == "Exemplar":
        method, loss = "Exemplar: every image is a class", ["cross-entropy of both views with the index of the image"]
    elif kind == "Supervised":
        method, loss = "supervised", ["cross-entropy of both views with the labels"]
    elif kind == "VAE":
        part.drop("channels", "size", "mean", "std")
        once = "once per image" if part.take("constants") == "once" else "at each of its pixels"
        method = f"VAE with a decoder of width {_text(part.take('width'))}"
        loss = [f"reconstruction + {_text(part.take('beta'))} x KL divergence, an added bit counts {once}"]
    else:
        method, loss = kind, ["its own"]
    return [method, statistics], loss


def _cld(part: Part) -> str:
    """The term of cross-level discrimination; nothing without one."""
    weight = part.take("weight", 0.0)
    clusters, tau, iterations = part.take("clusters"), part.take("cld_tau"), part.take("iterations")
    if not weight:
        return ""
    means = f"{_text(clusters)} clusters of the batch ({_text(iterations)} iterations of k-means)"
    return f"+ {_text(weight)} x CLD at temperature {_text(tau)} with {means}"


def _loss(part: Part, temperature: Part) -> list[str]:
    """The loss of a contrastive method."""
    take = {key: _text(part.take(key)) for key in ("weight", "sigma", "alpha", "ratio", "form", "prior", "t")}
    weight, form = take["weight"], "equation 4" if take["form"] == "paper" else f"{take['form']} form"
    part.drop("seed", scale=1.0)
    detached, own_view = part.take("detach_target", False), part.take("own_view", False)
    gradient = "target without gradient" if detached else "gradient through both distributions"
    own = ", also of each view with itself" if own_view else ""
    text = {
        "DCLW": f"DCLW with sigma {take['sigma']}",
        "EqCo": f"EqCo with alpha {take['alpha']}",
        "MACLW": "MACL-w",
        "DualTemperature": f"dual temperature, {take['ratio']} times as high between anchors",
        "ReLIC": f"InfoNCE + {weight} x divergence of the views{own} ({gradient})",
        "DecoupledNTXent": f"decoupled NT-Xent ({form}) with weight {weight}",
        "SWD": f"alignment + {weight} x sliced Wasserstein distance to a {take['prior']} prior",
        "AlignUniform": f"alignment + {weight} x uniformity with t {take['t']}",
        "BYOL": "2 - 2 cos",
    }.get(part.kind, part.kind)
    times = part.take("scale")
    text = text if times is None else f"{_text(times)} x ({text})"
    at = "" if part.kind in WITHOUT_TAU else f" at temperature {_temperature(temperature)}"
    return [f"{text}{at}", *part.rest(), *(temperature.rest() if at else [])]


def _temperature(part: Part) -> str:
    """The temperature over the training."""
    part.drop("epochs")  # those of the training
    tau, mean = _text(part.take("tau")), "A the mean cosine of the positives"
    if part.kind == "Linear":
        return f"{tau} + {_text(part.take('slope'))} per epoch"
    if part.kind == "MACLa":
        return f"{tau} x {_text(part.take('alpha'))}^A, {mean}"
    if part.kind == "MACLb":
        return f"{tau} x (1 + {_text(part.take('beta'))} A), {mean}"
    return tau if part.kind == "Fixed" else f"{tau} ({part.kind.lower()})"


def _reduction(name: str) -> str:
    return "mean over all anchors" if name == "mean" else "sum over the views of the mean over images"


def _negatives(part: Part, size: int) -> list[str]:
    """The negatives of an anchor in a batch of ``size`` images."""
    part.drop("seed", "dim")
    others = f"the {_text(size - 1)} other images of the batch"
    pools = {"all": f"{_text(2 * size - 2)}, both views of {others}", "cross": f"{others} in the view of the positive"}
    k = part.take("k")
    if part.kind == "InBatch":
        text = pools["all"]
    elif part.kind == "CrossView":
        text = pools["cross"]
    elif part.kind == "RandomK":
        pool, shared = pools[part.take("views")], part.take("shared")
        per = "per step, the same for all anchors," if shared else "per anchor and step"
        text = f"{_text(k)} drawn {per} from {pool}"
    elif part.kind == "Queue":
        text = f"the last {_text(k)} keys" if k >= size else f"{_text(k)} random keys of the previous batch"
    elif part.kind == "MemoryBank":
        text = f"{'all' if k is None else _text(k)} other images, one remembered key each"
    else:
        text = "none" if part.kind == "NoNegatives" else part.kind
    return [text, *part.rest()]


# ---- evaluators


def _evaluator(part: Part, name: str, normal: Mapping[str, Any]) -> list[str]:
    """An evaluator; one without words of its own by its keys."""
    part.drop("per_class", "bins", **normal)
    if part.kind == "KNN":
        k, tau = _text(part.take("k")), _text(part.take("temperature"))
        features = f"on the backbone's features ({name}/top1) and the head's outputs ({name}/projection_top1)"
        return [f"k = {k} at temperature {tau} {features}", *part.rest()]
    if part.kind == "LinearProbe":
        rates, momentum, decay = part.take("lrs"), part.take("momentum"), part.take("weight_decay")
        features = "backbone's features" if part.take("features") == "backbone" else "head's outputs"
        return [
            f"classifier on the {features} of images without augmentation",
            f"SGD at the best of {_text(rates)} on a held-out tenth, momentum {_text(momentum)}",
            f"weight decay {_text(decay)}" if decay else "no weight decay",
            f"cosine, {_text(part.take('epochs'))} epochs of batches of {_text(part.take('batch_size'))}",
            *part.rest(),
        ]
    if part.kind == "LinearOnImages":
        return _linear_on_images(part)
    named = part.kind.lower() == name.replace("_", "")
    return ["" if named else part.kind, *part.rest()] if part.left else [part.kind]


def _linear_on_images(part: Part) -> list[str]:
    """A linear classifier that is trained on views."""
    layers, optimizer, lr = part.take("layers"), part.take("optimizer"), part.take("lr")
    momentum, nesterov, decay = part.take("momentum"), part.take("nesterov"), part.take("weight_decay")
    schedule, milestones, gamma = part.take("schedule"), part.take("milestones"), part.take("gamma")
    start, epochs, batch = part.take("init_std"), part.take("epochs"), part.take("batch_size")
    course = {"constant": "constant rate", "cosine": "cosine to 0", "linear": "linear to 0"}.get(schedule)
    course = course or f"times {_text(gamma)} after epochs {' and '.join(map(_text, milestones))}"
    windows, cells = part.take("windows"), part.take("cells")
    where = "the backbone's features"
    if layers is not None:
        mean = f"averaged over {', '.join(f'{a} x {a} cells of stride {b}' for a, b in windows)}" if windows else ""
        mean = mean or f"averaged to at most {_text(cells)} numbers"
        where = f"the maps of {_text(layers)}, {mean}, after BN without parameters"
    kind = "Adam" if optimizer == "adam" else "SGD"
    made = Part({"_target_": "views.Views", **{key: part.take(key) for key in VIEW_KEYS if key in part.left}})
    return [
        f"classifier on {where}",
        f"{kind} {_text(lr)}",
        f"{'Nesterov ' if nesterov else ''}momentum {_text(momentum)}" if momentum and kind == "SGD" else "",
        f"weight decay {_text(decay)}" if decay else "no weight decay",
        f"{course}, {_text(epochs)} epochs of batches of {_text(batch)}",
        f"from {f'N(0, {_text(start)}^2)' if start else 'zero'}",
        *_view(made, {}),
        *part.rest(),
    ]


VIEW_KEYS = ("size", "scale", "ratio", "interpolation", "flip", "jitter", "jitter_p", "grayscale", "grayscale_first")


# ---- ssl-bench mi and ssl-bench weight


def _mutual_information(part: Part) -> Iterable[tuple[str, Sequence[str]]]:
    """The topics of an estimate of mutual information."""
    part.drop("name", "seed", "paths", "choices", plugins=[])
    pairs, steps, lr = part.take("pairs"), part.take("steps"), part.take("lr")
    loss, temperature = Part(part.take("loss")), Part(part.take("temperature"))
    information, dimensions = _text(part.take("information")), _text(part.take("dimensions"))
    yield "data", [f"two Gaussian vectors of {dimensions} dimensions with a mutual information of {information} nats"]
    yield "training", [f"{_text(steps)} steps of {_text(pairs)} pairs", f"Adam {_text(lr)}"]
    yield (
        "network",
        [f"two MLPs with {_text(part.take('hidden'))} hidden units and {_text(part.take('outputs'))} outputs"],
    )
    yield "loss", _loss(loss, temperature)
    yield "negatives", [f"the {_text(pairs - 1)} other pairs"]
    yield "evaluation", [f"mean estimate of {_text(part.take('evaluations'))} batches"]
    yield "other", part.rest()


def _weight(part: Part) -> Iterable[tuple[str, Sequence[str]]]:
    """The topics of a loss's pull on an anchor."""
    part.drop("name", "seed", "paths", "choices", plugins=[])
    loss, temperature = Part(part.take("loss")), Part(part.take("temperature"))
    positive, negative, k = (_text(part.take(key)) for key in ("positive", "negative", "k"))
    yield "anchor", [f"a positive at cosine {positive} and {k} negatives at cosine {negative}"]
    yield "loss", _loss(loss, temperature)
    yield "other", part.rest()
