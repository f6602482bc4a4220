"""Fused layers are what runs where drafttree-native is not installed."""

import pytest


@pytest.fixture(autouse=True)
def _on_torch(on_torch):
    pass
