"""Reads GGUF files, which llama.cpp and similar programs write, as models and tokenizers of transformers."""
