"""Domino's causal correction: a GRU over the path (2605.29707)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vllm_dartree.heads.base import CorrectionHead, add_correction, base_scores

if TYPE_CHECKING:
    from vllm_dartree.tree.block import DraftBlock


class DominoHead(CorrectionHead):
    """logits = U_j + W2 SiLU(W1 [z_j ; s_j]), s the GRU state after the anchor and the path.

    The first ``pure_draft_prefix_len`` depths keep their base logits; the GRU consumes their
    tokens all the same. The GRU reads the *target's* embeddings: ``bind_embedding`` before use.
    Parameters carry the checkpoint's names: ``prefix_gru.weight_{ih,hh}_l0``, ``embed_proj.0``
    (W1, hidden columns first), ``embed_proj.2`` (W2, one row per draft id). S = GRU width.
    """

    def __init__(
        self,
        hidden_size: int,
        gru_hidden_dim: int,
        emb_dim: int,
        draft_vocab_size: int,
        *,
        pure_draft_prefix_len: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.gru_hidden_dim = gru_hidden_dim
        self.pure_draft_prefix_len = pure_draft_prefix_len
        self.prefix_gru = nn.GRU(
            hidden_size, gru_hidden_dim, bias=False, batch_first=True, dtype=dtype, device=device
        )
        self.embed_proj = nn.Sequential(
            nn.Linear(
                hidden_size + gru_hidden_dim, emb_dim, bias=False, dtype=dtype, device=device
            ),
            nn.SiLU(),
            nn.Linear(emb_dim, draft_vocab_size, bias=False, dtype=dtype, device=device),
        )
        self._embed: Callable[[Tensor], Tensor] | None = None
        self._input_gates: Tensor | None = None

    def bind_embedding(
        self, embedding: Tensor | Callable[[Tensor], Tensor], tabulate: bool = False
    ) -> None:
        """Give the head the target's embedding matrix E [V, H], or a function ids -> rows.

        Rows are used raw, unscaled; a tensor is kept by reference, neither copied nor saved.
        ``tabulate`` (tensors only, after the weights are loaded) also keeps the GRU's input gates
        E W_ih^T [V, 3G]: a row gather then replaces two thirds of the GRU's arithmetic.
        """
        self._input_gates = None
        if not isinstance(embedding, Tensor):
            assert not tabulate, "only an embedding tensor can be tabulated"
            self._embed = embedding
            return
        assert embedding.shape[1] == self.hidden_size, (
            f"embedding of width {embedding.shape[1]} for a head of width {self.hidden_size}"
        )
        self._embed = partial(F.embedding, weight=embedding.detach())
        if tabulate:
            weight_ih = cast(Tensor, self.prefix_gru.weight_ih_l0).detach()
            self._input_gates = F.linear(embedding.detach().to(weight_ih.dtype), weight_ih)

    def root_state(self, block: DraftBlock) -> Tensor:
        weight_hh = cast(Tensor, self.prefix_gru.weight_hh_l0)
        zero = weight_hh.new_zeros((block.num_requests, 1, self.gru_hidden_dim))
        return self._gru_step(block.anchors.unsqueeze(1), zero)

    def score(self, depth: int, block: DraftBlock, state: Tensor) -> Tensor:
        if depth <= self.pure_draft_prefix_len:
            return base_scores(depth, block, state)
        first, last = (cast(nn.Linear, self.embed_proj[layer]).weight for layer in (0, 2))
        # W1 [z ; s] = W_z z + W_s s: the first part is the same for all prefixes of this depth.
        from_hidden = F.linear(block.hidden_at(depth).to(first.dtype), first[:, : self.hidden_size])
        from_state = F.linear(state, first[:, self.hidden_size :])
        features = F.silu(from_state + from_hidden.unsqueeze(1))
        return add_correction(depth, block, features, last)

    def advance(self, depth: int, block: DraftBlock, state: Tensor, tokens: Tensor) -> Tensor:
        return self._gru_step(tokens, state)

    def _gru_step(self, tokens: Tensor, state: Tensor) -> Tensor:
        """The states [R, P, G] after ``tokens`` [R, P]; gates r, z, n as in ``torch.nn.GRU``."""
        if self._embed is None:
            raise RuntimeError("DominoHead has no embedding: call bind_embedding first")
        weight_hh = cast(Tensor, self.prefix_gru.weight_hh_l0)
        if self._input_gates is not None:
            return _gru_cell(F.embedding(tokens, self._input_gates), weight_hh, state)
        weight_ih = cast(Tensor, self.prefix_gru.weight_ih_l0)
        inputs = self._embed(tokens.flatten()).to(weight_ih.dtype)
        stepped = torch.gru_cell(inputs, state.flatten(0, 1), weight_ih, weight_hh)
        return stepped.unflatten(0, tokens.shape)


def _gru_cell(input_gates: Tensor, weight_hh: Tensor, state: Tensor) -> Tensor:
    """``torch.gru_cell`` for input gates [..., 3G] that are already known."""
    width = state.shape[-1]
    state_gates = F.linear(state, weight_hh)
    reset, update = (
        torch.sigmoid(input_gates[..., : 2 * width] + state_gates[..., : 2 * width])
    ).chunk(2, dim=-1)
    candidate = torch.addcmul(
        input_gates[..., 2 * width :], reset, state_gates[..., 2 * width :]
    ).tanh()
    return torch.lerp(candidate, state, update)
