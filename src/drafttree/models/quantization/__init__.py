"""Quantised linear layers and embeddings, whoever runs them, and models that are made of them."""
