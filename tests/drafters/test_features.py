"""A drafter gets the target's hidden states of every token once, in order."""

import torch

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter, Session
from drafttree.policies import Talon
from testing import tiny

LAYERS = (1, tiny.LAYERS)


class Recorder:
    """Wraps a drafter and records the hidden states it is given."""

    def __init__(self, inner) -> None:
        self.inner, self.vocab_size, self.context, self.hidden_layers = inner, inner.vocab_size, inner.context, LAYERS
        self.levels, self.nbytes = inner.levels, inner.nbytes
        self.shown = []

    def start(self, prompt, capacity):
        return RecordedSession(self, self.inner.start(prompt, capacity))


class RecordedSession(Session):
    def __init__(self, recorder, draft) -> None:
        super().__init__(recorder, torch.device("cpu"))
        self.shown, self.draft = recorder.shown, draft

    def draft_root(self):
        return self.draft.draft_root()

    def draft_level(self, tokens, origins):
        return self.draft.draft_level(tokens, origins)

    def prefill(self, hidden_states, tokens):
        self.shown.append(hidden_states)
        self.draft.prefill((), tokens)

    def commit(self, tokens, hidden_states):
        self.shown.append(hidden_states)
        self.draft.commit(tokens, ())


def test_features_are_transformers_hidden_states_of_the_text():
    target, clone = tiny.wrap(tiny.build("llama"))
    recorder = Recorder(LanguageModelDrafter(target))
    prompt = tiny.random_tokens(7, seed=1)
    decoder = Decoder(target, recorder, Talon(width=3, budget=8))
    sequence = decoder.new_request(prompt, max_new_tokens=20)
    for _ in range(4):
        decoder.step(sequence)
    assert len(sequence.tokens) > len(prompt) + 4
    expected = clone(input_ids=torch.tensor([sequence.tokens[:-1]]), output_hidden_states=True).hidden_states
    for index, layer in enumerate(LAYERS):
        shown = torch.cat([hidden_states[index] for hidden_states in recorder.shown], 1)
        torch.testing.assert_close(shown, expected[layer], atol=1e-4, rtol=1e-4)
