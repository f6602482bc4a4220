"""Metrics for Prometheus."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from drafttree.interfaces.server.serving import Serving

router = APIRouter(tags=["metrics"])


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(serving: Serving) -> Response:
    """All metrics as text; OpenMetrics, which a reader may prefer, would have other names, without colons."""
    return Response(generate_latest(serving.metrics.registry), media_type=CONTENT_TYPE_LATEST)
