"""Find the images below a folder, and their classes and splits in the names of the folders that they are in."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ssl_bench.data.folder import ending, is_image, is_visible, text_of_counts
from ssl_bench.data.splits import few, find_splits, has_splits, in_order, split_name
from ssl_bench.errors import ConfigError, InvalidValue

Parts = tuple[str, ...]  # of a path below the folder: names of folders, then possibly that of a file


@dataclass
class Tree:
    """Files below a folder, by paths relative to it.

    Attributes:
        images: status of each image, by its path; None: it cannot be opened, as a link to nothing.
        others: the number of other files in each folder, by their ending.
        loops: links to a folder above them, which are not followed.
    """

    images: dict[str, os.stat_result | None] = field(default_factory=dict)
    others: dict[str, Counter[str]] = field(default_factory=dict)
    loops: list[str] = field(default_factory=list)

    def others_below(self, folder: str = "") -> Counter[str]:
        """The number of other files in a folder and below it, by their ending."""
        start = f"{folder}/" if folder else ""
        return sum((counts for path, counts in self.others.items() if f"{path}/".startswith(start)), Counter[str]())


def walk(folder: Path) -> Tree:
    """Find all images below a folder, in the order of their names, also behind links.

    Raises:
        OSError: a folder cannot be read.
        RecursionError: folders are nested more deeply than Python's stack.
    """
    tree = Tree()
    real = Path(os.path.realpath(folder))
    _walk(tree, str(folder), "", str(real), {str(real), *map(str, real.parents)})
    tree.images = dict(sorted(tree.images.items()))
    return tree


def _walk(tree: Tree, folder: str, below: str, real: str, above: set[str]) -> None:
    """Add what is in one folder, whose real path is ``real``; ``above`` has this and those of all folders above it."""
    others = tree.others[below] = Counter()
    with os.scandir(folder) as entries:
        visible = sorted((entry for entry in entries if is_visible(entry.name)), key=lambda entry: entry.name)
    for entry in visible:
        name = f"{below}/{entry.name}" if below else entry.name
        if _is_folder(entry):
            link = entry.is_symlink()  # only then, since the real path of a deep folder takes long
            place = os.path.realpath(entry.path) if link else os.path.join(real, entry.name)
            if place in above:
                tree.loops.append(name)
            else:
                outer = map(str, Path(place).parents) if link else ()
                _walk(tree, entry.path, name, place, {*above, place, *outer})
        elif is_image(entry.name):
            try:
                tree.images[name] = entry.stat()
            except OSError:
                tree.images[name] = None
        else:
            others[ending(entry.name)] += 1


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


@dataclass(frozen=True)
class Listing:
    """The images of a dataset that are used, in a fixed order, with their classes and splits.

    Attributes:
        names: of each image, without the path of the dataset.
        labels: of each image, -1 without classes.
        test: whether each image is of the test split; None if the dataset has none.
        classes: name of each class.
        notes: sentences for the user, such as those about images that are not used.
        test_name: of the test split.
    """

    names: list[str]
    labels: list[int]
    test: list[bool] | None
    classes: list[str]
    notes: list[str]
    test_name: str


def find_layout(tree: Tree, classes: str) -> Listing:
    """Find classes and splits in the paths of the images, of which there is at least one.

    A folder alone in its folder is passed over, at any depth. The first folders beside each other are splits with or
    without classes in them, or classes.

    Args:
        classes: ``auto``, ``folders`` or ``none``.

    Raises:
        ConfigError: the folders can be understood in more than one way, or a split or a class has no image.
        InvalidValue: there are no classes, and ``classes`` is ``folders``.
    """
    paths = [tuple(name.split("/")) for name in tree.images]
    at, inside, bare = _depth(paths, 0), _folders(paths), _folders_without_images(tree, paths)
    top = paths[0][:at]
    doubt = "rename them to train and test, or set dataset.classes to folders if they are classes, or else to none"
    splits = find_splits(inside.get(top, []), doubt if classes == "auto" else "")
    _refuse_bare_splits(tree, bare, inside)
    train, tests = splits or ("", [])
    members = {name: [path for path in paths if not name or path[at] == name] for name in (train, *tests)}
    depth = {name: _depth(of_split, at + bool(splits)) for name, of_split in members.items()}
    classes_of = {name: _classes(of_split, depth[name], classes) for name, of_split in members.items()}
    # A test folder without the classes of the training split, as in a competition, is not used.
    test = next((name for name in tests if classes_of[name] == classes_of[train]), None)
    if tests and test is None:
        raise ConfigError(
            f"{train} and {tests[0]} must have the same classes, and those of {train} are "
            f"{few(classes_of[train]) or 'none'}: rename the folders of one, or set dataset.classes to none"
        )
    used = [path for path in paths if test is None or path[at] in (train, test)]
    base = {name: members[name][0][: depth[name]] for name in (train, test) if name is not None}
    if classes == "auto":
        _refuse_inner_splits({folder: inside[folder] for folder in _folders(used) if not splits or folder != top})
    if classes_of[train]:
        _refuse_bare_classes(tree, [folder for folder in bare if folder[:-1] in base.values()])
    label = {name: i for i, name in enumerate(classes_of[train])}
    labels = [label[path[depth[path[at] if splits else train]]] if label else -1 for path in used]
    notes = _notes_on_unused(paths, at, {train, test}) if test is not None else []
    passed = {folder[:level] for folder in base.values() for level in range(len(folder))}
    notes += [f"no image in {'/'.join(folder)}" for folder in bare if folder[:-1] in passed]
    if classes == "auto" and not label and len(beside := inside.get(base[train], [])) > 1:
        notes.append(f"the folders {few(beside)} are no classes, since images lie beside them")
    names = ["/".join(path) for path in used]
    is_test = [path[at] == test for path in used] if test else None
    return Listing(names, labels, is_test, classes_of[train], notes, test or "")


def _depth(paths: Sequence[Parts], at: int) -> int:
    """The first depth, from ``at`` on, at which there are several folders or an image."""
    while all(len(path) > at + 1 and path[at] == paths[0][at] for path in paths):
        at += 1
    return at


def _folders(paths: Iterable[Parts]) -> dict[Parts, list[str]]:
    """The names of the folders in each folder, of those that have images below them."""
    inside: dict[Parts, dict[str, None]] = {}
    for folder in dict.fromkeys(path[:-1] for path in paths):
        for level in range(len(folder)):
            inside.setdefault(folder[:level], {})[folder[level]] = None
    return {folder: list(names) for folder, names in inside.items()}


def _folders_without_images(tree: Tree, paths: Iterable[Parts]) -> list[Parts]:
    """The folders without an image below them."""
    full = {path[:level] for path in paths for level in range(len(path))}
    return [folder for name in tree.others if name and (folder := tuple(name.split("/"))) not in full]


def _classes(paths: Sequence[Parts], at: int, wanted: str) -> list[str]:
    """The names of the classes: of the folders at the depth ``at``, if there are several and no image beside them."""
    names = in_order({path[at] for path in paths if len(path) > at + 1})
    beside = any(len(path) == at + 1 for path in paths)
    if wanted == "folders" and (beside or len(names) < 2):
        remedy = "auto or none: it takes two folders or more, and no image beside them"
        raise InvalidValue("dataset.classes", wanted, remedy)
    return names if wanted != "none" and len(names) > 1 and not beside else []


def _notes_on_unused(paths: Iterable[Parts], at: int, used: set[str | None]) -> list[str]:
    """Notes about the images beside the used splits, and in other folders beside them."""
    others = Counter(path[at] if len(path) > at + 1 else "" for path in paths if path[at] not in used)
    return [f"not used: {count} in {name}" if name else f"not used: {count} beside" for name, count in others.items()]


def _refuse_bare_splits(tree: Tree, bare: Iterable[Parts], inside: Mapping[Parts, list[str]]) -> None:
    for *above, name in bare:
        if split_name(name) and any(map(split_name, inside.get(tuple(above), []))):
            raise ConfigError(f"{_without_images(tree, (*above, name))}: add some, or remove it")


def _refuse_bare_classes(tree: Tree, bare: Sequence[Parts]) -> None:
    if bare:
        remedy = "add some, remove it, or begin its name with a dot if it is no class"
        raise ConfigError(f"{_without_images(tree, bare[0])}, as the classes beside it have: {remedy}")


def _without_images(tree: Tree, folder: Parts) -> str:
    """Say that a folder has no images, and which files it has."""
    name = "/".join(folder)
    return f"{name} has no image that can be read ({text_of_counts(tree.others_below(name)) or 'no file'})"


def _refuse_inner_splits(inside: Mapping[Parts, list[str]]) -> None:
    """Refuse splits inside of classes or other folders."""
    for folder, names in inside.items():
        if has_splits(names):
            inner = few(["/".join((*folder, name)) for name in names])
            raise ConfigError(
                f"{inner} look like splits inside of a folder: set dataset.root to {'/'.join(folder)} in it, move "
                "them to train/<class> and test/<class>, or set dataset.classes to folders or none if they are none"
            )
