"""Prefix caching beside trees."""

from __future__ import annotations

from typing import Any

from tests.engine import oracles, watch
from tests.engine.engine import Engine
from tests.engine.prompts import SHARED
from tests.engine.scenarios.cache import difference, fresh_prefill

FIRST = SHARED[:70]
PREFIXES = {
    "one block": FIRST[:32],
    "one block and a token": FIRST[:33],
    "two blocks": FIRST[:64],
    "two blocks and a token": FIRST[:65],
}
NUM_TOKENS = 60


def hits(engine: Engine) -> list[dict[str, Any]]:
    """Requests that share beginnings, one after the other; stock vLLM runs them too."""
    assert engine.llm.reset_prefix_cache()
    report: list[dict[str, Any]] = []

    def ask(name: str, prompt: list[int]) -> list[int]:
        run = engine.generate([prompt], NUM_TOKENS, oracles.second, keep_prefixes=True)
        cached = run.outputs[0].num_cached_tokens
        report.append(
            {"name": name, "tokens": run.tokens[0], "hits": cached, "drafted": run.drafted}
        )
        return run.tokens[0]

    answer = ask("first", FIRST)
    continued = FIRST + answer[:50]
    engine.learn(continued, engine.known(FIRST)[50:])
    for name, prompt in [("continued", continued), *PREFIXES.items(), ("again", FIRST)]:
        ask(name, prompt)
    return report


def contents(engine: Engine) -> dict[str, Any]:
    """Cache of a request whose prompt was partly found, right after its prefill and at its end."""
    assert engine.llm.reset_prefix_cache()
    first = engine.generate([FIRST], NUM_TOKENS, oracles.zigzag)
    prompt = FIRST + first.tokens[0][:50]
    engine.learn(prompt, engine.known(FIRST)[50:])
    layers = watch.target_layers(engine) + watch.draft_layers(engine)
    engine.add("continued", prompt, 40)
    dumps = []
    num_hits = 0
    tokens: list[int] = []
    for outputs in engine.steps():
        if output := outputs.get("continued"):
            tokens, num_hits = list(output.outputs[0].token_ids), output.num_cached_tokens
        if engine.scheduler.running:
            dumps.append(watch.cached(engine, "continued", layers))
    fresh = fresh_prefill(engine, prompt + tokens, layers)
    worst = {name: max(difference(found[name], fresh[name]) for found in dumps) for name in layers}
    return {"hits": num_hits, "steps": len(dumps), "worst": worst}
