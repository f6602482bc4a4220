"""A trace as one HTML file that needs nothing else: style, script and data are in it."""
