"""What a server is told when it starts."""

from dataclasses import dataclass

from drafttree.core.counts import MAX_BATCH


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        model_name: the name by which requests name the model, and `/v1/models` lists it.
        api_key: the key that every request to `/v1` must carry; None for none.
        cors: origins whose pages may call the server from a browser.
        max_batch: requests that run at once, at most.
        max_queue: requests that wait, at most; one more is refused.
        timeout: seconds after which a request ends where it is; None for no end.
        max_body_bytes: body bytes of a request, at most.
    """

    model_name: str
    api_key: str | None = None
    cors: tuple[str, ...] = ()
    max_batch: int = MAX_BATCH
    max_queue: int = 256
    timeout: float | None = None
    max_body_bytes: int = 4 << 20
