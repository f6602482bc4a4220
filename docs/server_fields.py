"""Write the tables of fields in server.md: from the request models, by which the server serves and refuses."""

from pathlib import Path

from pydantic import BaseModel

from drafttree.interfaces.server.anthropic.request import MessagesRequest
from drafttree.interfaces.server.protocol.request_fields import NotServed, SamplingFields, SeveralTexts
from drafttree.interfaces.server.protocol.requests import ChatRequest, CompletionRequest
from drafttree.interfaces.server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from drafttree.interfaces.server.responses.request import ResponseRequest

DOCUMENT = Path(__file__).parent / "server.md"
BEGIN, END = "<!-- fields -->\n", "<!-- /fields -->\n"
KINDS = {
    "All routes that write texts": SamplingFields,
    "`/v1/chat/completions` and `/v1/completions`": SeveralTexts,
    "`/v1/chat/completions`": ChatRequest,
    "`/v1/completions`": CompletionRequest,
    "`/v1/responses`": ResponseRequest,
    "`/v1/messages`": MessagesRequest,
    "`/tokenize`": TokenizeRequest,
    "`/detokenize`": DetokenizeRequest,
}


def tables() -> str:
    """A table of the fields of all routes, of some, of each alone, and of those that are refused."""
    served = {f"{title}: served": _served(kind) for title, kind in KINDS.items()}
    refused = {f"{title}: refused by name": _refused(kind) for title, kind in KINDS.items()}
    return "\n".join(
        [
            *(_table(title, "meaning", rows) for title, rows in served.items()),
            *(_table(title, "why, or what to do instead", rows) for title, rows in refused.items() if rows),
        ]
    )


def _table(title: str, column: str, rows: list[str]) -> str:
    return "\n".join([f"**{title}**", "", f"| field | {column} |", "| --- | --- |", *rows, ""])


def _own(kind: type[BaseModel]) -> list[str]:
    """The fields of a request that it shares with no other kind."""
    shared = {name for base in kind.__bases__ if base in KINDS.values() for name in base.model_fields}
    return [name for name in kind.model_fields if name not in shared]


def _refusal(kind: type[BaseModel], name: str) -> NotServed | None:
    return next((each for each in kind.model_fields[name].metadata if isinstance(each, NotServed)), None)


def _served(kind: type[BaseModel]) -> list[str]:
    fields = {name: kind.model_fields[name].description for name in _own(kind) if not _refusal(kind, name)}
    return [f"| `{name}` | {meaning} |" for name, meaning in fields.items()]


def _refused(kind: type[BaseModel]) -> list[str]:
    fields = {name: _refusal(kind, name) for name in _own(kind)}
    return [f"| `{name}` | {refusal.advice} |" for name, refusal in fields.items() if refusal]


def updated(text: str) -> str:
    """The document with the tables of today."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{tables()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text()))
