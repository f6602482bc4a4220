"""The application: one model, one engine, and the routes over it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sse_starlette.sse import AppStatus
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware

import drafttree
from drafttree.core.errors import DraftTreeError
from drafttree.engine.decoder import Decoder
from drafttree.interfaces.server import chat, completions, service
from drafttree.interfaces.server.access import AllowedHosts, ApiKeys, refuse
from drafttree.interfaces.server.admission import ClientPresence
from drafttree.interfaces.server.anthropic import reply as anthropic
from drafttree.interfaces.server.errors import ErrorReply, ServerError, answer_error
from drafttree.interfaces.server.playground import routes as playground
from drafttree.interfaces.server.request_log import RequestLog
from drafttree.interfaces.server.responses import reply as responses
from drafttree.interfaces.server.serving import ServerSettings, ServingContext


def create_app(decoder: Decoder, settings: ServerSettings) -> FastAPI:
    """Create an application that serves a decoder; when its lifespan ends, it closes its engines.

    Args:
        decoder: the decoder, which nothing else may use from now on.
        settings: the settings of the server.
    """
    serving = ServingContext(decoder, settings)
    AppStatus.disable_automatic_graceful_drain()  # streams end by themselves when the server shuts down

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for engine in filter(None, (serving.engine, serving.drafting)):
            await asyncio.to_thread(engine.close)

    cors_options = {"allow_origins": settings.cors, "allow_methods": ["GET", "POST"], "allow_headers": ["*"]}
    keys = Middleware(AuthenticationMiddleware, backend=ApiKeys(settings.api_keys), on_error=refuse)
    middleware = [  # the outermost first
        Middleware(RequestLog, lines=settings.access_log),
        Middleware(AllowedHosts, hosts=settings.allowed_hosts),
        *([Middleware(CORSMiddleware, **cors_options)] if settings.cors else []),
        *([keys] if settings.api_keys else []),
        Middleware(ClientPresence, timeout=settings.timeout),
    ]
    app = FastAPI(
        title="drafttree",
        version=drafttree.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        middleware=middleware,
        responses={status: {"model": ErrorReply, "description": "An error"} for status in ("4XX", "5XX")},
        exception_handlers=dict.fromkeys((HTTPException, ServerError, DraftTreeError), answer_error),
    )  # `RequestLog` answers other exceptions
    app.state.serving = serving
    for routes in (chat, completions, responses, anthropic, service, playground):
        app.include_router(routes.router)
    return app
