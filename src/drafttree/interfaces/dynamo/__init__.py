"""A worker of a fleet that NVIDIA Dynamo's frontend serves: token ids in, chunks of tokens and text out."""
