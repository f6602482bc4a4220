"""Many requests at once: batches, a prompt that arrives beside others, and servers under load."""
