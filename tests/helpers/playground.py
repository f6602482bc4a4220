"""The embedded pair behind a playground, where no clock decides what is drafted, and the events of its stream."""

import json
from typing import Any

import httpx

import drafttree
from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS

STREAM = "/v1/playground/rounds"
PROMPT = "The old man looked at the sea and"


def playground_decoder(**options: Any) -> Decoder:
    """The embedded model with a drafter; options as for `drafttree.load`."""
    drafting: dict[str, Any] = {"drafter": "embedded-draft", "policy": "dynatree"}
    return drafttree.load("embedded", dtype="float32", **drafting | options).with_costs(TOY_COSTS)


def read_events(address: str, **asked: Any) -> list[tuple[str, dict[str, Any]]]:
    """The events of a text, a greedy one by default: the kind and the data of each."""
    with httpx.stream("POST", address + STREAM, json={"temperature": 0, **asked}, timeout=60) as response:
        assert response.status_code == 200, response.read()
        blocks = "".join(response.iter_text()).replace("\r\n", "\n").strip().split("\n\n")
    fields = [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]
    return [(each["event"], json.loads(each["data"])) for each in fields if "event" in each]
