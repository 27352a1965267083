"""The decoder's parameters in the form of Hugging Face's LLaMA: names, orientation, configuration, reading.

Both keep matrices as `[out, in]`, except where this project puts the tensor-parallel dimension first:
`wo` and `w_down` are stored `[in, out]`, the transpose of `o_proj` and `down_proj`. Both rotate halves
in RoPE, so query and key rows need no permutation.
Source: transformers, `models/llama` (configuration and module names).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from db.run_config import ModelConfig
from engine.errors import CheckpointError
from engine.parameters import Parameter

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
_ENDS = {"embedding": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
_IN_LAYER = {
    "attention_norm": "input_layernorm.weight",
    "wq": "self_attn.q_proj.weight",
    "wk": "self_attn.k_proj.weight",
    "wv": "self_attn.v_proj.weight",
    "wo": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "w_gate": "mlp.gate_proj.weight",
    "w_up": "mlp.up_proj.weight",
    "w_down": "mlp.down_proj.weight",
}
_TRANSPOSED = ("wo", "w_down")


def hf_name(parameter: Parameter) -> str:
    """The tensor's name in a LLaMA of Hugging Face."""
    if parameter.layer < 0:
        return _ENDS[parameter.name]
    return f"model.layers.{parameter.layer}.{_IN_LAYER[parameter.name.rpartition('.')[2]]}"


def is_transposed(parameter: Parameter) -> bool:
    """Whether Hugging Face stores the transpose."""
    return parameter.name.rpartition(".")[2] in _TRANSPOSED


def hf_shape(parameter: Parameter) -> tuple[int, ...]:
    """The tensor's shape in a LLaMA of Hugging Face."""
    return parameter.shape[::-1] if is_transposed(parameter) else parameter.shape


def hf_config(model: ModelConfig, dtype: str) -> dict[str, Any]:
    """The content of `config.json`.

    Args:
        dtype: of the exported weights, as torch names it (`float32`).
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "head_dim": model.hidden_size // model.num_heads,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": model.ffn_size,
        "max_position_embeddings": model.seq_len,
        "mlp_bias": False,
        "num_attention_heads": model.num_heads,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": model.num_kv_heads,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": {"rope_theta": model.rope_theta, "rope_type": "default"},
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": dtype,
        "use_cache": True,
        "vocab_size": model.vocab_size,
    }


class HuggingFaceFolder:
    """A LLaMA in a folder: `config.json` and safetensors files, with or without an index.

    Raises:
        CheckpointError: it is not one, or cannot be read (the constructor and every method).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._config = _read_json(path / CONFIG)
        self._files = _files_by_tensor(path)

    def check(self, model: ModelConfig) -> None:
        """The folder's model computes the same function as this one would.

        Raises:
            CheckpointError: names every difference, with expected and given.
        """
        wanted = hf_config(model, "")
        given = self._normal_config(wanted)
        names = (
            "model_type",
            "attention_bias",
            "mlp_bias",
            "hidden_act",
            "hidden_size",
            "head_dim",
            "intermediate_size",
            "num_attention_heads",
            "num_hidden_layers",
            "num_key_value_heads",
            "rms_norm_eps",
            "rope_theta",
            "rope_type",
            "vocab_size",
        )
        wanted["rope_type"] = "default"
        problems = [
            f"{name}: expected {wanted[name]}, given {given[name]}" for name in names if wanted[name] != given[name]
        ]
        if model.tie_embeddings and not given["tie_word_embeddings"]:
            problems.append("tie_word_embeddings: expected True, given False")
        if problems:
            raise CheckpointError(f"{self._path} is of another model: {'; '.join(problems)}")

    def read(self, parameter: Parameter, start: int, stop: int) -> Tensor:
        """Elements `[start, stop)` of the flattened parameter, reading only the rows (or columns) they are in.

        A head that the folder does not have, because it is tied, is its embedding.
        """
        name = hf_name(parameter)
        if name == _ENDS["head"] and name not in self._files and self._config.get("tie_word_embeddings"):
            name = _ENDS["embedding"]
        if name not in self._files:
            raise CheckpointError(f"{self._path} has no tensor {name}")
        width = parameter.num_elements // parameter.shape[0]
        first, last = start // width, -(-stop // width)
        try:
            with safe_open(self._path / self._files[name], framework="pt") as file:
                part = file.get_slice(name)
                if tuple(part.get_shape()) != hf_shape(parameter):
                    raise CheckpointError(
                        f"{self._path}: {name}: expected shape {hf_shape(parameter)}, given {tuple(part.get_shape())}"
                    )
                rows: Tensor = part[:, first:last].T if is_transposed(parameter) else part[first:last]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self._path / self._files[name]} is damaged: {error}") from error
        return rows.flatten()[start - first * width : stop - first * width]

    def _normal_config(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """The settings, with the defaults of LLaMA for absent ones and both ways to write RoPE's."""
        usual: dict[str, Any] = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-6}
        given = usual | self._config
        rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
        heads = given.get("num_attention_heads") or 1
        result = {name: given.get(name) for name in (*defaults, "rope_type")}
        result["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
        result["rope_theta"] = rope.get("rope_theta", given.get("rope_theta", 10_000.0))
        result["num_key_value_heads"] = given.get("num_key_value_heads") or heads
        result["head_dim"] = given.get("head_dim") or (given.get("hidden_size") or 0) // heads
        result["tie_word_embeddings"] = bool(given.get("tie_word_embeddings", False))
        return result


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: expected a JSON object, given {type(document).__name__}")
    return document


def _files_by_tensor(path: Path) -> dict[str, str]:
    if (path / INDEX).is_file():
        table = _read_json(path / INDEX).get("weight_map")
        if not isinstance(table, dict):
            raise CheckpointError(f"{path / INDEX} has no weight_map")
        for name in set(table.values()):
            if Path(name).name != name:
                raise CheckpointError(f"{path / INDEX}: expected names of files in the same folder, given {name!r}")
        return {str(key): str(value) for key, value in table.items()}
    files: dict[str, str] = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as opened:
                files |= dict.fromkeys(opened.keys(), file.name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} is damaged: {error}") from error
    if not files:
        raise CheckpointError(f"{path} has a {CONFIG} and no *.safetensors")
    return files
