"""Step 3: how many tokens a round yields, by matching the target's own held-out answers.

A round drafts the greedy chain after an anchor; the drafts that equal the target's greedy text are
accepted and one bonus token follows. Nothing is decoded, so this is exact and cheap.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data import Answer, Target, load_answers
from demo_target import cache_root, ensure_target
from drafter import Drafter, DrafterConfig
from prompts import EVALUATION_KINDS
from safetensors.torch import load_file


@torch.inference_mode()
def accepted_lengths(drafter: Drafter, target: Target, answer: Answer) -> Tensor:
    """Accepted drafts [A], int64, of a round at every anchor of the answer but its last token.

    The first anchor is the first answer token: the prefill pass produced it.
    """
    token_ids = torch.tensor([answer.token_ids])
    embedding = target.embedding.float()
    length = token_ids.shape[1]
    anchors = torch.arange(len(answer.prompt_ids), length - 1)
    features = target.features(token_ids).float()
    hidden = drafter.block_hidden(features, token_ids, anchors[None], embedding)[0]
    accepted = torch.zeros(len(anchors), dtype=torch.long)
    # Rounds still matching; the state has consumed the anchor and all accepted drafts.
    alive = torch.arange(len(anchors))
    states = torch.zeros(len(anchors), drafter.config.gru_hidden_dim)
    last = token_ids[0, anchors]
    gru = drafter.prefix_gru
    for slot in range(drafter.config.block_size):
        states = torch.gru_cell(
            F.embedding(last, embedding), states, gru.weight_ih_l0, gru.weight_hh_l0
        )
        position = anchors[alive] + 1 + slot
        inside = position < length
        alive, states, position = alive[inside], states[inside], position[inside]
        slot_hidden = hidden[alive, slot]
        logits = slot_hidden @ embedding.T
        if slot > 0:  # pure_draft_prefix_len = 1: the first draft keeps its base logits
            bottleneck = drafter.correction_bottleneck(slot_hidden, states)
            logits += bottleneck @ drafter.correction_rows.T
        last = logits.argmax(-1)
        match = last == token_ids[0, position]
        alive, states, last = alive[match], states[match], last[match]
        accepted[alive] += 1
    return accepted


def count_rounds(accepted: Tensor) -> tuple[int, int]:
    """Tokens and rounds of decoding that starts at the first anchor.

    >>> count_rounds(torch.tensor([2, 0, 0, 1, 0]))  # emits 3, then 2 tokens
    (5, 2)
    """
    anchor = rounds = 0
    while anchor < len(accepted):
        anchor += int(accepted[anchor]) + 1
        rounds += 1
    # The last round's bonus token may lie behind the end of the recorded answer.
    return min(anchor, len(accepted)), rounds


def acceptance(
    drafter: Drafter, target: Target, answers: list[Answer]
) -> dict[str, tuple[int, int]]:
    """Tokens and rounds of the greedy chain per prompt kind."""
    totals: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for answer in answers:
        tokens, rounds = count_rounds(accepted_lengths(drafter, target, answer))
        before = totals[answer.kind]
        totals[answer.kind] = (before[0] + tokens, before[1] + rounds)
    return dict(totals)


def pooled(totals: dict[str, tuple[int, int]], trained: bool = True) -> float:
    """Tokens per round over all prompts of the trained kinds, or of the never trained ones."""
    chosen = [t for kind, t in totals.items() if (kind not in EVALUATION_KINDS) == trained]
    return sum(tokens for tokens, _ in chosen) / max(1, sum(rounds for _, rounds in chosen))


def load_drafter(directory: Path) -> Drafter:
    """An exported drafter in float32."""
    config = json.loads((directory / "config.json").read_text())
    special = config["dflash_config"]
    drafter = Drafter(
        DrafterConfig(
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            intermediate_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
            block_size=config["block_size"],
            target_layer_ids=tuple(special["target_layer_ids"]),
            mask_token_id=special["mask_token_id"],
            gru_hidden_dim=special["gru_hidden_dim"],
            emb_dim=special["emb_dim"],
            rope_theta=config["rope_theta"],
            rms_norm_eps=config["rms_norm_eps"],
        )
    )
    weights = load_file(directory / "model.safetensors")
    drafter.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return drafter.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    shipped = Path(__file__).resolve().parents[1] / "drafters" / "smollm2-135m-domino"
    parser.add_argument("--drafter", type=Path, default=shipped)
    parser.add_argument("--run", type=Path, default=cache_root() / "train_drafter")
    args = parser.parse_args()
    drafter = load_drafter(args.drafter)
    target = Target(ensure_target(), drafter.config.target_layer_ids)
    totals = acceptance(drafter, target, load_answers(args.run / "held_out.jsonl"))
    for kind, (tokens, rounds) in sorted(totals.items()):
        print(f"{kind:24} {tokens / rounds:5.2f} tokens per round ({rounds} rounds)")
    print(f"{'all trained kinds':24} {pooled(totals):5.2f}")
    print(f"{'all other kinds':24} {pooled(totals, trained=False):5.2f}")


if __name__ == "__main__":
    main()
