"""Quantised layers as torch runs them, where drafttree-native is not installed."""

import pytest


@pytest.fixture(autouse=True)
def _on_torch(on_torch):
    pass
