"""What the routes of a server share."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from drafttree.engine.batching import Engine
from drafttree.engine.decoder import Decoder
from drafttree.engine.pass_recording import record_passes
from drafttree.interfaces.server.admission import Admission
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.metrics import ServerMetrics
from drafttree.interfaces.server.settings import ServerSettings


@dataclass(frozen=True)
class ServingContext:
    """A model that is served.

    Attributes:
        decoder: the decoder of the model.
        engine: writes the texts.
        admission: lets requests into it.
        settings: settings of the server.
        metrics: metrics of the server.
    """

    decoder: Decoder
    engine: Engine
    admission: Admission
    settings: ServerSettings
    metrics: ServerMetrics

    @classmethod
    def of(cls, decoder: Decoder, settings: ServerSettings) -> "ServingContext":
        """A decoder that is served; its engine begins."""
        engine = Engine(decoder, max_batch=settings.max_batch)
        record_passes(decoder, settings.max_batch, engine.memory.rows)
        metrics = ServerMetrics(engine, settings.model_name)
        return cls(decoder, engine, Admission(engine, settings, metrics), settings, metrics)

    @property
    def model_name(self) -> str:
        """By which requests name the model."""
        return self.settings.model_name

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model than the served one.

        Raises:
            ServerError: names both.
        """
        if name is not None and name != self.model_name:
            message = f"the model {name!r} is not served; {self.model_name!r} is"
            raise ServerError(404, message, param="model", code="model_not_found")


def _find(request: Request) -> ServingContext:
    return request.app.state.serving


Serving = Annotated[ServingContext, Depends(_find)]
"""A parameter of a route."""
