"""Metrics for Prometheus."""

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from drafttree.interfaces.server.serving import Serving

router = APIRouter(tags=["metrics"])


@router.get("/metrics", response_class=Response)
def metrics(request: Request, serving: Serving) -> Response:
    """All metrics, in the format that the reader accepts."""
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(serving.metrics.registry), media_type=media_type)
