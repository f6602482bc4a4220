"""The radix tree beside a list that is searched token by token."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from drafttree.engine.prefix_tree import PrefixTree


@dataclass(eq=False)
class Text:
    tokens: list[int]


@dataclass
class Listed:
    """What the tree promises, by comparing everything; the text used last is at the end."""

    texts: list[Text] = field(default_factory=list)

    def matches(self, tokens: list[int]) -> list[tuple[int, Text]]:
        found = [(shared(text.tokens, tokens), text) for text in reversed(self.texts)]
        return sorted((match for match in found if match[0]), key=lambda match: -match[0])

    def beginnings(self, tokens: list[int]) -> list[Text]:
        return [text for text in self.texts if tokens[: len(text.tokens)] == text.tokens]


def shared(one: list[int], other: list[int]) -> int:
    longest = min(len(one), len(other))
    return next((place for place in range(longest) if one[place] != other[place]), longest)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "use", "remove", "search"]), TOKENS), max_size=40)


@given(STEPS)
def test_it_finds_what_a_search_of_all_texts_finds(steps):
    tree, listed = PrefixTree[Text](), Listed()
    for what, tokens in steps:
        found = listed.matches(tokens)
        assert [*tree.matches(tokens)] == found
        assert {*tree.beginnings(tokens)} == {*listed.beginnings(tokens)}
        if what == "add":
            text = Text(tokens)
            tree.add(tokens, text)
            listed.texts.append(text)
        elif what == "use" and found:
            tree.use(found[0][1])
            listed.texts.remove(found[0][1])
            listed.texts.append(found[0][1])
        elif what == "remove" and found:
            tree.remove(found[-1][1])
            listed.texts.remove(found[-1][1])
        assert [*tree] == listed.texts
        assert len(tree) == len(listed.texts)


@given(st.lists(TOKENS, min_size=1), st.randoms())
def test_nothing_stays_behind_when_all_texts_have_gone(texts, random):
    tree = PrefixTree[Text]()
    for tokens in texts:
        tree.add(tokens, Text(tokens))
    for text in random.sample([*tree], len(tree)):
        tree.remove(text)
    assert not tree._root.children


@given(st.lists(TOKENS, min_size=1))
def test_edges_are_as_long_as_they_can_be(texts):
    tree = PrefixTree[Text]()
    for tokens in texts:
        tree.add(tokens, Text(tokens))
    for text in [*tree][::2]:
        tree.remove(text)
    nodes = [*tree._root.children.values()]
    for node in nodes:
        assert node.items or len(node.children) > 1
        nodes += node.children.values()
