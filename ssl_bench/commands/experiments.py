"""The papers' experiments as options of Hydra's group ``experiment``, made when they are listed or loaded.

An option of the same name in ``conf/experiment/`` comes before them, one in the folder of ``--config-dir`` after them.
"""

from pathlib import Path
from typing import ClassVar

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from ssl_bench.errors import ConfigError

GROUP = "experiment"


class PapersSource(ConfigSource):
    """Source of ``experiment/<paper>/<name>``, also of names of tables that are no experiment: they are refused.

    Attributes:
        own: the folder of the user's own papers.
    """

    own: ClassVar[Path | None] = None

    @staticmethod
    def scheme() -> str:
        return "papers"

    def load_config(self, config_path: str) -> ConfigResult:
        """The experiment.

        Raises:
            ConfigError: a table has no experiment of its name; it says what to take.
        """
        from ssl_bench.papers import grids  # imported where it is used: every training starts with this file

        name = config_path.removeprefix(f"{GROUP}/").removesuffix(".yaml")
        content = grids.content(name, self.own)
        if content is None:
            raise ConfigError(f"{GROUP}={name}: {grids.no_experiment(name, self.own)}")
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), {"package": "_global_"})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in ("", GROUP)

    def is_config(self, config_path: str) -> bool:
        from ssl_bench.papers import grids, tables

        group, _, name = config_path.removesuffix(".yaml").partition("/")
        if group != GROUP or "/" not in name:
            return False
        try:
            return grids.content(name, self.own) is not None or bool(tables.find(name, self.own))
        except ConfigError:
            return False

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Options with their paper, such as ``dcl/fig3a``: as they are written after ``experiment=``."""
        if config_path == "":
            return [GROUP] if results_filter is not ObjectType.CONFIG else []
        from ssl_bench.papers import grids

        return grids.names(self.own) if results_filter is not ObjectType.GROUP else []


class PapersSearchPath(SearchPathPlugin):
    """Adds the source to every search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("ssl-bench", f"{PapersSource.scheme()}://")


def register(folder: Path | None = None) -> None:
    """Make the experiments known to Hydra.

    Args:
        folder: of ``--config-dir``, whose papers are among them.
    """
    PapersSource.own = folder and folder / "papers"
    for plugin in (PapersSource, PapersSearchPath):
        Plugins.instance().register(plugin)
