"""What single requests may ask for."""

from __future__ import annotations

from typing import Any

from tests.engine import oracles
from tests.engine.engine import Engine
from tests.engine.prompts import LONG, MIXED
from tests.engine.request_options import CONSTRAINTS, REFUSED


def refused(engine: Engine, option: str) -> dict[str, Any]:
    """The option alone and beside a good request, which goes on; then the engine serves another."""
    from vllm.sampling_params import StructuredOutputsParams

    value = REFUSED[option]
    if option == "structured_outputs":
        value = StructuredOutputsParams(**value)
    report: dict[str, Any] = {"messages": [], "kinds": []}

    def ask(name: str) -> None:
        try:
            engine.add(name, MIXED[1], 20, **{option: value})
        except ValueError as error:
            report["messages"].append(str(error))
            report["kinds"].append(type(error).__name__)

    engine.oracle.shape = oracles.second
    drafted = engine.oracle.num_drafted
    ask("bad")
    engine.add("good", MIXED[0], 30)
    next(engine.steps())
    ask("bad2")
    tokens = engine.finish()
    report["good"] = tokens["good"] == engine.answer(MIXED[0], 30)
    report["others"] = sorted(set(tokens) - {"good"})
    again = engine.generate(MIXED[2:3], 30, oracles.second)
    report["alive"] = engine.wrong(MIXED[2:3], again) == []
    report["drafted"] = engine.oracle.num_drafted - drafted
    return report


def logprobs(engine: Engine) -> list[dict[str, Any]]:
    """Requests with and without logprobs in one batch, one prefilled in chunks; also on stock."""
    prompts = [*MIXED[:4], LONG[2]]
    counts = [None, 0, 1, 5, 5]
    params: list[dict[str, Any]] = [{"logprobs": count} for count in counts]
    params[3]["prompt_logprobs"] = 2
    run = engine.generate(prompts, 40, oracles.zigzag, params=params)
    return [
        {
            "tokens": tokens,
            "drafted": run.drafted,
            "rounds": run.rounds,
            "logprobs": _plain(output.outputs[0].logprobs),
            "prompt_logprobs": _plain(output.prompt_logprobs),
            "cumulative": output.outputs[0].cumulative_logprob,
        }
        for tokens, output in zip(run.tokens, run.outputs, strict=True)
    ]


def _plain(entries: Any) -> Any:
    """Per token {id: [logprob, rank]}, None where vLLM gives none."""
    if entries is None:
        return None
    return [
        entry and {str(token): [value.logprob, value.rank] for token, value in entry.items()}
        for entry in entries
    ]


def constrained(engine: Engine, name: str) -> list[dict[str, Any]]:
    """Requests whose constraint changes what is drawn; also on stock vLLM.

    An oracle has to know the constrained answers, so trees come in a second run.
    """
    report = []
    prompts = MIXED[:3]
    for params in CONSTRAINTS[name]:
        known = {tuple(p): engine.answers.pop(tuple(p), []) for p in prompts}
        run = engine.generate(prompts, 40, oracles.nothing, params=params)
        entry: dict[str, Any] = {"without_trees": run.tokens, "reasons": run.finish_reasons}
        if engine.oracle is not None:
            for prompt, tokens in zip(prompts, run.tokens, strict=True):
                engine.learn(prompt, tokens)
            run = engine.generate(prompts, 40, oracles.second, params=params)
            entry |= {"with_trees": run.tokens, "tree_reasons": run.finish_reasons}
            entry |= {"drafted": run.drafted, "rounds": run.rounds}
        engine.answers.update(known)
        report.append(entry)
    return report
