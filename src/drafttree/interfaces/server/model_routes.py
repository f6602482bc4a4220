"""Which model is served."""

import time

from fastapi import APIRouter

from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.protocol.models_reply import ModelCard, ModelList
from drafttree.interfaces.server.serving import Serving, ServingContext

router = APIRouter(prefix="/v1/models", tags=["models"])
STARTED = int(time.time())


def check_model(serving: ServingContext, name: str | None) -> None:
    """Refuse a request for another model than the served one.

    Raises:
        ServerError: names both.
    """
    if name is not None and name != serving.model_name:
        message = f"the model {name!r} is not served; {serving.model_name!r} is"
        raise ServerError(404, message, param="model", code="model_not_found")


@router.get("")
async def list_models(serving: Serving) -> ModelList:
    """All models, which is one."""
    return ModelList(object="list", data=[_card(serving)])


@router.get("/{model:path}")
async def show_model(model: str, serving: Serving) -> ModelCard:
    """The served model."""
    check_model(serving, model)
    return _card(serving)


def _card(serving: ServingContext) -> ModelCard:
    return ModelCard(id=serving.model_name, object="model", created=STARTED, owned_by="drafttree")
