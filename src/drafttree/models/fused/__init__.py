"""Layers of known families on fused weights, and the backend that runs them."""
