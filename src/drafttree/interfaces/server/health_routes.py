"""Whether the server lives, and whether it takes requests."""

from typing import Any

from fastapi import APIRouter

from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.serving import Serving, ServingContext

router = APIRouter(tags=["health"])


@router.get("/health")
async def health(serving: Serving) -> dict[str, Any]:
    """The server lives: not after its engine has died, which only a new start mends."""
    _check_engine(serving)
    return {"status": "ok"}


@router.get("/ready")
async def ready(serving: Serving) -> dict[str, Any]:
    """The server takes requests: not while it shuts down, and not after its engine has died."""
    if serving.admission.draining:
        raise ServerError(503, "the server is shutting down", code="shutting_down")
    _check_engine(serving)
    return {"status": "ok"}


def _check_engine(serving: ServingContext) -> None:
    if serving.engine.closed:
        raise ServerError(503, "the engine has died; the log says why", code="engine_dead")
