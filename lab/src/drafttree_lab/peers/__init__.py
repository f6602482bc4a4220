"""Programs that people pick beside drafttree, on the same weights."""
