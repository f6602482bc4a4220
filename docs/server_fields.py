"""Write the tables of fields in server.md: from the request models, by which the server serves and refuses."""

from pathlib import Path

from pydantic import BaseModel

from drafttree.interfaces.server.protocol.request_fields import NotServed, SamplingFields
from drafttree.interfaces.server.protocol.requests import ChatRequest, CompletionRequest

DOCUMENT = Path(__file__).parent / "server.md"
BEGIN, END = "<!-- fields -->\n", "<!-- /fields -->\n"
COMMON = SamplingFields.model_fields.keys()


def tables() -> str:
    """A table of the fields of both routes, of each alone, and of those that are refused."""
    own = {
        "Both routes": SamplingFields,
        "`/v1/chat/completions`": ChatRequest,
        "`/v1/completions`": CompletionRequest,
    }
    served = [_table(f"{title}: served", "meaning", _served(kind)) for title, kind in own.items()]
    refused = [
        _table(f"{title}: refused by name", "why, or what to do instead", _refused(kind)) for title, kind in own.items()
    ]
    return "\n".join([*served, *refused])


def _table(title: str, column: str, rows: list[str]) -> str:
    return "\n".join([f"**{title}**", "", f"| field | {column} |", "| --- | --- |", *rows, ""])


def _own(kind: type[BaseModel]) -> list[str]:
    return [name for name in kind.model_fields if kind is SamplingFields or name not in COMMON]


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
