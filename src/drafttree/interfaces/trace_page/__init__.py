"""A trace as a single HTML file, with its style, script and data."""
