"""Loads the processor of a model that reads images."""

from transformers import AutoProcessor

from drafttree.core.errors import ConfigError, ModelError
from drafttree.images.processor import ImageProcessor
from drafttree.loading.pretrained import quiet


def load_processor(location: str, image_token: int | None) -> ImageProcessor:
    """The processor in a model's folder.

    Args:
        location: the folder or hub name of the model.
        image_token: the token id that stands for a part of an image; None if its config names none.

    Raises:
        ModelError: there is no processor, or it cannot be loaded, for example because a package is missing.
        ConfigError: the processor cannot prepare prompts, or there is no image token.
    """
    if image_token is None:
        raise ConfigError(f"the config of {location!r} names no image token, so its prompts cannot have images")
    try:
        with quiet():
            processor = AutoProcessor.from_pretrained(location, trust_remote_code=False)
    except ImportError as error:
        first_sentence = str(error).strip().partition(". ")[0].partition("\n")[0].rstrip(".")
        raise ModelError(f"the images of {location!r} cannot be read: {first_sentence}; install it") from error
    except Exception as error:  # transformers raises errors of many kinds here
        reason = " ".join(str(error).split())
        raise ModelError(
            f"the processor of {location!r}, which reads its images, cannot be loaded: {reason}"
        ) from error
    if not hasattr(processor, "image_processor"):
        raise ModelError(f"{location!r} has no processor for images; copy its preprocessor_config.json from the hub")
    return ImageProcessor(processor, image_token)
