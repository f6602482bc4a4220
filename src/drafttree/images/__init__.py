"""Images in prompts: the files that users send, and what a model's processor makes of them."""
