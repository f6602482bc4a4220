"""What a module of transformers is: its layers, its state, and what keeps it from being served."""
