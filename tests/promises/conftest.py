from tests.helpers.held_engines import decoder, others, target

__all__ = ["decoder", "others", "target"]
