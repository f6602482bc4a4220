"""What passes and rounds cost: measured, kept on disk, and mended by the rounds of texts."""
