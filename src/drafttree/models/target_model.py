"""A transformers model that scores trees: the target, or a language model that drafts."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from drafttree.core.autocast import refuse_autocast
from drafttree.core.counts import check_count
from drafttree.core.errors import ConfigError
from drafttree.models.base import Backend
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.inference import in_inference_mode
from drafttree.models.module.fingerprint import SelectedBackend
from drafttree.models.module.image_reading import image_token_of, read_images
from drafttree.models.module.long_rope import context_limit, rope_switch
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.module.module_checks import input_device, logits_width
from drafttree.models.quantization.quantized_linear import quantization, quantized_scales
from drafttree.models.segment import Output, Segment, undo_pass
from drafttree.models.tensor_parallel import tensor_parallel_size
from drafttree.models.triton.kernel_failures import KernelError
from drafttree.models.windows import LossyWindow

logger = logging.getLogger("drafttree")


class TargetModel:
    """A model and the backend that runs it. See `drafttree.models.base.Model` for the protocol.

    When a text begins, the module's fingerprint (`drafttree.models.module.fingerprint`) is compared with the one that
    the backend was made for. If hooks, layers, weights or settings differ, another backend is selected.

    Args:
        module: a decoder-only model with a language-model head; wrapped, never copied, and put into evaluation mode.
        select: makes the backend. `drafttree.models.backend_choice.choose_backend` makes the fastest that gives the
            module's own logits; the default runs the module unchecked.

    Attributes:
        dtype: dtype of the weights that are not quantised.
        quantization: how the other weights are quantised, None if there are none.
        tensor_parallel_size: number of processes over which its weights are sharded; 1 if they are whole.
        own_context: largest number of positions that the model itself allows, None for no limit.
        unseen: a hook, function or attribute of the module whose state may change texts but cannot be compared. Then no
            rows are reused by default. None if there is none.

    Raises:
        ConfigError: `torch.autocast` is active.
        ModelError: the model has layers that cannot be verified in a tree; the message names their kind.
    """

    def __init__(self, module: PreTrainedModel, select: Callable[[PreTrainedModel], Backend] = ModuleBackend) -> None:
        refuse_autocast(input_device(module))
        self.module = module
        self._max_context: int | None = None
        self._backend_name: str | None = None
        self._training = [submodule for submodule in module.modules() if submodule.training]
        module.eval()
        try:
            self._selected = SelectedBackend(module, select)
        except Exception:
            self.release()
            raise
        self._describe()
        configured_context = getattr(module.config.get_text_config(), "max_position_embeddings", None)
        if self.context and configured_context and self.context < configured_context:
            class_name = type(module).__name__
            logger.warning(
                "%s is limited to LongRoPE's original context of %d tokens instead of %d: beyond it, the model's "
                "own texts depend on where the prompt ended, since keys keep the frequencies they were computed with",
                class_name,
                self.context,
                configured_context,
            )

    def __repr__(self) -> str:
        packed_size = f" + {self.packed_nbytes / 1e6:.1f} MB packed" if self.packed_nbytes else ""
        details = [f"{self.nbytes / 1e6:.1f} MB{packed_size}", self.precision, str(self.device)]
        details += [f"lossy_window={self.lossy_window.size}+{self.lossy_window.sinks}"] if self.lossy_window else []
        details += [f"1 of {self.tensor_parallel_size} processes"] if self.tensor_parallel_size > 1 else []
        unseen_details = [f"reuses no rows by default because of {self.unseen}"] if self.unseen else []
        details += [self.runs_on]
        return f"TargetModel({', '.join([type(self.module).__name__, *details, *unseen_details])})"

    @property
    def backend(self) -> Backend:
        """The backend that runs the passes since the last text began."""
        return self._selected.backend

    @property
    def runs_on(self) -> str:
        """Name of the backend that runs the passes, and why faster ones do not."""
        name = self.backend.name
        reason = self.backend.fallback_reason
        return f"{name} ({reason})" if reason else name

    @property
    def precision(self) -> str:
        """The dtype, and the method of quantisation if there is one."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype} with {self.quantization} weights" if self.quantization else dtype

    @property
    def packed_nbytes(self) -> int:
        """Bytes of packed copies that the backend keeps beside the module's weights."""
        return self.backend.packed_nbytes

    @property
    def exact_text(self) -> bool:
        """Whether texts equal those of plain decoding token for token, whatever the draft trees."""
        return self.backend.exact_text

    @property
    def lossy_window(self) -> LossyWindow | None:
        """The window of rows that tokens attend to, None if they attend to all rows."""
        return self.backend.lossy_window

    def release(self) -> None:
        """Put the submodules that were in training mode back into it."""
        for submodule in self._training:
            submodule.training = True

    @property
    def shares_passes(self) -> bool:
        """Whether several requests can share a pass; a trial on first use decides."""
        return self.backend.shares_passes

    def limit_context(self, tokens: int) -> None:
        """Limit each prompt and its text to this many tokens together.

        Raises:
            ConfigError: `tokens` is not a whole number of at least 2, or more than `own_context`.
        """
        check_count("max_model_len", tokens, minimum=2)
        if self.own_context is not None and tokens > self.own_context:
            raise ConfigError(
                f"max_model_len is {tokens}, but the model's context is {self.own_context}; give at most that"
            )
        self._max_context = self.context = tokens

    def new_cache(self, capacity: int) -> TreeCache:
        """Make an empty KV cache. Every text begins with this call, so it also checks whether the module has changed.

        Raises:
            ModelError: the module has changed, and cannot be verified in a tree any more.
        """
        if self._selected.refresh():
            self._describe()
        return self.backend.new_cache(capacity)

    @in_inference_mode
    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        """Score tokens; see `drafttree.models.base.Backend.forward`.

        If a kernel does not compile for these sizes, another backend runs this pass and all later ones.
        """
        try:
            return self.backend.forward(segments, hidden_layers=hidden_layers)
        except KernelError:
            pass  # outside the handler, since the error's frames hold the weights of the former backend
        undo_pass(segments)
        self._selected.replace()
        self._describe()
        return self.backend.forward(segments, hidden_layers=hidden_layers)

    @property
    def image_token(self) -> int | None:
        """The token id that stands for a part of an image in a prompt; None if the model reads no images."""
        return image_token_of(self.module)

    @in_inference_mode
    def read_images(
        self,
        cache: TreeCache,
        tokens: Sequence[int],
        inputs: Mapping[str, Any],
        *,
        prompt_length: int,
        hidden_layers: tuple[int, ...] = (),
    ) -> tuple[Tensor, ...]:
        """Read a prompt with images; see `drafttree.models.module.image_reading.read_images`.

        The first one since the backend was selected tries whether it goes on from the module's rows.
        """
        trial = None if self._goes_on_from_images else self.backend
        try:
            states = read_images(self.module, cache, tokens, inputs, prompt_length, hidden_layers, trial)
        finally:
            self._selected.accept()
        self._goes_on_from_images = True
        return states

    def _describe(self) -> None:
        module = self.module
        self.vocab_size: int = logits_width(module)
        self.own_context = context_limit(module)
        limits = [limit for limit in (self.own_context, self._max_context) if limit is not None]
        self.context = min(limits, default=None)
        self.rope_switch = rope_switch(module)
        self.device = input_device(module)
        self.dtype = module.dtype
        self.quantization = quantization(module)
        self.tensor_parallel_size = tensor_parallel_size(module)
        self.unseen = self._selected.unseen
        self._goes_on_from_images = False
        if self.unseen:
            logger.info("no KV cache is reused by default: %s may have state that cannot be compared", self.unseen)
        self.nbytes = sum(weight.nbytes for weight in [*module.parameters(), *quantized_scales(module)])
        self._log_backend()

    def _log_backend(self) -> None:
        """Log the backend if faster ones were refused, or if a change of the module has led to another one."""
        model = type(self.module).__name__
        name = self.backend.name
        reason = self.backend.fallback_reason
        has_changed = self._backend_name not in (None, name)
        if reason:
            level = logging.WARNING if has_changed else logging.INFO
            logger.log(level, "%s runs on %s: %s", model, name, reason)
        elif has_changed:
            logger.info("%s runs on %s again", model, name)
        self._backend_name = name
