"""The playground: a page that shows how a text is written, and the stream of rounds behind it."""
