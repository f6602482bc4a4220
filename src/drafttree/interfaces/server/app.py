"""The application: one model, one engine, and the routes over it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware

import drafttree
from drafttree.engine.decoder import Decoder
from drafttree.interfaces.server import chat, completions, service
from drafttree.interfaces.server.access import AllowedHosts, ApiKeys, refuse
from drafttree.interfaces.server.admission import ClientPresence
from drafttree.interfaces.server.anthropic import reply as anthropic
from drafttree.interfaces.server.body_limits import BodyLimit
from drafttree.interfaces.server.errors import ErrorReply, add_error_handlers
from drafttree.interfaces.server.playground import routes as playground
from drafttree.interfaces.server.playground.drafting_engine import DraftingEngine
from drafttree.interfaces.server.request_log import RequestLog
from drafttree.interfaces.server.responses import reply as responses
from drafttree.interfaces.server.serving import ServerSettings, ServingContext


def create_app(decoder: Decoder, settings: ServerSettings) -> FastAPI:
    """An application that serves a decoder until its lifespan ends.

    Args:
        decoder: its target, drafter, policy and verifier are used; it belongs to the application from here on.
        settings: what the server is told when it starts.
    """
    serving, drafting = ServingContext(decoder, settings), DraftingEngine(decoder)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for engine in (serving.engine, drafting):
            await asyncio.to_thread(engine.close)

    context = decoder.target.context
    allowed = {"allow_origins": settings.cors, "allow_methods": ["GET", "POST"], "allow_headers": ["*"]}
    keys = Middleware(AuthenticationMiddleware, backend=ApiKeys(settings.api_keys), on_error=refuse)
    passed = [  # by every request, the outermost first
        Middleware(RequestLog, lines=settings.access_log),
        Middleware(AllowedHosts, hosts=settings.allowed_hosts),
        *([Middleware(CORSMiddleware, **allowed)] if settings.cors else []),
        *([keys] if settings.api_keys else []),
        Middleware(BodyLimit, context=context, most_bytes=settings.max_body_bytes),
        Middleware(ClientPresence, admission=serving.admission),
    ]
    app = FastAPI(
        title="drafttree",
        version=drafttree.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        middleware=passed,
        responses={status: {"model": ErrorReply, "description": "An error"} for status in ("4XX", "5XX")},
    )
    app.state.serving, app.state.drafting = serving, drafting
    for routes in (chat, completions, responses, anthropic, service, playground):
        app.include_router(routes.router)
    add_error_handlers(app)
    return app
