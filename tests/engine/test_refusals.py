"""What this version cannot do exactly is refused by name when the engine starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engine.checkpoints import write_all
from tests.engine.tiny_args import tiny_engine_args
from tests.engine_process import run_engine

pytest.importorskip("vllm")

from vllm_dartree.engine.cpu_attention import TreeCPUAttentionImpl
from vllm_dartree.engine.support import check_engine_supported, check_target_layers


def vllm_config(**changed: Any) -> SimpleNamespace:
    """Everything that is asked of a configuration, all of it supported unless changed.

    A key is ``part__attribute``.
    """
    parts: dict[str, Any] = {
        "parallel_config": {
            "pipeline_parallel_size": 1,
            "prefill_context_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "tensor_parallel_size": 1,
            "data_parallel_size": 1,
        },
        "model_config": {
            "architecture": "TinyForCausalLM",
            "is_hybrid": False,
            "is_attention_free": False,
            "use_mla": False,
            "is_encoder_decoder": False,
            "enable_prompt_embeds": False,
            "logits_processors": None,
            "dtype": torch.float32,
        },
        "cache_config": {"cache_dtype": "auto", "block_size": 32},
        "lora_config": None,
        "kv_transfer_config": None,
    }
    for key, value in changed.items():
        part, _, attribute = key.partition("__")
        if attribute:
            parts[part][attribute] = value
        else:
            parts[part] = value
    return SimpleNamespace(
        **{k: SimpleNamespace(**v) if isinstance(v, dict) else v for k, v in parts.items()}
    )


def test_what_is_supported_passes() -> None:
    check_engine_supported(vllm_config())


@pytest.mark.parametrize(
    "changed, named",
    [
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"parallel_config__tensor_parallel_size": 2}, "tensor_parallel_size=2"),
        ({"parallel_config__data_parallel_size": 3}, "data_parallel_size=3"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "context parallelism"),
        ({"model_config__is_hybrid": True}, "recurrent layers .* of TinyForCausalLM"),
        ({"model_config__is_attention_free": True}, "recurrent layers"),
        ({"model_config__use_mla": True}, "multi-head latent attention of TinyForCausalLM"),
        ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_config__enable_prompt_embeds": True}, "enable_prompt_embeds"),
        ({"model_config__logits_processors": ["mine"]}, "custom logits processors"),
        ({"cache_config__cache_dtype": "fp8_e4m3"}, "kv_cache_dtype='fp8_e4m3'"),
        ({"lora_config": object()}, "LoRA"),
        ({"kv_transfer_config": object()}, "KV transfer"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_B45_features_are_refused_by_name_and_with_a_fix(
    changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=rf"method 'dartree' does not support {named}.*: \w+"):
        check_engine_supported(vllm_config(**changed))


def _layer(**changed: Any) -> SimpleNamespace:
    impl = TreeCPUAttentionImpl.__new__(TreeCPUAttentionImpl)
    values = {
        "head_size": 32,
        "alibi_slopes": None,
        "sinks": None,
        "kv_sharing_target_layer_name": None,
        "attn_type": "decoder",
    }
    for name, value in (values | changed).items():
        setattr(impl, name, value)
    return SimpleNamespace(impl=impl)


def _check_layers(monkeypatch: pytest.MonkeyPatch, **layers: SimpleNamespace) -> None:
    monkeypatch.setattr("vllm.config.get_layers_from_vllm_config", lambda *_: layers)
    check_target_layers(vllm_config(), set(layers))


@pytest.mark.parametrize(
    "changed, kind",
    [
        ({"alibi_slopes": torch.ones(2)}, "ALiBi"),
        ({"sinks": torch.ones(2)}, "attention sinks"),
        ({"kv_sharing_target_layer_name": "first"}, "KV sharing between layers"),
        ({"attn_type": "encoder_decoder"}, "attention type 'encoder_decoder'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_B45_layers_are_refused_by_kind_and_name(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], kind: str
) -> None:
    message = rf"does not support {kind} \(layer odd\): .*without speculative_config"
    with pytest.raises(ValueError, match=message):
        _check_layers(monkeypatch, fine=_layer(), odd=_layer(**changed))


def test_B45_layers_of_another_backend_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="does not support layer ssm of kind SimpleNamespace"):
        _check_layers(monkeypatch, ssm=SimpleNamespace(impl=object()))


def test_plain_attention_layers_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    _check_layers(monkeypatch, a=_layer(), b=_layer(head_size=80))


def messages(target: str, drafter: str) -> dict[str, str]:
    """What `vllm serve` would say, for options given the way users give them."""
    from vllm_dartree import register

    register()
    said = {}
    for name, options in {
        "supported": {},
        "pipeline": {"pipeline_parallel_size": 2},
        "tensor": {"tensor_parallel_size": 2},
        "fp8": {"kv_cache_dtype": "fp8"},
        "lora": {"enable_lora": True},
        "processors": {"logits_processors": ["builtins:object"]},
    }.items():
        speculative = {"method": "dartree", "model": drafter}
        arguments = tiny_engine_args(target, speculative_config=speculative, **options)
        try:
            config = arguments.create_engine_config()
            said[name] = f"runs on V2: {config.use_v2_model_runner}"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def test_B45_command_line_options_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    directories = write_all(tmp_path, {"full", "tiny"})
    said = run_engine(messages, target=directories["full"], drafter=directories["tiny"])
    assert said.pop("supported") == "runs on V2: True"
    for name, words in {
        "pipeline": "pipeline_parallel_size=2",
        "tensor": "tensor_parallel_size=2",
        "fp8": "kv_cache_dtype='fp8",
        "lora": "LoRA",
        "processors": "logits processors",
    }.items():
        assert words in said[name], said[name]
        assert "Error" in said[name]
