"""Whether a drafter and a target go together, judged by what an engine start would do."""

from __future__ import annotations

from typing import Any

from vllm_dartree.cli.report import PairReport
from vllm_dartree.options import METHOD


def check_pair(model: str | None, user: dict[str, Any]) -> PairReport:
    """Read the drafter's headers and, with `model`, build vLLM's configuration for the pair.

    No weights are loaded. The process is patched as an engine's would be.
    """
    drafter = str(user.get("model"))
    if user.get("method") != METHOD:
        reason = f'--speculative-config method is {user.get("method")!r}, expected "{METHOD}"'
        return PairReport(drafter, model, reason)
    try:
        return _read_pair(model, user)
    except (ValueError, OSError) as error:  # pydantic's errors are ValueErrors
        return PairReport(drafter, model, str(error))


def _read_pair(model: str | None, user: dict[str, Any]) -> PairReport:
    from vllm_dartree.engine.speculative_config import checkpoint_directory
    from vllm_dartree.models import read_drafter

    if model is None:
        spec = read_drafter(checkpoint_directory(user))
        return PairReport(f"{spec.family}, head {spec.head}, horizon {spec.horizon}", None)
    from vllm.engine.arg_utils import EngineArgs

    from vllm_dartree import register
    from vllm_dartree.engine.payload import payload_of
    from vllm_dartree.models import spec_from_hf_config

    register()
    config = EngineArgs(model=model, speculative_config=user).create_engine_config()
    speculative = config.speculative_config
    payload = payload_of(speculative)
    assert speculative is not None and payload is not None
    spec = spec_from_hf_config(speculative.draft_model_config.hf_config)
    options = payload.options
    return PairReport(
        f"{spec.family}, head {spec.head}, horizon {spec.horizon}; builder {options.builder}, "
        f"budget {options.budget}",
        f"{config.model_config.architecture}, {spec.hidden_size} wide",
    )
