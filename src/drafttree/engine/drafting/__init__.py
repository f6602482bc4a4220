"""How much is drafted: one controller, for a text that is written alone and for many."""
