"""The chat templates of families, shortened to their conventions, and models that write one answer by heart."""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from drafttree import Decoder
from testing.tokenizers import byte_level
from testing.toy import ToyDrafter, ToyModel

TURNS = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}CALL{% endfor %}<|im_end|>\n{% endfor %}"
)
OPENED = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
SWITCHED = (
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
HERMES_CALL = (
    '\n<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>"
)
CODER_CALL = (
    "\n<tool_call>\n<function={{ call.function.name }}>\n{% for key, value in call.function.arguments.items() %}"
    "<parameter={{ key }}>\n{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
TOLD = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
)
TEMPLATES = {
    "qwen3": TOLD + TURNS.replace("CALL", HERMES_CALL) + SWITCHED,
    "qwq": TOLD + TURNS.replace("CALL", HERMES_CALL) + OPENED,
    "qwen3-coder": TOLD + TURNS.replace("CALL", CODER_CALL) + "<|im_start|>assistant\n",
    "llama3": (
        "{% if tools %}Environment: ipython\n{{ tools | tojson }}{% endif %}{% for message in messages %}"
        "{% if message.tool_calls %}{% if message.tool_calls | length != 1 %}"
        '{{ raise_exception("This model only supports single tool-calls at once!") }}{% endif %}'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "{{ message.tool_calls[0].function.name }}", '
        '"parameters": {{ message.tool_calls[0].function.arguments | tojson }}}<|eot_id|>'
        "{% else %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content }}<|eot_id|>{% endif %}"
        "{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "mistral": (
        "{% for message in messages %}{% if message.role == 'user' %}"
        "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
        "[INST]{{ message.content }}[/INST]"
        "{% elif message.tool_calls %}{% for call in message.tool_calls %}{% if call.id | length != 9 %}"
        '{{ raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{% endif %}'
        "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}</s>"
        "{% elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.tool_call_id }}[TOOL_CONTENT]{{ message.content }}"
        "[/TOOL_RESULTS]{% else %}[THINK]{{ message.reasoning_content }}[/THINK]{{ message.content }}</s>{% endif %}"
        "{% endfor %}"
    ),
    "mistral-7b": (
        "{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for message in messages %}"
        "{% if message.tool_calls %}[TOOL_CALLS] [{% for call in message.tool_calls %}"
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, '
        '"id": "{{ call.id }}"}'
        "{% endfor %}]</s>{% else %}[INST] {{ message.content }}[/INST]{% endif %}{% endfor %}"
    ),
    "gpt-oss": (
        "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}\n"
        "# Valid channels: analysis, commentary, final.<|end|>{% if tools %}<|start|>developer<|message|>"
        "{{ tools | tojson }}<|end|>{% endif %}{% for message in messages %}{% if message.tool_calls %}"
        '{% if message.content and message.thinking %}{{ raise_exception("Cannot pass both content and thinking") }}'
        "{% elif message.content %}<|start|>assistant<|channel|>analysis<|message|>{{ message.content }}<|end|>"
        "{% elif message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>"
        "{% endif %}"
        "<|start|>assistant to=functions.{{ message.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
        "{{ message.tool_calls[0].function.arguments | tojson }}<|call|>"
        "{% else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    ),
    "deepseek-r1": (
        "{% for message in messages %}{% if message.tool_calls %}<｜Assistant｜><｜tool▁calls▁begin｜>"  # noqa: RUF001
        "{% for tool in message.tool_calls %}<｜tool▁call▁begin｜>{{ tool.type }}<｜tool▁sep｜>"  # noqa: RUF001
        "{{ tool.function.name + '\n```json\n' + tool.function.arguments + '\n```' }}<｜tool▁call▁end｜>"  # noqa: RUF001
        "{% endfor %}<｜tool▁calls▁end｜>{% else %}<｜User｜>{{ message.content }}{% endif %}{% endfor %}"  # noqa: RUF001
        "{% if tools %}{{ tools | tojson }}{% endif %}<｜Assistant｜><think>\n"  # noqa: RUF001
    ),
    "deepseek-v3.1": (
        "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}{% if message.tool_calls %}"
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ message.tool_calls[0].function.name }}<｜tool▁sep｜>"  # noqa: RUF001
        "{{ message.tool_calls[0].function.arguments }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"  # noqa: RUF001
        "{% else %}<｜User｜>{{ message.content }}{% endif %}{% endfor %}<｜Assistant｜>"  # noqa: RUF001
        "{% if thinking %}<think>{% else %}</think>{% endif %}"
    ),
    "glm-4.5": (
        "{% if tools %}<|system|>\n{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>\n"
        "{{ m.content or '' }}{% for tc in m.tool_calls or [] %}\n<tool_call>{{ tc.function.name }}\n"
        "{% for k, v in tc.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n"
        "{% endfor %}</tool_call>{% endfor %}{% endfor %}<|assistant|>"
        "{{ '\n<think></think>' if enable_thinking is defined and not enable_thinking else '' }}"
    ),
    "glm-4.7": (
        "{% if tools %}{{ tools | tojson }}"
        "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value></tool_call>"
        "{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
        "{{ '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}"
    ),
}
PLAIN_MARKS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
]
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|start|>",
    "<|end|>",
    "<|call|>",
]
SPECIAL += [
    "<|python_tag|>",
    "<|eot_id|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
    "[INST]",
    "[/INST]",
]


