"""The one scoring rule: s(child) = s(parent) + log q + beta, normalised over the candidates."""

from __future__ import annotations

from torch import Tensor

from vllm_dartree.tree.draft_tree import NEG_INF


def usable_logits(logits: Tensor) -> Tensor:
    """``logits`` with everything that is not finite turned into -inf: never a node."""
    return logits.nan_to_num(nan=NEG_INF, posinf=NEG_INF, neginf=NEG_INF)


def candidate_log_probs(logits: Tensor) -> Tensor:
    """log q over the last dimension, at most 0; -inf for unusable candidates, never NaN.

    The clamp at 0 keeps rounding from making a child beat its parent (Lemma 1).
    """
    log_q = usable_logits(logits).log_softmax(-1)
    # A row without a single usable candidate comes out of the softmax as NaN.
    return log_q.nan_to_num_(nan=NEG_INF, posinf=0.0, neginf=NEG_INF).clamp_(max=0.0)


def child_scores(logits: Tensor, parent_scores: Tensor, depth_bonus: float) -> Tensor:
    """[R, P, K] scores of all children: ``logits`` [R, P, K], ``parent_scores`` [R, P].

    Floating-point addition is monotone, so log q <= 0 and beta <= 0 give s(child) <= s(parent)
    exactly, also after rounding.

    >>> import torch
    >>> child_scores(torch.zeros(1, 1, 2), torch.tensor([[-1.0]]), -0.5)
    tensor([[[-2.1931, -2.1931]]])
    """
    return candidate_log_probs(logits) + (parent_scores + depth_bonus).unsqueeze(-1)
