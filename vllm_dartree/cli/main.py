"""The command ``vllm-dartree``. vLLM is imported inside the commands: ``--help`` stays fast."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="vllm-dartree",
    help="DARTree draft trees for a stock vLLM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Everything after "serve" is vLLM's, "--help" included.
_ALL_ARGUMENTS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


@app.command()
def check(
    model: Annotated[
        str | None, typer.Option(help="Target model: a directory or repository.")
    ] = None,
    speculative_config: Annotated[
        str | None, typer.Option(help="As for `vllm serve`, JSON; checked against the target.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Say whether this installation fits: versions, patches, CPU kernels, a drafter's target.

    The exit code is 1 when something does not fit, with the reason.
    """
    # The report alone belongs on standard output.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm_dartree.cli.check import collect
    from vllm_dartree.cli.check_pair import check_pair

    user = _speculative_config(speculative_config, model)
    report = collect()
    if user is not None and not report.problems:
        report.add_pair(check_pair(model, user))
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        from vllm_dartree.cli.check_table import print_report

        print_report(report)
    raise typer.Exit(1 if report.problems else 0)


@app.command(context_settings=_ALL_ARGUMENTS, add_help_option=False)
def serve(context: typer.Context) -> None:
    """Start vLLM's server; takes exactly the arguments of `vllm serve`."""
    from vllm_dartree.cli.serve import run_vllm

    run_vllm("serve", context.args)


def _speculative_config(text: str | None, model: str | None) -> dict[str, Any] | None:
    if text is None:
        if model is not None:
            raise typer.BadParameter("--model needs --speculative-config as well")
        return None
    try:
        user = json.loads(text)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"--speculative-config is not JSON: {error}") from error
    if not isinstance(user, dict):
        raise typer.BadParameter(f"--speculative-config {text!r}: expected a JSON object")
    return user


def main() -> None:
    app()
