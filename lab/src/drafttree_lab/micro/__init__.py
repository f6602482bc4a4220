"""The time of single parts on synthetic data."""