def tokenizer_of(family: str, text: str = "a small text of no family", size: int = 280) -> PreTrainedTokenizerFast:
    """A tokenizer over bytes with the marks of all families, special ones as theirs are, and a family's template.

    Args:
        family: one of `TEMPLATES`.
        text: what it is trained on.
        size: its tokens without the marks.
    """
    made = byte_level(text, size, "<|endoftext|>")
    made.add_tokens([AddedToken(mark, special=False) for mark in PLAIN_MARKS])
    made.add_tokens([AddedToken(mark, special=True) for mark in SPECIAL], special_tokens=True)
    made.chat_template = TEMPLATES[family]
    return made


class ByHeart:
    """The law of a model that writes one answer, whatever it is asked."""

    def __init__(self, answer: Sequence[int], vocab: int) -> None:
        self._answer, self._vocab = list(answer), vocab

    def __call__(self, prefix: Sequence[int]) -> list[float]:
        lengths = range(min(len(prefix), len(self._answer) - 1), -1, -1)
        written = next(n for n in lengths if list(prefix[len(prefix) - n :]) == self._answer[:n])
        return [9.0 if token == self._answer[written] else 0.0 for token in range(self._vocab)]


class InTurns:
    """The law of a model that writes one text in each turn; marks that nothing else has tell it which turn it is."""

    MARK = "\x07"
    """Stands where a turn has been answered: in what a tool returns, or in what a user says next."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> None:
        self.vocab, self.eos = len(tokenizer), tokenizer.eos_token_id
        (self._mark,) = tokenizer(self.MARK, add_special_tokens=False)["input_ids"]
        answers = [[*tokenizer(text, add_special_tokens=False)["input_ids"], self.eos] for text in texts]
        self._laws = [ByHeart(answer, self.vocab) for answer in answers]
        self._longest = max(map(len, answers))

    def __call__(self, prefix: Sequence[int]) -> list[float]:
        turn = min([*prefix].count(self._mark), len(self._laws) - 1)
        return self._laws[turn](prefix[-self._longest :])


def knowing(answer: str, family: str, **options: Any) -> Decoder:
    """A decoder of a model of a family that writes one answer and then EOS."""
    tokenizer = tokenizer_of(family)
    eos = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|call|>")]
    tokens = [*tokenizer(answer, add_special_tokens=False)["input_ids"], eos[0]]
    vocab = len(tokenizer)
    law = ByHeart(tokens, vocab)
    return Decoder(ToyModel(law, vocab), ToyDrafter(law, vocab), tokenizer=tokenizer, eos=eos, **options)
