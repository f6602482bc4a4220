"""Requests and replies of OpenAI's API, as pydantic models."""
