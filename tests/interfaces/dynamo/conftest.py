"""A decoder over the embedded pair, and the worker's module."""

import sys
from importlib import import_module

import pytest

import drafttree
from testing import dynamo


@pytest.fixture(scope="session")
def decoder():
    return drafttree.load(dtype="float32", policy="chain:depth=3")


@pytest.fixture(scope="session")
def fleet_worker():
    """`drafttree.interfaces.dynamo.fleet_worker`, over stand-ins where Dynamo is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in ({} if dynamo.INSTALLED else dynamo.stand_ins()).items():
            patch.setitem(sys.modules, name, module)
        yield import_module("drafttree.interfaces.dynamo.fleet_worker")
