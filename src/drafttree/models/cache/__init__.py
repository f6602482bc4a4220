"""KV caches: their layout, their rows, and where their memory comes from."""
