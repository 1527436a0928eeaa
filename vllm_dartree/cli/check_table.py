"""The report of ``vllm-dartree check`` for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from vllm_dartree.cli.report import Report

_COLOURS = {"fits": "green", "applied": "green", "refused": "red"}


def print_report(report: Report) -> None:
    console = Console()
    console.print(_facts(report))
    if report.patches:
        console.print(_ledger(report))
    console.print(_seams(report))
    for problem in report.problems:
        console.print(f"[red]does not fit:[/red] {problem}", highlight=False)
    if not report.problems:
        console.print("[green]everything fits[/green]")


def _facts(report: Report) -> Table:
    table = Table(title="Installation", show_header=False, title_justify="left")
    for name, version in report.versions.items():
        if version is not None:
            table.add_row(name, version)
    table.add_row("platform", report.platform or "unknown")
    if report.path:
        table.add_row("path", report.path)
    table.add_row("entry point", report.entry_point or "[red]not visible[/red]")
    if cpu := report.cpu:
        table.add_row("cache layout", f"as expected ({cpu.attention_isa})")
        table.add_row("native kernels", f"{cpu.native_kernels}, {cpu.left_out} refused by name")
    if pair := report.pair:
        table.add_row("drafter", pair.drafter)
        if pair.target is not None:
            table.add_row("target", pair.target)
        if pair.target is not None or pair.reason:
            table.add_row("pair", "[green]fits[/green]" if pair.fits else "[red]no[/red]")
    return table


def _ledger(report: Report) -> Table:
    title = "Patches, put in place only for method dartree"
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("target", overflow="fold", ratio=3)
    table.add_column("state", no_wrap=True)
    table.add_column("why, and when it can go", ratio=3)
    for row in report.patches:
        fingerprint = row.expected
        if row.found != row.expected:
            fingerprint = f"expected {row.expected}\nfound {row.found}"
        colour = _COLOURS[row.state]
        table.add_row(
            row.target.replace(":", "\n"),
            f"[{colour}]{row.state}[/{colour}]\n{fingerprint}",
            f"{row.why}\n[dim]until {row.until}[/dim]",
        )
    return table


def _seams(report: Report) -> Table:
    table = Table(title="Seams in vLLM", show_header=False, title_justify="left")
    for need, seam in report.seams.items():
        table.add_row(need, seam)
    return table
