"""What the HTML pages share: their styles, the drawing of draft trees, and how a page becomes one file."""
