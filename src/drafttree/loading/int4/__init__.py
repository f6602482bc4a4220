"""Models rounded to four bits by what they themselves write: `quantize="int4"` and `drafttree quantize`."""
