"""Passes in one call of drafttree-native, whose sums do not depend on the rows."""
