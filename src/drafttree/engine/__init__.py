"""The loop: a request is drafted for, scored, verified and committed, round after round."""
