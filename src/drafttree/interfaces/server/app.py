"""The application: one model, one engine, and the routes over it."""

from fastapi import FastAPI

from drafttree.engine.batching import Engine
from drafttree.engine.decoder import Decoder
from drafttree.interfaces.server import health_routes, playground
from drafttree.interfaces.server.admission import Admission
from drafttree.interfaces.server.errors import add_error_handlers
from drafttree.interfaces.server.serving import ServingContext
from drafttree.interfaces.server.settings import ServerSettings


def create_app(decoder: Decoder, settings: ServerSettings) -> FastAPI:
    """An application that serves a decoder.

    Args:
        decoder: whose target, drafter, policy and verifier are used; it belongs to the application from here on.
        settings: of the server.
    """
    engine = Engine(decoder, max_batch=settings.max_batch)
    app = FastAPI(title="drafttree", docs_url=None, redoc_url=None)
    app.state.serving = ServingContext(decoder, engine, Admission(engine, settings), settings)
    app.include_router(health_routes.router)
    app.include_router(playground.router)
    add_error_handlers(app)
    return app
