"""Lossless verification: draw at every row what vLLM would draw there, then walk the tree.

Each row's token comes from the target's own sampler with the row's position, so what is emitted is
what the target would have drawn without speculation. The tree only decides how many draws of one
forward can be used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.config.model import PROCESSED_LOGPROBS_MODES
from vllm.v1.worker.gpu.input_batch import InputBatch, get_num_sampled_and_rejected
from vllm.v1.worker.gpu.metrics.logits import get_num_nans
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS

from vllm_dartree.engine.tree_state import TreeBatch, TreeState, Verdict
from vllm_dartree.tree import commit_plan, walk


class TreeRejectionSampler:
    """Takes the place of vLLM's rejection sampler in steps that verify drafts."""

    def __init__(self, sampler: Any, trees: TreeState) -> None:
        self.sampler = sampler
        self.trees = trees

    def __call__(
        self,
        logits: Tensor,
        input_batch: InputBatch,
        draft_logits: Tensor | None = None,
        invalid_drafts: Tensor | None = None,
    ) -> SamplerOutput:
        """logits: [num_logits, V]; the rows of the trees lead, one row per other request follows.

        Returns sampled_token_ids [R, D], of which the first num_sampled[r] are emitted; the others
        are -1 where no token was drawn.
        """
        batch = self.trees.batch
        assert batch is not None, "vLLM planned draft tokens for a step without trees"
        num_nans = get_num_nans(logits) if self.sampler.compute_nans else None
        num_logprobs = self.sampler.sampling_states.max_num_logprobs(input_batch.idx_mapping_np)

        self.trees.clock.mark("target")
        drawn, processed_logits = self._draw(logits, input_batch, batch, num_logprobs)
        verdict = accept(batch, drawn, self.trees.depth)
        self.trees.verdict = verdict
        self.trees.clock.mark("walk")

        tokens, num_sampled = _emitted(batch, verdict, drawn, input_batch.num_reqs)
        logprobs = None
        if num_logprobs != NO_LOGPROBS:
            if self.sampler.logprobs_mode in PROCESSED_LOGPROBS_MODES:
                logits = processed_logits
            logprobs = self._logprobs(logits, input_batch, verdict, drawn, num_logprobs)
        num_sampled, num_rejected = get_num_sampled_and_rejected(
            num_sampled,
            input_batch.seq_lens,
            input_batch.cu_num_logits,
            input_batch.idx_mapping,
            self.sampler.req_states.prefill_len.gpu,
        )
        return SamplerOutput(
            sampled_token_ids=tokens,
            logprobs_tensors=logprobs,
            num_nans=num_nans,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
            sampling_mask_tensors=None,
        )

    def _draw(
        self, logits: Tensor, input_batch: InputBatch, batch: TreeBatch, num_logprobs: int
    ) -> tuple[Tensor, Tensor]:
        """One token per row, [num_logits] int64, and the processed logits they come from."""
        positions = input_batch.positions[input_batch.logits_indices]
        positions[: batch.num_rows] = batch.positions
        return self.sampler.sample(
            logits,
            input_batch.expanded_idx_mapping,
            input_batch.idx_mapping,
            input_batch.idx_mapping_np,
            positions,
            input_batch.input_ids[input_batch.logits_indices],
            input_batch.expanded_local_pos,
            input_batch.seq_lens_cpu_upper_bound.numpy(),
            return_logprobs=num_logprobs != NO_LOGPROBS,
        )

    def _logprobs(
        self,
        logits: Tensor,
        input_batch: InputBatch,
        verdict: Verdict,
        drawn: Tensor,
        num_logprobs: int,
    ) -> Any:
        """vLLM reads the i-th emitted token's row at the request's first row + i: path order."""
        order = path_first(verdict, logits.shape[0])
        return compute_topk_scores(
            logits[order],
            num_logprobs,
            drawn[order],
            input_batch.cu_num_logits_np.tolist(),
            logits_mode=self.sampler.logprobs_mode in ("raw_logits", "processed_logits"),
        )


def accept(batch: TreeBatch, drawn: Tensor, max_depth: int) -> Verdict:
    """Walk every tree of the step with the tokens drawn at its rows ([num_logits] int64)."""
    result = walk(batch.tree, drawn[batch.rows], max_depth)
    plan = commit_plan(result)
    on_path = plan.source_rows >= 0
    roots = batch.rows[:, :1]
    return Verdict(
        walk=result,
        sources=torch.where(on_path, batch.rows.gather(1, plan.source_rows.clamp(min=0)), roots),
        targets=torch.where(on_path, roots + plan.dest_rows, roots),
        on_path=on_path,
    )


def path_first(verdict: Verdict, num_rows: int) -> Tensor:
    """[num_rows] int64: for each request the rows of its accepted path first, in path order.

    What stands after the path, and the rows of other requests, stay as they are.
    """
    order = torch.arange(num_rows, device=verdict.sources.device)
    order[verdict.targets] = verdict.sources
    return order


def _emitted(
    batch: TreeBatch, verdict: Verdict, drawn: Tensor, num_reqs: int
) -> tuple[Tensor, Tensor]:
    """Emitted tokens [R, D] int64 and how many of them count, [R] int32."""
    width = verdict.walk.tokens.shape[1]
    num_trees = batch.num_trees
    tokens = drawn.new_full((num_reqs, width), -1)
    tokens[:num_trees] = verdict.walk.tokens
    tokens[num_trees:, 0] = drawn[batch.num_rows :]
    num_sampled = torch.ones(num_reqs, dtype=torch.int32, device=drawn.device)
    num_sampled[:num_trees] = verdict.walk.num_emitted
    return tokens, num_sampled
