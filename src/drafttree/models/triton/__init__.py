"""Kernels for GPUs in Triton, whose sums for a row do not depend on the other rows of a pass."""
