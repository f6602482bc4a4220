"""Shared parts of the HTML pages: styles, the drawing of draft trees, and the assembly of a page into one file."""
