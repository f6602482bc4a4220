"""Text and tokens: prompts, chat templates, detokenisation, stop strings, and maps between vocabularies."""
