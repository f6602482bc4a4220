"""What the commands print and draw."""
