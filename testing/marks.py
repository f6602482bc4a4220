"""Marks of tests that need what is not everywhere."""

import pytest

from drafttree.models.native.kernels import native

needs_native = pytest.mark.skipif(native is None, reason="drafttree-native is not installed")
