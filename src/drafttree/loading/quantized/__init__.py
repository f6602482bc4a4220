"""Reads folders of transformers and of MLX whose linear layers are quantised."""
