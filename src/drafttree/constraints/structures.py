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
"""The types of parts, and the fields that each may have."""


def structure_texts(part: Any, rules: Rules) -> str:
    """The expression of the texts of a structure; its rules are added to `rules`.

    Raises:
        ConfigError: a part is malformed or not supported; the message names it.
    """
    part_type = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part_type, str) or part_type not in FIELDS:
        type_names = ", ".join(FIELDS)
        raise ConfigError(f"invalid structural tag: a part of type {part_type!r} is not supported; known: {type_names}")
    if extra_fields := sorted(part.keys() - FIELDS[part_type] - {"type"}):
        raise ConfigError(
            f"invalid structural tag: {extra_fields[0]!r} of {part_type!r} is not supported; leave it out"
        )
    try:
        return _texts(part_type, part, rules)
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"invalid structural tag: {part_type!r} is malformed: {type(error).__name__} {error}"
        ) from None
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
            return f"({' '.join(_each(part['elements'], rules))})"
        case "or":
            return f"({' | '.join(_each(part['elements'], rules))})"
        case "optional":
            return f"({structure_texts(part['content'], rules)})?"
        case "tag":
            return _tag(part, rules)
        case "triggered_tags":
            return _triggered(part, rules)
    if not part["tags"]:
        raise ConfigError("invalid structural tag: 'tags_with_separator' has no tags; give one")
    tags = rules.add(" | ".join(_each(part["tags"], rules)))
    if not part.get("stop_after_first"):
        tags = f"({tags} ({literal(_string(part['separator']))} {tags})*)"
    return tags if part.get("at_least_one") else f"({tags})?"


def _each(parts: list[Any], rules: Rules) -> list[str]:
    return [structure_texts(part, rules) for part in parts]


def _schema(part: dict[str, Any], rules: Rules) -> str:
    try:
        if "style" in part:
            return marked_arguments(part["style"], part["json_schema"], rules)
        return schema_texts(part["json_schema"], rules)
    except ConfigError as error:
        raise ConfigError(f"{part['of']}: {error}" if "of" in part else str(error)) from None


def _tag(part: dict[str, Any], rules: Rules, trigger: str = "") -> str:
    """The expression of a tag, without the trigger that it begins with."""
    begin = _string(part["begin"]).removeprefix(trigger)
    end = _string(part["end"])
    if part["content"] == {"type": "any_text"} and end:
        content = rules.add(until(end), lazy=True)
    else:
        content = f"{structure_texts(part['content'], rules)} {literal(end)}"
    return f"({literal(begin)} {content})"


def _triggered(part: dict[str, Any], rules: Rules) -> str:
    """The expression of free text with tags; after a trigger, a tag must follow."""
    triggers = [_string(trigger) for trigger in part["triggers"]]
    trigger_texts = []
    for trigger in triggers:
        tags = [tag for tag in part["tags"] if _string(tag["begin"]).startswith(trigger)]
        if not trigger or not tags:
            raise ConfigError(f"invalid structural tag: no tag begins with the trigger {trigger!r}")
        head = rules.add(until(trigger), lazy=True)
        tag_texts = [_tag(tag, rules, trigger) for tag in tags]
        trigger_texts.append(f"{head} ({' | '.join(tag_texts)})")
    calls = f"({' | '.join(trigger_texts)})"
    plain_text = rules.add(without(*triggers), plain=True)
    if part.get("stop_after_first"):
        return calls if part.get("at_least_one") else f"({calls} | {plain_text})"
    return f"{calls}{'+' if part.get('at_least_one') else '*'} {plain_text}"


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return check_text("structural tag", value)
