"""Attention of the nodes of a pass to the rows of KV caches."""
