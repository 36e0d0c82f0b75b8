"""Imported by the server of ``tests.ranks`` before it forks: the first composition of a process takes longest."""

from ssl_bench.config.compose import load
from tests.conftest import SMALL

load(SMALL)
