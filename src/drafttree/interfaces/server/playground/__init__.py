"""The playground: a page that shows how a text is written, and the stream of rounds behind it."""

from drafttree.interfaces.server.playground.routes import router

__all__ = ["router"]
