"""GGUF files: what llama.cpp and its kin write, read as models and tokenizers of transformers."""
