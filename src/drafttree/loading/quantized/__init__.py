"""Folders of transformers and of MLX whose linear layers are quantised: how their weights lie in the files."""
