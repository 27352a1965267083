"""Model FLOPs against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from db.run_config import ModelConfig, RunConfig
from engine.flops import layer_flops_per_token, mfu, model_flops_per_token, peak_flops

LLAMA_7B = ModelConfig(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, ffn_size=11008, vocab_size=32000, seq_len=2048
)


def test_llama_7b_by_hand() -> None:
    attention, ffn, head = 4 * 4096**2, 3 * 4096 * 11008, 32000 * 4096
    assert layer_flops_per_token(LLAMA_7B) == 6 * (attention + ffn) + 12 * 4096 * 2048
    expected = 6 * (32 * (attention + ffn) + head) + 12 * 32 * 4096 * 2048
    assert model_flops_per_token(LLAMA_7B) == expected
    assert expected == pytest.approx(6 * 6.6e9 + 3.2e9, rel=0.01)


def test_grouped_queries_need_less_and_tied_weights_the_same() -> None:
    grouped = LLAMA_7B.model_copy(update={"num_kv_heads": 8})
    saved = 6 * 2 * (4096 - 1024) * 4096
    assert layer_flops_per_token(LLAMA_7B) - layer_flops_per_token(grouped) == saved
    tied = LLAMA_7B.model_copy(update={"tie_embeddings": True})
    assert model_flops_per_token(tied) == model_flops_per_token(LLAMA_7B)


def config_of(**device: object) -> RunConfig:
    return RunConfig.model_validate({"name": "t", "device": device})


def test_an_emulated_device_that_only_computes_layers_reaches_its_peak() -> None:
    config = config_of(layer_s=0.04)
    peak = peak_flops(config)
    sequence = layer_flops_per_token(config.model) * config.model.seq_len
    assert peak == sequence / 0.04
    layers_s = 0.04 * config.model.num_layers * config.train.global_batch / config.num_devices
    head = model_flops_per_token(config.model) / (config.model.num_layers * layer_flops_per_token(config.model))
    assert mfu(config, layers_s, peak) == pytest.approx(head)
    assert mfu(config, 4 * layers_s, peak) == pytest.approx(head / 4)


@pytest.mark.parametrize(
    ("device", "name", "expected"),
    [
        ({"peak_flops": 5e12}, "", 5e12),
        ({"peak_flops": 5e12, "backend": "cuda"}, "NVIDIA H200", 5e12),  # what a person says counts
        ({"backend": "cuda"}, "NVIDIA H200", 989e12),
        ({"backend": "cuda"}, "NVIDIA H100 80GB HBM3", 989e12),
        ({"backend": "cuda"}, "NVIDIA H100 PCIe", 756e12),
        ({"backend": "cuda"}, "NVIDIA A100-SXM4-80GB", 312e12),
    ],
)
def test_peaks(device: dict[str, object], name: str, expected: float) -> None:
    assert peak_flops(config_of(**device), name) == expected


def test_an_unknown_gpu_has_no_utilisation() -> None:
    config = config_of(backend="cuda")
    peak = peak_flops(config, "Unheard-of 9000")
    assert math.isnan(peak)
    assert math.isnan(mfu(config, 1.0, peak))
