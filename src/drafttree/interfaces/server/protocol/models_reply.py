"""Replies of /v1/models."""

from typing import Literal

from drafttree.interfaces.server.protocol.reply_model import ReplyModel


class ModelCard(ReplyModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(ReplyModel):
    """All of them."""

    object: Literal["list"]
    data: list[ModelCard]
