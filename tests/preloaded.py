"""What the server of ``tests.ranks`` does before it forks: the first configuration is composed, which takes longest."""

from tests.composed import load
from tests.conftest import SMALL

load(SMALL)
