"""Whether the server lives, and whether it takes requests."""

from typing import Any

from fastapi import APIRouter

from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.serving import Serving

router = APIRouter(tags=["health"])


@router.get("/health")
async def health() -> dict[str, Any]:
    """The server answers."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(serving: Serving) -> dict[str, Any]:
    """The server takes requests: not while it shuts down, and not after its engine has died."""
    if serving.admission.draining:
        raise ServerError(503, "the server is shutting down", code="shutting_down")
    return {"status": "ok"}
