"""What both suites share: toy models and small ones, servers on them, and independent computations to compare with."""
