"""What the makers of drafttree measure with; its commands are those of `drafttree`, found by entry point."""
