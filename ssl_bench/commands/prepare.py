"""``ssl-bench prepare dataset=cifar10``: make the files of a dataset that training reads."""

from collections.abc import Sequence
from pathlib import Path

from ssl_bench import files
from ssl_bench.commands.arguments import Parser, in_sentences, progress_bar
from ssl_bench.errors import require


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Write the files of the dataset; return 0, 1 for a failed download or bad photos, 2 for bad arguments."""
    parser = Parser("prepare", "Make a dataset ready for training: dataset=NAME, paths.data=FOLDER to set the folder.")
    parser.add_argument("--source", type=Path, metavar="FOLDER", help="the folder of torchvision's or ImageNet's files")
    parser.add_argument("--show", type=Path, metavar="FILE.png", help="also draw eight images and their views")
    options = parser.read(arguments)
    if not options.overrides:
        parser.error("name a dataset by key=value, such as dataset=cifar10")
    from ssl_bench.config.compose import load
    from ssl_bench.config.schema import check
    from ssl_bench.data.prepare import drawn_channels, prepare, sheet
    from ssl_bench.training import build

    config, picture = load(options.overrides), options.show
    check(config)
    if picture:
        require(picture.suffix == ".png", "--show", picture, "a .png file")
        require(picture.parent.is_dir(), "--show", picture, f"a file in a folder that exists: no {picture.parent}")
    dataset, name = build.dataset(config), config["choices"]["dataset"]
    print(prepare(dataset, name, options.source, progress_bar))
    if picture:
        images, views = dataset.pretrain(), build.views(config)
        count = min(8, len(images))
        drawn = sheet(images, views, config["seed"], count)
        files.write(picture, lambda file: drawn.save(file, "PNG"))
        shown, channels = drawn_channels(dataset.channels), dataset.channels
        part = f", with the first {shown} of {channels} channels" if shown < channels else ""
        print(f"{picture}: {count} images of dataset={name}, each above its {len(views)} views{part}")
    return 0
