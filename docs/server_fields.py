"""Write the tables of fields in server-reference.md from the request models of the server."""

from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from drafttree.constraints.refusals import NoEffect, Refused
from drafttree.interfaces.server.anthropic.request import MessagesRequest
from drafttree.interfaces.server.completions import CompletionRequest
from drafttree.interfaces.server.fields import entry_of
from drafttree.interfaces.server.request import ChatRequest
from drafttree.interfaces.server.responses.request import ResponseRequest
from drafttree.interfaces.server.sampling import SamplingFields, SeveralTexts
from drafttree.interfaces.server.service import DetokenizeRequest, TokenizeRequest

DOCUMENT = Path(__file__).parent / "server-reference.md"
BEGIN, END = "<!-- fields -->\n", "<!-- /fields -->\n"
KINDS = {
    "All routes that generate text": SamplingFields,
    "`/v1/chat/completions` and `/v1/completions`": SeveralTexts,
    "`/v1/chat/completions`": ChatRequest,
    "`/v1/completions`": CompletionRequest,
    "`/v1/responses`": ResponseRequest,
    "`/v1/messages`": MessagesRequest,
    "`/tokenize`": TokenizeRequest,
    "`/detokenize`": DetokenizeRequest,
}


def tables() -> str:
    """The fields that have an effect, those that have none, and those that are refused, by route."""
    return "\n".join(
        [
            *_section("Supported fields", "meaning", _served),
            *_section("Fields without effect", "note", _without_effect),
            *_section("Refused fields", "reason, or what to do instead", _refused),
        ]
    )


def _section(heading: str, column: str, rows_of: Callable[[type[BaseModel]], list[str]]) -> list[str]:
    rows = {title: rows_of(kind) for title, kind in KINDS.items()}
    return [f"### {heading}\n", *(_table(title, column, found) for title, found in rows.items() if found)]


def _table(title: str, column: str, rows: list[str]) -> str:
    return "\n".join([f"**{title}**", "", f"| field | {column} |", "| --- | --- |", *rows, ""])


def _own(kind: type[BaseModel]) -> list[str]:
    """The fields of a request that it shares with no other kind."""
    shared = {name for base in kind.__bases__ if base in KINDS.values() for name in base.model_fields}
    return [name for name in kind.model_fields if name not in shared]


def _served(kind: type[BaseModel]) -> list[str]:
    fields = kind.model_fields
    return [f"| `{name}` | {fields[name].description} |" for name in _own(kind) if not entry_of(fields[name])]


def _without_effect(kind: type[BaseModel]) -> list[str]:
    found = {name: entry_of(kind.model_fields[name]) for name in _own(kind)}
    return [f"| `{name}` | {entry.why} |" for name, entry in found.items() if isinstance(entry, NoEffect)]


def _refused(kind: type[BaseModel]) -> list[str]:
    found = {name: entry_of(kind.model_fields[name]) for name in _own(kind)}
    return [f"| `{name}` | {entry.advice} |" for name, entry in found.items() if isinstance(entry, Refused)]


def updated(text: str) -> str:
    """The document with the tables of today."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text()))
