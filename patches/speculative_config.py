"""``EngineArgs.create_speculative_config``: lets ``{"method": "dartree", ...}`` in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm_dartree.patches.ledger import Patch

TARGET = "vllm.engine.arg_utils:EngineArgs.create_speculative_config"


def _make(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_speculative_config(
        self: Any, target_model_config: Any, target_parallel_config: Any
    ) -> Any:
        user = _requested(self)
        if user is None:
            return original(self, target_model_config, target_parallel_config)
        from vllm_dartree.engine.activation import activate
        from vllm_dartree.engine.speculative_config import make_speculative_config

        activate()
        return make_speculative_config(user, target_model_config, target_parallel_config)

    return create_speculative_config


def _requested(engine_args: Any) -> dict[str, Any] | None:
    """The user's speculative config if it asks for dartree, in dictionary or flag form."""
    from vllm_dartree.options import METHOD

    user = dict(engine_args.speculative_config or {})
    user = {key.replace("-", "_"): value for key, value in user.items()}
    flags = {
        "method": engine_args.spec_method,
        "model": engine_args.spec_model,
        "num_speculative_tokens": engine_args.spec_tokens,
    }
    flags = {key: value for key, value in flags.items() if value is not None}
    if {**user, **flags}.get("method") != METHOD:
        return None
    if twice := sorted(user.keys() & flags.keys()):
        raise ValueError(f"{', '.join(twice)} given both as a flag and in --speculative-config")
    return user | flags


PATCH = Patch(
    target=TARGET,
    fingerprint="f64805340e5d",
    make=_make,
    why='accept method "dartree" and its options, refuse bad ones before anything is loaded',
    until="vLLM lets a plugin register a speculative method for Model Runner V2",
)


def refuse_with(reason: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What stands in on an unknown vLLM: every method works as before, dartree says why not."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
            method = (getattr(self, "speculative_config", None) or {}).get("method")
            if "dartree" in (method, getattr(self, "spec_method", None)):
                raise ValueError(f'method "dartree" cannot be used: {reason}')
            return original(self, *args, **kwargs)

        return create_speculative_config

    return make
