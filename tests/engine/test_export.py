"""transformers loads what is exported and computes the same logits; what it wrote is where a run can start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from db.run_config import RunConfig
from engine import export as export_module
from engine.checkpoint import manifest as manifest_module
from engine.checkpoint.folder import joined_records, new_partial, publish
from engine.checkpoint.pieces import staged
from engine.checkpoint.storage import write_share
from engine.errors import CheckpointError
from engine.export import export, main
from engine.hf_llama import HuggingFaceFolder
from engine.layout import layout
from engine.parameters import Parameter, parameters
from engine.shard import Shard
from tests.engine.checkpoint.states import a_plan, header, save, small_config
from tests.engine.reference import reference_logits
from tests.engine.world import run_world


def the_parameters(config: RunConfig) -> tuple[Parameter, ...]:
    """Tied embeddings have no parameter `head`."""
    return tuple(p for p in parameters(config.model) if not (config.model.tie_embeddings and p.name == "head"))


@pytest.fixture(autouse=True)
def _tied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        export_module,
        "parameters",
        lambda model: tuple(p for p in parameters(model) if not (model.tie_embeddings and p.name == "head")),
    )


def a_model(**model: Any) -> RunConfig:
    return small_config(model={"rope_theta": 5_000.0, "norm_eps": 1e-4} | model)


def trained(config: RunConfig, folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """A checkpoint with random weights, and the weights as the reference wants them."""
    generator = torch.Generator().manual_seed(5)
    every = the_parameters(config)
    weights = {p.name: torch.randn(p.shape, generator=generator) * 0.1 + (len(p.shape) == 1) for p in every}
    plan = a_plan(config, 2)
    spread = layout(plan, every, config.parallel.max_tp)
    partial = new_partial(folder, 5)
    writers = sorted(device for device, spans in spread.states.items() if spans)
    for device in writers:
        shard = Shard(spread, device, torch.float32, torch.float32)
        for span in shard.states["master"].spans:
            values = weights[every[span.parameter].name].flatten()[span.start : span.stop]
            shard.states["master"].view(span).copy_(values)
        write_share(staged(shard), partial, device)
    path = publish(partial, joined_records(partial, writers, **header(config, plan, 5)), 2)
    return path, weights | ({} if "head" in weights else {"head": weights["embedding"]})


def logits(folder: Path, tokens: Tensor, **options: Any) -> Tensor:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True, **options)
    with torch.no_grad():
        return model(tokens).logits


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 4), (8, 8), (4, 4)])
@pytest.mark.parametrize("max_file_bytes", [5_000_000_000, 30_000], ids=["one file", "several files"])
def test_transformers_computes_the_same_logits(
    tmp_path: Path, tied: bool, heads: int, kv_heads: int, max_file_bytes: int
) -> None:
    config = a_model(tie_embeddings=tied, num_heads=heads, num_kv_heads=kv_heads)
    path, weights = trained(config, tmp_path / "checkpoints")
    out = tmp_path / "out"
    export(path, config, out, max_file_bytes=max_file_bytes)
    num_files = len(list(out.glob("*.safetensors")))
    assert (num_files > 1) == (out / "model.safetensors.index.json").exists() == (max_file_bytes < 1_000_000)
    tokens = torch.randint(0, 256, (3, 16), generator=torch.Generator().manual_seed(1))
    expected = reference_logits(tokens, weights, config.model)
    given = logits(out, tokens)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)


def test_the_configuration_says_what_the_model_is(tmp_path: Path) -> None:
    from transformers import AutoConfig, GenerationConfig

    config = a_model()
    path, _ = trained(config, tmp_path)
    export(path, config, tmp_path / "out", dtype="bfloat16")
    read = AutoConfig.from_pretrained(tmp_path / "out", local_files_only=True)
    assert read.architectures == ["LlamaForCausalLM"]
    assert (read.hidden_size, read.intermediate_size, read.num_hidden_layers) == (32, 48, 6)
    assert (read.num_attention_heads, read.num_key_value_heads, read.head_dim) == (8, 4, 4)
    assert (read.rms_norm_eps, read.max_position_embeddings, read.vocab_size) == (1e-4, 16, 256)
    assert not read.tie_word_embeddings
    document = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (document["rope_theta"], document["torch_dtype"]) == (5_000.0, "bfloat16")
    GenerationConfig.from_pretrained(tmp_path / "out", local_files_only=True)


def test_the_tokenizer_goes_with_it(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import AutoTokenizer

    Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")).save(str(tmp_path / "tokenizer.json"))
    config = small_config(data={"tokenizer": str(tmp_path / "tokenizer.json")})
    path, _ = trained(config, tmp_path / "checkpoints")
    export(path, config, tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True).encode("b") == [1]


def test_what_was_exported_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    """Any range of any parameter, whatever the orientation of the stored matrix."""
    config = a_model()
    path, weights = trained(config, tmp_path)
    export(path, config, tmp_path / "out", max_file_bytes=30_000)
    source = HuggingFaceFolder(tmp_path / "out")
    source.check(config.model)
    for p in parameters(config.model):
        flat = weights[p.name].flatten()
        for start, stop in [(0, len(flat)), (5, 7), (len(flat) // 3, len(flat) - 1)]:
            assert torch.equal(source.read(p, start, stop), flat[start:stop])


def start(rank: int, config: RunConfig) -> list[str]:
    from engine.checkpoint.start import start as start_from

    shard = Shard(
        layout(a_plan(config, 7), parameters(config.model), config.parallel.max_tp), rank, torch.float32, torch.float32
    )
    chosen = start_from(shard, config, None)
    assert (chosen.step, shard.num_updates) == (0, 0)
    source = HuggingFaceFolder(Path(config.checkpoint.start_from))
    wrong = []
    for name in ("master", "weight", "exp_avg"):
        store = shard.tensors()[name]
        for span in store.spans:
            values = source.read(shard.layout.parameters[span.parameter], span.start, span.stop)
            if not torch.equal(store.view(span), torch.zeros_like(values) if name == "exp_avg" else values):
                wrong.append(f"{name} {span}")
    return wrong


def test_ranks_start_with_weights_that_transformers_saved(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = small_config(checkpoint={"start_from": str(tmp_path)}, cluster={"num_nodes": 1, "devices_per_node": 4})
    model = config.model
    LlamaForCausalLM(
        LlamaConfig(
            hidden_size=model.hidden_size,
            intermediate_size=model.ffn_size,
            num_attention_heads=model.num_heads,
            num_key_value_heads=model.num_kv_heads,
            num_hidden_layers=model.num_layers,
            vocab_size=model.vocab_size,
            rms_norm_eps=model.norm_eps,
        )
    ).save_pretrained(tmp_path)
    assert run_world(4, start, config) == [[]] * 4


def test_a_tied_folder_fills_a_head_of_its_own(tmp_path: Path) -> None:
    tied = a_model(tie_embeddings=True)
    path, weights = trained(tied, tmp_path)
    export(path, tied, tmp_path / "out")
    source = HuggingFaceFolder(tmp_path / "out")
    untied = a_model()
    source.check(untied.model)
    head = parameters(untied.model)[-1]
    assert torch.equal(source.read(head, 0, head.num_elements), weights["embedding"].flatten())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 64, "head_dim": 8}, "hidden_size: expected 32, given 64; head_dim: expected 4, given 8"),
        ({"model_type": "mistral"}, "model_type: expected llama, given mistral"),
        ({"attention_bias": True}, "attention_bias: expected False, given True"),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5_000.0}},
            "rope_type: expected default, given llama3",
        ),
        ({"rope_parameters": None, "rope_theta": 500_000.0}, "rope_theta: expected 5000.0, given 500000.0"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps: expected 0.0001, given 1e-05"),
    ],
)
def test_another_model_of_hugging_face_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    config = a_model()
    path, _ = trained(config, tmp_path)
    export(path, config, tmp_path / "out")
    file = tmp_path / "out" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match="is of another model") as caught:
        HuggingFaceFolder(tmp_path / "out").check(config.model)
    assert words in str(caught.value)


def command(tmp_path: Path, config: RunConfig, *options: str) -> int:
    text = "\n".join(
        f"[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in section.items())
        for name, section in config.model_dump(mode="json").items()
        if isinstance(section, dict)
    )
    (tmp_path / "run.toml").write_text(f'name = "{config.name}"\n{text}\n')
    return main(["--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"), *options])


def test_the_command_takes_the_newest_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config()
    save(config, a_plan(config, 1), tmp_path / "checkpoints", step=3, seed=1)
    assert command(tmp_path, config, "--checkpoint", str(tmp_path / "checkpoints")) == 0
    assert {"config.json", "generation_config.json", "model.safetensors"} == {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert capsys.readouterr().err == ""
    assert command(tmp_path, config, "--checkpoint", str(tmp_path / "checkpoints")) == 2
    assert "expected a new or empty folder" in capsys.readouterr().err


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config()
    path = save(config, a_plan(config, 1), tmp_path / "checkpoints", step=3, seed=1)
    cases = [
        (config, str(tmp_path / "none"), "expected a checkpoint"),
        (small_config(model={"ffn_size": 96}), str(path), "ffn_size: expected 96, given 48"),
        (small_config(data={"tokenizer": "/none.json"}), str(path), "data.tokenizer"),
    ]
    for given, source, words in cases:
        assert command(tmp_path, given, "--checkpoint", source) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
        assert not (tmp_path / "out").exists()
    victim = path / manifest_module.read_manifest(path).files[0].name
    victim.write_bytes(victim.read_bytes()[:-4])
    assert command(tmp_path, config, "--checkpoint", str(path)) == 2
    assert "is damaged" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
