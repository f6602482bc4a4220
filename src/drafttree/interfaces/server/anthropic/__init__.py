"""/v1/messages: Anthropic's API, by way of chat completions."""
