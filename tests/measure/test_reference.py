"""The reference is transformers' own `generate`, whatever the model attends with."""

from drafttree import Decoder
from drafttree.measure.reference import transformers_generate
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from testing import families, tiny


def test_models_that_take_the_tree_as_a_mask_have_a_reference():
    """They keep their own attention: ours is not for them."""
    module = tiny.from_config(families.config("stablelm"))
    decoder = Decoder(TargetModel(module, choose_backend))
    for _ in range(2):
        expected = transformers_generate(decoder, [1, 2, 3], max_new_tokens=8).tokens
        assert decoder.generate([1, 2, 3], max_new_tokens=8).tokens == expected
