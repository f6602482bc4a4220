"""Passes of fused layers that are recorded as CUDA graphs."""
