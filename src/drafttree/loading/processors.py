"""Loads the processor of a model that reads images."""

from transformers import AutoProcessor

from drafttree.core.errors import ModelError
from drafttree.images.processor import ImageProcessor
from drafttree.loading.pretrained import quiet


def load_processor(location: str, image_token: int) -> ImageProcessor:
    """The processor in a model's folder.

    Args:
        location: the folder or hub name of the model.
        image_token: the token id that stands for a part of an image.

    Raises:
        ModelError: there is no processor, or it cannot be loaded, for example because a package is missing.
        ConfigError: the processor cannot prepare prompts.
    """
    try:
        with quiet():
            processor = AutoProcessor.from_pretrained(location, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of many kinds here
        reason = " ".join(str(error).split())
        raise ModelError(
            f"the processor of {location!r}, which reads its images, cannot be loaded: {reason}"
        ) from error
    if not hasattr(processor, "image_processor"):
        raise ModelError(f"{location!r} has no processor for images; copy its preprocessor_config.json from the hub")
    return ImageProcessor(processor, image_token)
