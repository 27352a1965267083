"""The single-process reference: the same model and optimizer, written plainly with torch's own parts.

Shares with the engine only the starting values and the data; no layout, schedule, group or slice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from db.run_config import ModelConfig, RunConfig, TrainConfig
from engine.data import Corpus
from engine.data.batch import Batch
from engine.data.source import read_tokens
from engine.model import initial_slice
from engine.parameters import parameters

TYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """In which order sums are formed; changes nothing but rounding.

    Args:
        micro_batch_size: sequences of one backward; 0 takes the whole global batch.
        shuffle: seeds the order of a step's sequences; 0 leaves it.
        num_parts: the products that tensor parallelism cuts are summed from so many parts.
    """

    micro_batch_size: int = 0
    shuffle: int = 0
    num_parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceStep:
    """Mean loss, global gradient norm before clipping, and learning rate of a step.

    `evaluation`: mean loss on evaluation samples before the step, NaN where the run does not evaluate.
    """

    loss: float
    grad_norm: float
    learning_rate: float
    evaluation: float = math.nan


def reference_losses(config: RunConfig, num_steps: int) -> list[float]:
    """Mean loss of each step."""
    return [step.loss for step in reference_steps(config, num_steps)]


def reference_steps(config: RunConfig, num_steps: int, order: Order | None = None) -> list[ReferenceStep]:
    """Trains `num_steps` steps from the starting values."""
    order = order or Order()
    train, dtype = config.train, TYPES[config.train.dtype]
    size = order.micro_batch_size or train.global_batch
    masters = _initial(config, torch.float64 if dtype == torch.float64 else torch.float32)
    optimizer = torch.optim.AdamW(
        [
            {"params": [value for value in masters.values() if value.dim() > 1], "weight_decay": train.weight_decay},
            {"params": [value for value in masters.values() if value.dim() == 1], "weight_decay": 0.0},
        ],
        betas=(train.beta1, train.beta2),
        eps=train.eps,
    )
    data = Corpus(read_tokens(config.data, config.model.vocab_size), config)
    result = []
    for step in range(num_steps):
        samples = list(range(step * train.global_batch, (step + 1) * train.global_batch))
        if order.shuffle:
            random.Random(order.shuffle * 1000 + step).shuffle(samples)
        is_evaluated = train.eval_every and step and step % train.eval_every == 0
        evaluation = _evaluation(config, data, masters, dtype, order.num_parts) if is_evaluated else math.nan
        num_targets = sum(data.batch(sample, 1).num_targets for sample in samples)
        loss = 0.0
        for master in masters.values():
            master.grad = torch.zeros_like(master)
        for start in range(0, len(samples), size):
            weights = {name: value.detach().to(dtype).requires_grad_() for name, value in masters.items()}
            part = _summed_loss(weights, data.batch, samples[start : start + size], config.model, order.num_parts)
            part = part / num_targets
            part.backward()
            loss += float(part.detach())
            for name, master in masters.items():
                gradient = weights[name].grad
                assert master.grad is not None
                assert gradient is not None
                master.grad += gradient.to(master.dtype)
        norm = float(torch.nn.utils.clip_grad_norm_(masters.values(), train.max_grad_norm or math.inf))
        for group in optimizer.param_groups:
            group["lr"] = _rate(train, step)
        optimizer.step()
        result.append(ReferenceStep(loss=loss, grad_norm=norm, learning_rate=_rate(train, step), evaluation=evaluation))
    return result


def _rate(train: TrainConfig, step: int) -> float:
    high, low = train.learning_rate, train.min_learning_rate
    if step + 1 <= train.warmup_steps:
        return high / train.warmup_steps * (step + 1)
    if train.decay == "constant":
        return high
    gone = (step - train.warmup_steps) / (train.num_steps - train.warmup_steps)
    return low + 0.5 * (high - low) * (1 + math.cos(gone * math.pi))


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


def _evaluation(
    config: RunConfig, data: Corpus, masters: dict[str, Tensor], dtype: torch.dtype, num_parts: int
) -> float:
    count = config.train.eval_batches * config.train.global_batch
    weights = {name: value.detach().to(dtype) for name, value in masters.items()}
    total = _summed_loss(weights, data.evaluation_batch, list(range(count)), config.model, num_parts)
    return float(total) / data.num_evaluation_targets(0, count)


def _summed_loss(
    w: dict[str, Tensor],
    batch_of: Callable[[int, int], Batch],
    samples: list[int],
    model: ModelConfig,
    num_parts: int,
) -> Tensor:
    batches = [batch_of(sample, 1) for sample in samples]
    documents = [batch.documents for batch in batches if batch.documents is not None]
    logits = _forward(
        torch.cat([batch.inputs for batch in batches]), torch.cat(documents) if documents else None, w, model, num_parts
    ).flatten(0, 1)
    targets = torch.cat([batch.targets for batch in batches]).flatten()
    return F.cross_entropy(logits.to(_wide(logits)), targets, reduction="sum")  # over targets but -100


def _forward(
    tokens: Tensor, documents: Tensor | None, w: dict[str, Tensor], model: ModelConfig, num_parts: int
) -> Tensor:
    if documents is not None:  # each document as if it were alone
        rows = []
        for sequence, numbers in zip(tokens, documents, strict=True):
            alone = [sequence[numbers == number] for number in numbers.unique()]
            rows.append(torch.cat([_forward(document[None], None, w, model, num_parts)[0] for document in alone]))
        return torch.stack(rows)
    x = w["embedding"][tokens]
    for layer in range(model.num_layers):
        name = f"layers.{layer}."
        x = x + _attention(_norm(x, w[name + "attention_norm"], model), w, name, model, num_parts)
        h = _norm(x, w[name + "ffn_norm"], model)
        gated = F.silu(h @ w[name + "w_gate"].T) * (h @ w[name + "w_up"].T)
        x = x + _product(gated, w[name + "w_down"], num_parts)
    return _norm(x, w["final_norm"], model) @ w["embedding" if model.tie_embeddings else "head"].T


def _product(x: Tensor, weight: Tensor, num_parts: int) -> Tensor:
    """`x @ weight`, summed in pairs from so many parts of the contraction."""
    sums = [a @ b for a, b in zip(x.chunk(num_parts, -1), weight.chunk(num_parts, 0), strict=True)]
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


def _norm(x: Tensor, weight: Tensor, model: ModelConfig) -> Tensor:
    y = x.to(_wide(x))
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + model.norm_eps)).to(x.dtype) * weight


def _attention(x: Tensor, w: dict[str, Tensor], name: str, model: ModelConfig, num_parts: int) -> Tensor:
    batch, length, hidden = x.shape
    size = hidden // model.num_heads

    def heads(y: Tensor, count: int) -> Tensor:
        return y.view(batch, length, count, size).transpose(1, 2)

    q = _rotate(heads(x @ w[name + "wq"].T, model.num_heads), model)
    k = _rotate(heads(x @ w[name + "wk"].T, model.num_kv_heads), model)
    v = heads(x @ w[name + "wv"].T, model.num_kv_heads)
    repeat = model.num_heads // model.num_kv_heads
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    wide = _wide(x)
    scores = q.to(wide) @ k.to(wide).transpose(-1, -2) / size**0.5
    mask = torch.full((length, length), float("-inf"), dtype=wide).triu(1)
    y = ((scores + mask).softmax(-1) @ v.to(wide)).to(x.dtype)
    return _product(y.transpose(1, 2).reshape(batch, length, hidden), w[name + "wo"], num_parts)


def _rotate(x: Tensor, model: ModelConfig) -> Tensor:
    size, length = x.shape[-1], x.shape[-2]
    frequency = model.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.complex(x[..., : size // 2].double(), x[..., size // 2 :].double()) * turn
    return torch.cat([pairs.real, pairs.imag], -1).to(x.dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
