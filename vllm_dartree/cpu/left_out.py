"""The Triton kernels of Model Runner V2 that have no native version, and what needs them.

Left out on purpose: watermarks, context parallelism (with its `cp_utils`), Mamba and other
recurrent-state models, multimodal rotary positions, batch-sharded sampling (tensor parallelism),
vLLM's own speculators other than the DFlash chain's inputs, and the chain's rejection sampler,
which a tree sampler replaces. LoRA's kernels belong to LoRA, not to the runner.
"""

from typing import Any, NoReturn

_GPU = "vllm.v1.worker.gpu."
_MULTI_MODULE = f"{_GPU}spec_decode.multi_module_mtp.speculator."
_REJECTION = f"{_GPU}spec_decode.rejection_sampler_utils."

LEFT_OUT_KERNELS: dict[str, str] = {
    f"{_GPU}cp_utils._dcp_local_seq_lens_kernel": "decode context parallelism",
    f"{_GPU}mm.rope._prepare_rope_positions_kernel": "multimodal rotary positions (M-RoPE)",
    f"{_GPU}model_states.mamba_hybrid._fill_num_accepted_kernel": "Mamba models",
    f"{_GPU}model_states.mamba_hybrid._scatter_num_accepted_kernel": "Mamba models",
    f"{_GPU}model_states.mamba_hybrid.preprocess_mamba_align_fused_kernel": "Mamba models",
    f"{_GPU}model_states.recoverssm._postprocess_recoverssm_align_kernel": "Mamba models",
    f"{_GPU}sample.batch_shard._build_shard_plan_kernel": "batch-sharded sampling",
    f"{_GPU}sample.batch_shard._pack_logprobs_kernel": "batch-sharded sampling",
    f"{_GPU}sample.batch_shard._pack_sampler_output_kernel": "batch-sharded sampling",
    f"{_GPU}sample.batch_shard._unpack_gathered_output_kernel": "batch-sharded sampling",
    f"{_GPU}sample.batch_shard._unpack_logprobs_kernel": "batch-sharded sampling",
    f"{_GPU}sample.watermark._philox_gumbel_kernel": "watermarks",
    f"{_GPU}sample.watermark._repeated_context_mask_kernel": "watermarks",
    f"{_GPU}spec_decode.acceptance_estimator._accumulate_kernel": "adaptive verification",
    f"{_GPU}spec_decode.acceptance_estimator._local_max_sumexp_kernel": "adaptive verification",
    f"{_GPU}spec_decode.acceptance_estimator._predict_kernel": "adaptive verification",
    f"{_GPU}spec_decode.acceptance_estimator._refit_kernel": "adaptive verification",
    f"{_GPU}spec_decode.dflash2.speculator._cache_draft_logits_kernel": "the dflash2 speculator",
    f"{_GPU}spec_decode.dflash2.speculator._selector_walk_kernel": "the dflash2 speculator",
    f"{_MULTI_MODULE}_cache_inputs_kernel": "the multi-module MTP speculator",
    f"{_MULTI_MODULE}_pad_trailing_draft_slots_kernel": "the multi-module MTP speculator",
    f"{_MULTI_MODULE}_prepare_input_buffers_kernel": "the multi-module MTP speculator",
    f"{_MULTI_MODULE}_prepare_input_hidden_states_and_embeddings_kernel": (
        "the multi-module MTP speculator"
    ),
    f"{_MULTI_MODULE}_shift_input_embeds_kernel": "the multi-module MTP speculator",
    f"{_MULTI_MODULE}_shift_input_ids_kernel": "the multi-module MTP speculator",
    f"{_GPU}spec_decode.ngram.speculator._ngram_finalize_kernel": "the ngram speculator",
    f"{_GPU}spec_decode.ngram.speculator._ngram_scan_kernel": "the ngram speculator",
    f"{_REJECTION}_compute_cumulative_log_p_kernel": "vLLM's chain rejection sampler",
    f"{_REJECTION}_compute_local_logits_stats_kernel": "vLLM's chain rejection sampler",
    f"{_REJECTION}_compute_local_residual_mass_kernel": "vLLM's chain rejection sampler",
    f"{_REJECTION}_insert_resampled_kernel": "vLLM's chain rejection sampler",
    f"{_REJECTION}_rejection_kernel": "vLLM's chain rejection sampler",
    f"{_REJECTION}_resample_kernel": "vLLM's chain rejection sampler",
    f"{_GPU}spec_decode.standalone_ar.speculator._prepare_prefill_inputs_kernel": (
        "autoregressive speculators"
    ),
    f"{_GPU}spec_decode.target_dependent_ar.speculator._prepare_decode_inputs_kernel": (
        "autoregressive speculators"
    ),
    f"{_GPU}spec_decode.target_dependent_ar.speculator._prepare_prefill_inputs_kernel": (
        "autoregressive speculators"
    ),
    f"{_GPU}spec_decode.target_dependent_ar.speculator._update_draft_inputs_kernel": (
        "autoregressive speculators"
    ),
}
"""Dotted name of a Triton kernel -> the feature that launches it."""


def missing_kernels() -> dict[str, str]:
    """Triton kernels of Model Runner V2 without a native version: dotted name -> who needs it."""
    return dict(LEFT_OUT_KERNELS)


class MissingKernel:
    """Takes the place of a kernel that has no native version; a launch says which and for what."""

    def __init__(self, name: str, feature: str) -> None:
        self._message = (
            f"{feature} needs the Triton kernel {name}, which has no native version for a CPU "
            "without Triton (vllm_dartree.cpu.missing_kernels() lists all such kernels)"
        )

    def __getitem__(self, grid: Any) -> NoReturn:
        raise NotImplementedError(self._message)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(self._message)
