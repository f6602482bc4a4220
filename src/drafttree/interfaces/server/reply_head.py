"""What a reply and all chunks of a stream begin with."""

import time
import uuid
from typing import Any

import drafttree

FINGERPRINT = f"drafttree-{drafttree.__version__}"


def reply_head(kind: str, model: str) -> dict[str, Any]:
    """The fields that say which reply it is.

    Args:
        kind: what its id begins with.
        model: the name of the served model.
    """
    created = int(time.time())
    return {"id": f"{kind}-{uuid.uuid4().hex}", "created": created, "model": model, "system_fingerprint": FINGERPRINT}
