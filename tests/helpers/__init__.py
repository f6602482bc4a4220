"""What tests share: toy models, small checkpoints, and independent computations to compare with."""
