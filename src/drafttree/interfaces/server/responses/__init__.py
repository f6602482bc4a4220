"""/v1/responses: OpenAI's Responses API, by way of chat completions."""
