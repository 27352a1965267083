"""The decoder, layer by layer: pure functions of activations and weights.

LLaMA style (RMSNorm, RoPE, grouped-query attention, SwiGLU). Nothing here knows about pipelines,
plans or optimizers; a stage holds any range of layers and calls these.
Source: Touvron et al. 2023 (LLaMA); Su et al. 2021 (RoPE, the split-half form).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from db.run_config import ModelConfig
from engine.clock import Work
from engine.packing import Packing
from engine.placement import CPU
from engine.precision import wide
from engine.tensor_parallel import TensorParallel, VocabParallelCrossEntropy

Weights = Mapping[str, Tensor]


class Decoder:
    """The model's functions with its constants; holds no weights.

    Shapes: activations `[sequences, seq_len, hidden]`, tokens `[sequences, seq_len]`.
    With bf16 weights activations are bf16; rotations, logits and loss are fp32.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, torch_device: torch.device = CPU) -> None:
        self.config, self.dtype, self.torch_device = config, dtype, torch_device
        self.head_size = config.hidden_size // config.num_heads
        self.cos, self.sin = (table.to(torch_device) for table in _rope(config, self.head_size, dtype))

    def embed(self, tokens: Tensor, weights: Weights, tp: TensorParallel) -> Tensor:
        """Vocabulary-parallel embedding; collective in the group."""
        table = weights["embedding"]
        tp.clock.start(Work.EMBED)
        local = tokens - tp.rank * table.shape[0]
        is_here = (local >= 0) & (local < table.shape[0])
        rows = F.embedding(torch.where(is_here, local, 0), table) * is_here[..., None]
        result = tp.reduce(rows)
        tp.clock.drop()
        return result

    def layer(self, x: Tensor, weights: Weights, tp: TensorParallel, packing: Packing | None = None) -> Tensor:
        """One decoder layer; collective in the group, twice forward and twice backward.

        Args:
            packing: where the documents of each sequence are; None: a sequence is one text.
        """
        tp.clock.start(Work.FORWARD)
        h = tp.copy(self._norm(x, weights["attention_norm"]))
        x = x + tp.reduce(self._attention(h, weights, packing))
        h = tp.copy(self._norm(x, weights["ffn_norm"]))
        gated = F.silu(h @ weights["w_gate"].T) * (h @ weights["w_up"].T)
        result = x + tp.reduce(gated @ weights["w_down"])
        tp.clock.drop()
        return result

    def loss(self, x: Tensor, targets: Tensor, weights: Weights, tp: TensorParallel) -> Tensor:
        """Final norm, vocabulary-parallel head, cross-entropy summed over tokens; collective."""
        tp.clock.start(Work.HEAD)
        h = tp.copy(self._norm(x, weights["final_norm"])).flatten(0, 1)
        logits = h @ weights["embedding" if self.config.tie_embeddings else "head"].T
        logits = logits.to(wide(logits.dtype))
        result: Tensor = VocabParallelCrossEntropy.apply(logits, targets.flatten(), tp)
        tp.clock.drop()
        return result

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.norm_eps)

    def _attention(self, x: Tensor, weights: Weights, packing: Packing | None) -> Tensor:
        q = self._rotate(self._heads(x @ weights["wq"].T), packing)
        k = self._rotate(self._heads(x @ weights["wk"].T), packing)
        v = self._heads(x @ weights["wv"].T)
        mask = packing.mask if packing else None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2) @ weights["wo"]

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)

    def _rotate(self, x: Tensor, packing: Packing | None) -> Tensor:
        one, two = x.chunk(2, dim=-1)
        places = packing.positions[:, None] if packing else slice(x.shape[2])
        cos, sin = self.cos[places], self.sin[places]
        return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1).to(x.dtype)


def initial_slice(seed: int, index: int, number: int, shape: tuple[int, ...], num_layers: int) -> Tensor:
    """Fine slice `number` of parameter `index` as it starts, in float64.

    A pure function of its arguments, so every layout starts from the same numbers. Norms start at
    one, matrices at normal values of deviation 0.02, the two that write to the residual stream
    included (no depth scaling).
    """
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed((seed * 1_000_003 + index) * 64 + number)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 0.02


def _rope(config: ModelConfig, head_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    frequencies = config.rope_theta ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angles = torch.outer(torch.arange(config.seq_len, dtype=torch.float64), frequencies)
    return angles.cos().to(wide(dtype)), angles.sin().to(wide(dtype))
