"""Write JSON of a given shape: every drafted token obeys the schema too. Needs `pip install "drafttree[grammar]"`."""

from typing import Literal

from pydantic import BaseModel, Field

import drafttree


class Ship(BaseModel):
    """What the text must describe."""

    name: str = Field(max_length=12)
    kind: Literal["sloop", "brig", "frigate"]
    guns: int = Field(ge=0, le=99)


decoder = drafttree.load()
grammar = drafttree.grammar.json_schema(Ship)
result = decoder.generate("The ship:", grammar=grammar, temperature=0.7, seed=1, max_new_tokens=80)

print(result.text)
print(Ship.model_validate_json(result.text))
