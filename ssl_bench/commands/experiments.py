"""The papers' experiments as options of Hydra's group ``experiment``, made when they are listed or loaded.

They come after ``conf/experiment/`` and before the folder of ``--config-dir``, whose options have names of their own.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from ssl_bench.errors import ConfigError

GROUP = "experiment"


class PapersSource(ConfigSource):
    """Source of ``experiment/<paper>/<name>``: every name that begins with a paper's is taken for one of its own."""

    @staticmethod
    def scheme() -> str:
        return "papers"

    def load_config(self, config_path: str) -> ConfigResult:
        """The experiment.

        Raises:
            ConfigError: there is none of that name; it names the nearest ones.
        """
        from ssl_bench.papers import experiments  # imported where it is used: every training starts with this file

        name = config_path.removeprefix(f"{GROUP}/").removesuffix(".yaml")
        content = experiments.content(name)
        if content is None:
            raise ConfigError(f"{GROUP}={name}: {experiments.no_experiment(name)}")
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), {"package": "_global_"})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in ("", GROUP)

    def is_config(self, config_path: str) -> bool:
        from ssl_bench.papers import tables

        group, _, name = config_path.partition("/")
        return group == GROUP and name.partition("/")[0] in tables.papers()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Options with their paper, such as ``dcl/fig3a``: as they are written after ``experiment=``."""
        if config_path == "":
            return [GROUP] if results_filter is not ObjectType.CONFIG else []
        from ssl_bench.papers import experiments

        return experiments.names() if results_filter is not ObjectType.GROUP else []


class PapersSearchPath(SearchPathPlugin):
    """Adds the source to every search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("ssl-bench", f"{PapersSource.scheme()}://")


def register() -> None:
    """Make the experiments known to Hydra, once per process."""
    for plugin in (PapersSource, PapersSearchPath):
        Plugins.instance().register(plugin)
