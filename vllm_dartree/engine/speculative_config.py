"""From the user's ``speculative_config`` to the one vLLM runs.

To vLLM a DARTree drafter is a DFlash drafter: the same auxiliary hidden states, KV-cache groups and
lookahead. Every checkpoint dialect is presented through one canonical ``config.json``; what is ours
travels in the `Payload`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vllm_dartree.engine.payload import KEY, Payload
from vllm_dartree.models import (
    DrafterSpec,
    TargetFacts,
    canonical_config,
    check_fits_target,
    read_drafter,
    register_models,
)
from vllm_dartree.options import (
    OPTION_KEYS,
    DartreeOptions,
    check_known,
    check_option_keys,
    parse_options,
)

# vLLM's keys that would change what is drafted or how it is accepted, and the values under which
# they change nothing.
_HARMLESS = {
    "draft_sample_method": (None, "greedy"),
    "rejection_sample_method": (None, "standard"),
    "enable_adaptive_verification": (None, False),
    "dspark_draft_topk": (None,),
    "use_local_argmax_reduction": (None, False),
    "use_heterogeneous_vocab": (None, False),
    "quantization": (None,),
    "kv_cache_dtype": (None, "auto"),
}


def make_speculative_config(
    user: Mapping[str, Any], target_model_config: Any, target_parallel_config: Any
) -> Any:
    """vLLM's ``SpeculativeConfig`` for ``{"method": "dartree", ...}``.

    Raises:
        ValueError: an option, the checkpoint or its fit with the target is wrong; the message has
            the value, what is allowed, and the fix.
    """
    from vllm.config import SpeculativeConfig
    from vllm.platforms import current_platform

    passed_on = _vllm_keys(user, SpeculativeConfig)
    directory = checkpoint_directory(user)
    spec = read_drafter(directory)
    check_fits_target(spec, _target_facts(target_model_config))
    options = parse_options(
        user,
        horizon=spec.horizon,
        draft_vocab_size=spec.draft_vocab_size,
        on_gpu=not current_platform.is_cpu(),
    )
    passed_on |= {
        "method": "dflash",
        "num_speculative_tokens": options.budget,
        # Context K/V of a DFlash drafter depends on its own position only, so a cached block is
        # complete and need not be dropped.
        "disable_eagle_block_drop": True,
        "target_model_config": target_model_config,
        "target_parallel_config": target_parallel_config,
    }
    config = _present(spec, target_model_config.max_model_len, passed_on)
    config.model = config.draft_model_config.model = str(user["model"])
    _attach(config, spec, options)
    return config


def checkpoint_directory(user: Mapping[str, Any]) -> Path:
    """The drafter's local directory; a Hugging Face repository is downloaded first.

    Raises:
        ValueError: no model was named, or it is neither a directory nor a repository.
    """
    model = user.get("model")
    if not model:
        raise ValueError(
            'speculative_config with method "dartree" needs "model": '
            "a directory or Hugging Face repository of a DFlash, Domino or DSpark drafter"
        )
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors", "mask_embedding.pt"]
        return Path(
            snapshot_download(str(model), revision=user.get("revision"), allow_patterns=patterns)
        )
    except Exception as error:
        raise ValueError(
            f"speculative_config model={model!r} is not a directory and could not be fetched "
            f"from the Hugging Face hub: {error}"
        ) from error


def _vllm_keys(user: Mapping[str, Any], config_class: type) -> dict[str, Any]:
    check_option_keys(user)
    valid = {field.name for field in fields(config_class)} | OPTION_KEYS
    passed_on = {}
    for key, value in user.items():
        if key in OPTION_KEYS:
            continue
        check_known("speculative_config key", key, valid)
        if key in _HARMLESS and value not in _HARMLESS[key]:
            allowed = ", ".join(repr(v) for v in _HARMLESS[key] if v is not None) or "unset"
            raise ValueError(
                f"speculative_config {key}={value!r} does not go with method 'dartree' "
                f"(allowed: {allowed}): trees are deterministic and accepted by matching draws; "
                f"remove {key}"
            )
        passed_on[key] = value
    return passed_on


def _target_facts(model_config: Any) -> TargetFacts:
    return TargetFacts(
        hidden_size=model_config.get_hidden_size(),
        vocab_size=model_config.get_vocab_size(),
        num_hidden_layers=model_config.get_total_num_hidden_layers(),
        max_model_len=model_config.max_model_len,
        name=model_config.model,
    )


def _present(spec: DrafterSpec, max_model_len: int, keys: dict[str, Any]) -> Any:
    """Build the config from a canonical ``config.json``; weights are not read here."""
    from vllm.config import SpeculativeConfig

    register_models()
    config_json = canonical_config(spec, max_model_len)
    with tempfile.TemporaryDirectory(prefix="dartree-") as directory:
        Path(directory, "config.json").write_text(json.dumps(config_json))
        return SpeculativeConfig(**{**keys, "model": directory})


def _attach(config: Any, spec: DrafterSpec, options: DartreeOptions) -> None:
    payload = Payload(options=options.to_json(), block_size=spec.block_size)
    setattr(config.draft_model_config.hf_config, KEY, payload)
