"""Passes in one call of drafttree-native. A row's sums in them do not depend on the other rows."""
