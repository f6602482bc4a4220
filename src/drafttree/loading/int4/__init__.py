"""Rounds models to four bits, calibrated by texts that they write: `quantize="int4"` and `drafttree quantize`."""
