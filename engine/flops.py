"""Floating-point operations of the model: what MFU is made of. Pure arithmetic, nothing is measured.

Model FLOPs count what the mathematics needs: work that recomputation repeats, and the half of the
attention matrix that causality masks, are counted as the sources count them (not at all, and in full).
Source: Chowdhery et al. 2022 (PaLM), appendix B: 6 N + 12 L H Q T a token; N here are the parameters
that a matrix product uses, the head included and the embedding's look-up not, as in Narayanan et al.
2021 (Megatron-LM), section 5.1.
"""

from __future__ import annotations

import math

from db.run_config import ModelConfig, RunConfig
from engine.parameters import parameters

_TERA = 1e12
_KNOWN_GPUS = (
    ("H100 PCIe", 756 * _TERA),
    ("H100", 989 * _TERA),
    ("H200", 989 * _TERA),
    ("H800", 989 * _TERA),
    ("GH200", 989 * _TERA),
    ("B200", 2250 * _TERA),
    ("A100", 312 * _TERA),
    ("A800", 312 * _TERA),
    ("L40S", 362 * _TERA),
)
"""Dense bf16 tensor-core peaks by a part of the device's name; the first match counts.
Source: NVIDIA's data sheets of these products."""


def layer_flops_per_token(model: ModelConfig) -> float:
    """Forward and backward of one decoder layer, one token."""
    matrices = sum(
        parameter.num_elements for parameter in parameters(model) if parameter.layer == 0 and parameter.is_sliced
    )
    return 6.0 * matrices + 12.0 * model.hidden_size * model.seq_len


def model_flops_per_token(model: ModelConfig) -> float:
    """Forward and backward of all layers and the head, one token; tied weights make no difference."""
    return model.num_layers * layer_flops_per_token(model) + 6.0 * model.vocab_size * model.hidden_size


def peak_flops(config: RunConfig, gpu_name: str = "") -> float:
    """Operations per second of one device: given, or known by its name, or what `layer_s` means.

    An emulated device does one layer of one sequence in `layer_s`, so that is its peak. NaN for a GPU
    that is not known: give `device.peak_flops`.
    """
    if config.device.peak_flops:
        return config.device.peak_flops
    if config.device.backend == "emulated":
        return layer_flops_per_token(config.model) * config.model.seq_len / config.device.layer_s
    return next((peak for name, peak in _KNOWN_GPUS if name in gpu_name), math.nan)


def mfu(config: RunConfig, step_s: float, peak: float) -> float:
    """Model FLOPs utilisation of a step: of all the run's devices, those on standby included.

    Args:
        step_s: wall seconds of the step; peak: operations per second of one device.
    """
    done = model_flops_per_token(config.model) * config.train.global_batch * config.model.seq_len
    return done / (step_s * config.num_devices * peak)
