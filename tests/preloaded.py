"""What the server of ``tests.ranks`` does before it forks: the first configuration is composed, which takes longest."""

from ssl_bench.config.compose import load
from tests.conftest import SMALL

load(SMALL)
