"""What a reply and all chunks of a stream begin with."""

import time
import uuid
from typing import Any

import drafttree
from drafttree.interfaces.server.serving import ServingContext

FINGERPRINT = f"drafttree-{drafttree.__version__}"


def reply_head(kind: str, serving: ServingContext) -> dict[str, Any]:
    """The fields that say which reply it is.

    Args:
        kind: what its id begins with.
        serving: the served model.
    """
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": serving.model_name,
        "system_fingerprint": FINGERPRINT,
        **serving.decoder.fidelity.to_json(),
    }
