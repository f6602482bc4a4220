"""What all parts of a reply have in common."""

from pydantic import BaseModel, ConfigDict


class ReplyModel(BaseModel):
    """A part of a reply; what is not set is not sent."""

    model_config = ConfigDict(extra="forbid")

    def json_text(self) -> str:
        """What is sent."""
        return self.model_dump_json(exclude_unset=True)
