"""Structures of texts, as xgrammar's structural tags describe them, in llguidance's syntax."""

from typing import Any

from drafttree.constraints.ebnf import ebnf_rules
from drafttree.constraints.json_schema import schema_texts
from drafttree.constraints.lark import ANY_TEXT, Rules, literal, until, without
from drafttree.constraints.marked_arguments import marked_arguments
from drafttree.constraints.patterns import check_text, regex_texts
from drafttree.core.errors import ConfigError

FIELDS = {
    "const_string": {"value"},
    "json_schema": {"json_schema", "style", "of"},
    "regex": {"pattern"},
    "grammar": {"grammar"},
    "any_text": set[str](),
    "sequence": {"elements"},
    "or": {"elements"},
    "optional": {"content"},
    "tag": {"begin", "content", "end"},
    "triggered_tags": {"triggers", "tags", "at_least_one", "stop_after_first"},
    "tags_with_separator": {"tags", "separator", "at_least_one", "stop_after_first"},
}
"""The types of parts, and what each may have."""


def structure_texts(part: Any, rules: Rules) -> str:
    """The expression of the texts of a structure, whose rules are added to others.

    Raises:
        ConfigError: a part is malformed or not supported; the message names it.
    """
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in FIELDS:
        known = ", ".join(FIELDS)
        raise ConfigError(f"invalid structural tag: a part of type {kind!r} is not supported; known: {known}")
    if other := sorted(part.keys() - FIELDS[kind] - {"type"}):
        raise ConfigError(f"invalid structural tag: {other[0]!r} of {kind!r} is not supported; leave it out")
    try:
        return _texts(kind, part, rules)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"invalid structural tag: {kind!r} is malformed: {type(error).__name__} {error}") from None
    except RecursionError:
        raise ConfigError("invalid structural tag: it is nested too deeply; give fewer levels") from None


def _texts(kind: str, part: dict[str, Any], rules: Rules) -> str:
    match kind:
        case "const_string":
            return literal(_string(part["value"]))
        case "json_schema":
            return _schema(part, rules)
        case "regex":
            return rules.add(regex_texts(part["pattern"]), plain=True)
        case "grammar":
            return ebnf_rules(part["grammar"], rules)
        case "any_text":
            return rules.add(f"/{ANY_TEXT}/", plain=True)
        case "sequence":
            return f"({' '.join(structure_texts(each, rules) for each in part['elements'])})"
        case "or":
            return f"({' | '.join(structure_texts(each, rules) for each in part['elements'])})"
        case "optional":
            return f"({structure_texts(part['content'], rules)})?"
        case "tag":
            return _tag(part, rules)
        case "triggered_tags":
            return _triggered(part, rules)
    if not part["tags"]:
        raise ConfigError("invalid structural tag: 'tags_with_separator' has no tags; give one")
    tags = rules.add(" | ".join(structure_texts(each, rules) for each in part["tags"]))
    if not part.get("stop_after_first"):
        tags = f"({tags} ({literal(_string(part['separator']))} {tags})*)"
    return tags if part.get("at_least_one") else f"({tags})?"


def _schema(part: dict[str, Any], rules: Rules) -> str:
    try:
        if "style" in part:
            return marked_arguments(part["style"], part["json_schema"], rules)
        return schema_texts(part["json_schema"], rules)
    except ConfigError as error:
        raise ConfigError(f"{part['of']}: {error}" if "of" in part else str(error)) from None


def _tag(part: dict[str, Any], rules: Rules, trigger: str = "") -> str:
    """A tag, without the trigger that it begins with."""
    begin, end = _string(part["begin"]).removeprefix(trigger), _string(part["end"])
    if part["content"] == {"type": "any_text"} and end:
        content = rules.add(until(end), lazy=True)
    else:
        content = f"{structure_texts(part['content'], rules)} {literal(end)}"
    return f"({literal(begin)} {content})"


def _triggered(part: dict[str, Any], rules: Rules) -> str:
    """Tags in free text; what begins as one is one."""
    triggers = [_string(each) for each in part["triggers"]]
    called = []
    for trigger in triggers:
        tags = [each for each in part["tags"] if _string(each["begin"]).startswith(trigger)]
        if not trigger or not tags:
            raise ConfigError(f"invalid structural tag: no tag begins with the trigger {trigger!r}")
        head, rest = rules.add(until(trigger), lazy=True), [_tag(each, rules, trigger) for each in tags]
        called.append(f"{head} ({' | '.join(rest)})")
    calls, plain = f"({' | '.join(called)})", rules.add(without(*triggers), plain=True)
    if part.get("stop_after_first"):
        return calls if part.get("at_least_one") else f"({calls} | {plain})"
    return f"{calls}{'+' if part.get('at_least_one') else '*'} {plain}"


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return check_text("structural tag", value)
