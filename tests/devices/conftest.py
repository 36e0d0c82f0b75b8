"""Skips the tests of devices that are not there where torch is too old for them."""

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fake tensors of torch before 2.15 may ask for a driver, and end the process if there is none."""
    if torch.torch_version.TorchVersion(torch.__version__) < "2.15" and not torch.cuda.is_available():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="fake tensors of this torch ask for a driver"))
