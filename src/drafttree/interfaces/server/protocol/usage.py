"""The tokens that a request took."""

from drafttree.interfaces.server.protocol.reply_model import ReplyModel


class PromptTokensDetails(ReplyModel):
    """Of the prompt's tokens, those that an earlier text of the same beginning had left."""

    cached_tokens: int


class CompletionTokensDetails(ReplyModel):
    """Drafted tokens that the target accepted into the texts, and those it did not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(ReplyModel):
    """Tokens of the prompts and of all texts, EOS tokens included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
