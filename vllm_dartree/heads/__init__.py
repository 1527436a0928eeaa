"""Correction heads in pure PyTorch."""

from vllm_dartree.heads.base import CorrectionHead
from vllm_dartree.heads.domino import DominoHead
from vllm_dartree.heads.markov import MARKOV_HEADS, GatedMarkovHead, MarkovHead, RnnMarkovHead
from vllm_dartree.heads.null import NullHead

__all__ = [
    "MARKOV_HEADS",
    "CorrectionHead",
    "DominoHead",
    "GatedMarkovHead",
    "MarkovHead",
    "NullHead",
    "RnnMarkovHead",
]
