"""Small random targets of Gemma 4's family and assistants for them."""

from copy import deepcopy
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from testing import families, tiny

VOCAB = 96
KINDS = ("gemma4", "gemma4 sharing keys", "unified", "ordered embeddings")
WINDOW = tiny.WINDOW


def target_of(kind: str) -> PreTrainedModel:
    """The target of a kind, whose windows are shorter than most texts of the tests."""
    shared = kind == "gemma4 sharing keys"
    name, fields = families.FAMILIES["gemma4 sharing keys" if shared else "gemma4"]
    name = name.replace("Gemma4", "Gemma4Unified") if kind == "unified" else name
    sizes = {**fields, "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB}
    return tiny.from_config(getattr(transformers, name)(**sizes))


@torch.no_grad()
def assistant_of(kind: str, **changes: Any) -> PreTrainedModel:
    """The assistant of a kind, narrower than its target.

    Args:
        changes: fields of its text config, or `backbone_hidden_size`, that are to be others.
    """
    name = "Gemma4Unified" if kind == "unified" else "Gemma4"
    backbone = changes.pop("backbone_hidden_size", tiny.SIZES["hidden_size"])
    text = {
        **families.FAMILIES["gemma4"][1],
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "num_kv_shared_layers": 3,
        **changes,
    }
    ordered = {"use_ordered_embeddings": True, "num_centroids": 12, "centroid_intermediate_top_k": 4}
    text_config = getattr(transformers, f"{name}TextConfig")(**text)
    config = getattr(transformers, f"{name}AssistantConfig")(
        text_config=text_config,
        backbone_hidden_size=backbone,
        **(ordered if kind == "ordered embeddings" else {}),
    )
    module = getattr(transformers, f"{name}AssistantForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        parameter.normal_(float(parameter.mean().round()), 0.2, generator=generator)
    if kind == "ordered embeddings":
        module.masked_embedding.token_ordering.copy_(torch.randperm(VOCAB, generator=generator))
    return module


def pair(kind: str, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The target and the assistant of a kind."""
    return target_of(kind).to(dtype), assistant_of(kind).to(dtype)


class Stock:
    """A target and its assistant as transformers runs them.

    Args:
        target: copied, before drafttree gets it.
        assistant: copied, before drafttree gets it.
    """

    def __init__(self, target: PreTrainedModel, assistant: PreTrainedModel) -> None:
        self.target: Any = deepcopy(target)
        self.assistant: Any = deepcopy(assistant)

    @torch.inference_mode()
    def read(self, tokens: list[int]) -> Any:
        """The target's outputs for the committed tokens before the root."""
        return self.target(
            input_ids=torch.tensor([tokens[:-1]]), output_hidden_states=True, return_shared_kv_states=True
        )

    @torch.inference_mode()
    def chain(self, tokens: list[int], depth: int) -> tuple[list[int], Tensor]:
        """The tokens and the logits `[depth, vocab]` that transformers' generator drafts behind these tokens."""
        from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

        self.assistant.generation_config.num_assistant_tokens = depth
        settings = transformers.GenerationConfig(max_length=len(tokens) + depth + 1)
        generator = SinglePositionMultiTokenCandidateGenerator(
            self.assistant, self.target.get_input_embeddings(), settings
        )
        found, logits = generator.get_candidates(torch.tensor([tokens]), {}, self.read(tokens), False, 0)
        assert logits is not None
        return found[0, len(tokens) :].tolist(), logits[0]

    @torch.inference_mode()
    def along(self, tokens: list[int], path: list[int]) -> Tensor:
        """The logits `[vocab]` behind a path of drafted tokens, one call of the assistant for each node."""
        known = self.read(tokens)
        state, logits = known.hidden_states[-1][:, -1:], None
        for token in [tokens[-1], *path]:
            embedded = self.target.get_input_embeddings()(torch.tensor([[token]]))
            output = self.assistant(
                inputs_embeds=torch.cat((embedded, state), -1),
                position_ids=torch.tensor([[len(tokens) - 1]]),
                shared_kv_states=dict(known.shared_kv_states),
                use_cache=False,
            )
            state, logits = output.last_hidden_state, output.logits[0, 0]
        assert logits is not None
        return logits
