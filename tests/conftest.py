"""One thread per test process: small models gain nothing from more, and the processes share the cores."""

import torch

torch.set_num_threads(1)
