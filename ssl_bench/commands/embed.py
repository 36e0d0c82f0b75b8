"""``ssl-bench embed RUN [dataset=...]``: features of any images as files, with a picture of the nearest.

With ``--weights FILE`` the network comes from elsewhere. :mod:`ssl_bench.api.embed` says what is written.
"""

from collections.abc import Sequence
from pathlib import Path

from ssl_bench.commands import weights
from ssl_bench.commands.arguments import Parser, in_sentences, refuse, take_outputs
from ssl_bench.errors import ConfigError, require


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Write the features and print where; 0, 1 if that fails, 2 for wrong arguments, 128 + n after signal n."""
    parser = Parser("embed", "Features of any images to features.npy, and a picture of nearest neighbours.")
    parser.add_argument("run", nargs="?", metavar="RUN", help="outputs/<name>/<run_id>, or the run_id of a run")
    parser.add_argument("--weights", metavar="FILE", help="in place of a run: a file, timm:NAME or random")
    parser.add_argument("--split", choices=("train", "test"), help="the images of one split (default: both)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the files (default: <run>/embed/<images>)")
    parser.epilog = """Then key=value: dataset=OPTION and its keys for images, such as dataset=folder
        dataset.root=DIR, by default those of the run; device=cpu, precision=NAME, paths.data=DIR."""
    parser.add_outputs()
    options = parser.read(arguments)
    if bool(options.run) == bool(options.weights):
        raise ConfigError("name one run, or give --weights FILE")
    if refused := [word for word in options.overrides if word.startswith(("evaluate", "devices="))]:
        raise ConfigError(f"{refused[0]}: leave it out: one process computes features, and evaluates nothing")
    from ssl_bench.api import embed
    from ssl_bench.config.identity import run_dir
    from ssl_bench.launch.run import Ending
    from ssl_bench.results.table import finished_folders
    from ssl_bench.signals import Interrupt

    config = options.weights and weights.configuration(options.weights, [*options.overrides, "evaluate=[]"])
    folders = [run_dir(config)] if config else finished_folders([options.run], take_outputs(options.overrides))
    folder, *others = folders
    require(not others, "RUN", options.run, f"one run: these are {1 + len(others)}")
    name, target, images = embed.opened(config or folder, options.overrides)
    out, inside = options.out or folder / "embed" / name, folder.resolve() / "embed" / name
    if not options.out and (out.name != name or not name.isprintable() or out.resolve() != inside):  # a foreign run's
        raise ConfigError(f"dataset={name}: there can be no folder {name} in {folder}/embed: set --out to a folder")

    with Ending(target.device, "Set device=cpu") as end:
        with Interrupt(int) as interrupt:
            interrupt.saved = True  # so that a signal takes effect after a batch
            embed.write(target, {options.split: images[options.split]} if options.split else images, out, "--out", True)
        print(f"features: {out / embed.FEATURES}")
    return refuse(end.outcome.reason, end.outcome.code) if end.outcome.reason else end.outcome.code
