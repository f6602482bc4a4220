"""What a worker meets in Dynamo: a request, its context, and stand-ins of modules where it is not installed."""

import asyncio
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import ModuleType
from typing import Any

INSTALLED = find_spec("dynamo") is not None


def stand_ins() -> dict[str, ModuleType]:
    """Modules in place of Dynamo's, with the names that a worker takes from it and nothing else."""
    record = type("Record", (), {"__init__": lambda self, *given, **values: vars(self).update(values, given=given)})
    backend = {name: type(name, (record,), {}) for name in ("EngineConfig", "LlmRegistration", "WorkerConfig")}
    contents: dict[str, dict[str, Any]] = {
        "dynamo": {},
        "dynamo.common": {},
        "dynamo.common.backend": {"LLMEngine": type("LLMEngine", (), {}), **backend},
        "dynamo.common.backend.health_check": {"build_health_check_payload": lambda token: {"token_ids": [token]}},
        "dynamo.common.backend.metrics": {"register_engine_registry": print},
        "dynamo.common.backend.publisher": {
            name: type(name, (record,), {}) for name in ("ComponentSnapshot", "PushSource")
        },
        "dynamo.llm": {},
        "dynamo.llm.exceptions": {name: type(name, (Exception,), {}) for name in ("EngineShutdown", "InvalidArgument")},
    }
    modules = {name: ModuleType(name) for name in contents}
    for name, values in contents.items():
        vars(modules[name]).update(values)
    return modules


@dataclass
class Context:
    """Of a request."""

    name: str = "request"
    stopped: bool = False

    def id(self) -> str:
        return self.name

    def is_stopped(self) -> bool:
        return self.stopped


def request(tokens: list[int], *, output: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """A request as the frontend hands it to a worker; what is not asked for is None in it, as there."""
    ends = ("max_tokens", "stop", "stop_token_ids", "min_tokens", "ignore_eos")
    stops = {name: options.pop(name, None) for name in ends}
    sampling = {"n": None, "temperature": None, "seed": None, **options}
    outputs = {"logprobs": None, "skip_special_tokens": None, **(output or {})}
    return {
        "model": "embedded",
        "token_ids": tokens,
        "stop_conditions": stops,
        "sampling_options": sampling,
        "output_options": outputs,
        "eos_token_ids": [0],
        "annotations": [],
    }


@dataclass
class Text:
    """What a worker has sent of a text."""

    chunks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk["token_ids"]]

    @property
    def text(self) -> str:
        return "".join(chunk["text"] for chunk in self.chunks)


def written(worker: Any, asked: dict[str, Any], chunks: int | None = None) -> Text:
    """What a worker sends, or so many chunks of it."""

    async def read() -> Text:
        text = Text()
        async for chunk in worker.generate(asked, Context()):
            text.chunks.append(chunk)
            if len(text.chunks) == chunks:
                await worker.abort(Context())
                break
        return text

    return asyncio.run(read())
