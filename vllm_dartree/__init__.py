"""DARTree draft trees for a stock vLLM."""

from __future__ import annotations

import logging

__version__ = "0.1.0"

logger = logging.getLogger("vllm.dartree")


def register() -> None:
    """Entry point ``vllm.general_plugins``: vLLM calls it in every process it starts.

    Only the function that reads ``speculative_config`` is wrapped here; everything else waits for a
    configuration with ``method: "dartree"`` (`vllm_dartree.engine.payload`). On a vLLM that does
    not fit, asking for dartree is refused with the reason and everything else works as before.
    """
    from vllm_dartree.patches import speculative_config
    from vllm_dartree.patches.ledger import Patch, PatchError, apply_all, fingerprint_of

    try:
        apply_all([speculative_config.PATCH])
    except PatchError as error:
        logger.warning("vllm-dartree is inactive: %s", error)
        from vllm.engine.arg_utils import EngineArgs

        if _refusal:
            return
        stand_in = Patch(
            target=speculative_config.TARGET,
            fingerprint=fingerprint_of(EngineArgs.create_speculative_config),
            make=speculative_config.refuse_with(str(error)),
            why="say why dartree cannot be used here",
            until="the installed vLLM is a supported one",
        )
        stand_in.apply()
        _refusal.append(stand_in)


_refusal: list[object] = []
