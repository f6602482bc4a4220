"""What is served besides texts: the models, health, and metrics for Prometheus."""

import time
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.serving import Serving

router = APIRouter()
STARTED = int(time.time())


@router.get("/v1/models", tags=["models"])
async def list_models(serving: Serving) -> dict[str, Any]:
    """The served model, by all of its names."""
    return {"object": "list", "data": [_card(name) for name in serving.settings.model_names]}


@router.get("/v1/models/{model:path}", tags=["models"])
async def show_model(model: str, serving: Serving) -> dict[str, Any]:
    """The served model."""
    serving.check_model(model)
    return _card(model)


@router.post("/v1/embeddings", include_in_schema=False)
async def refuse_embeddings() -> None:
    """Nothing: the name of the route says what is missing."""
    raise ServerError(404, "embeddings are not served: the model writes text", code="not_served")


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": STARTED, "owned_by": "drafttree"}


@router.get("/health", tags=["health"])
async def health(serving: Serving) -> dict[str, Any]:
    """The server lives: not after its engine has died, which only a new start mends."""
    if serving.engine.closed:
        raise ServerError(503, "the engine has died; the log says why", code="engine_dead")
    return {"status": "ok"}


@router.get("/ready", tags=["health"])
async def ready(serving: Serving) -> dict[str, Any]:
    """The server takes requests: not while it shuts down, and not after its engine has died."""
    if serving.admission.draining:
        raise ServerError(503, "the server is shutting down", code="shutting_down")
    return await health(serving)


@router.get("/metrics", tags=["metrics"], response_class=PlainTextResponse)
def metrics(serving: Serving) -> Response:
    """All metrics as text; OpenMetrics, which a reader may prefer, would have other names, without colons."""
    return Response(generate_latest(serving.metrics.registry), media_type=CONTENT_TYPE_LATEST)
