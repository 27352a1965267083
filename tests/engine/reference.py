"""The single-process reference: the same model and optimizer, written plainly with torch's own parts.

Shares with the engine only the starting values and the data; no layout, schedule, group or slice.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from db.run_config import ModelConfig, RunConfig
from engine.data import Corpus
from engine.data.source import read_tokens
from engine.model import initial_slice
from engine.parameters import parameters


def reference_losses(config: RunConfig, num_steps: int) -> list[float]:
    """Mean loss of each step."""
    dtype = {"float32": torch.float32, "float64": torch.float64}[config.train.dtype]
    weights = _initial(config, dtype)
    decayed = [weights[p.name] for p in parameters(config.model) if p.is_decayed]
    others = [weights[p.name] for p in parameters(config.model) if not p.is_decayed]
    train = config.train
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=train.learning_rate,
        betas=(train.beta1, train.beta2),
        eps=train.eps,
    )
    data = Corpus(read_tokens(config.data, config.model.vocab_size), config)
    losses = []
    for step in range(num_steps):
        batch = data.batch(step * train.global_batch, train.global_batch)
        logits = _forward(batch.inputs, batch.documents, weights, config.model)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())  # the mean over targets but -100
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _initial(config: RunConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    slices = config.parallel.max_tp
    result = {}
    for p in parameters(config.model):
        if p.is_sliced:
            shape = (p.shape[0] // slices, *p.shape[1:])
            parts = [
                initial_slice(config.train.seed, p.index, number, shape, config.model.num_layers)
                for number in range(slices)
            ]
            full = torch.cat(parts)
        else:
            full = initial_slice(config.train.seed, p.index, 0, p.shape, config.model.num_layers)
        result[p.name] = full.to(dtype).requires_grad_()
    return result


def _forward(tokens: Tensor, documents: Tensor | None, w: dict[str, Tensor], model: ModelConfig) -> Tensor:
    if documents is not None:  # each document as if it were alone
        rows = []
        for sequence, numbers in zip(tokens, documents, strict=True):
            alone = [sequence[numbers == number] for number in numbers.unique()]
            rows.append(torch.cat([_forward(document[None], None, w, model)[0] for document in alone]))
        return torch.stack(rows)
    x = w["embedding"][tokens]
    for layer in range(model.num_layers):
        name = f"layers.{layer}."
        x = x + _attention(_norm(x, w[name + "attention_norm"], model), w, name, model)
        h = _norm(x, w[name + "ffn_norm"], model)
        x = x + (F.silu(h @ w[name + "w_gate"].T) * (h @ w[name + "w_up"].T)) @ w[name + "w_down"]
    return _norm(x, w["final_norm"], model) @ w["head"].T


def _norm(x: Tensor, weight: Tensor, model: ModelConfig) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + model.norm_eps) * weight


def _attention(x: Tensor, w: dict[str, Tensor], name: str, model: ModelConfig) -> Tensor:
    batch, length, hidden = x.shape
    size = hidden // model.num_heads

    def heads(y: Tensor, count: int) -> Tensor:
        return y.view(batch, length, count, size).transpose(1, 2)

    q = _rotate(heads(x @ w[name + "wq"].T, model.num_heads), model)
    k = _rotate(heads(x @ w[name + "wk"].T, model.num_kv_heads), model)
    v = heads(x @ w[name + "wv"].T, model.num_kv_heads)
    repeat = model.num_heads // model.num_kv_heads
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = q @ k.transpose(-1, -2) / size**0.5
    mask = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)
    y = (scores + mask).softmax(-1) @ v
    return y.transpose(1, 2).reshape(batch, length, hidden) @ w[name + "wo"]


def _rotate(x: Tensor, model: ModelConfig) -> Tensor:
    size, length = x.shape[-1], x.shape[-2]
    frequency = model.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.complex(x[..., : size // 2].double(), x[..., size // 2 :].double()) * turn
    return torch.cat([pairs.real, pairs.imag], -1).to(x.dtype)
