"""What made an exported model, kept in its metadata under ``graphfix.*``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onnx

from graphfix.explain import EXPORT_PREFIX
from graphfix.report import Report
from graphfix.report.console import confirmation


def record(model: onnx.ModelProto, report: Report, route: str, options: Mapping[str, Any]) -> None:
    """Write versions, options, rewrites and the confirmation into the model's metadata_props."""
    entries = {f"version.{name}": version for name, version in report.versions.items() if name != "graphfix"}
    entries |= {
        "version": report.versions.get("graphfix", ""),
        "route": route,
        "opset": str(report.opset_after),
        "options": json.dumps({k: v for k, v in options.items() if v is not None}, sort_keys=True, default=str),
        "rewrites": json.dumps([[r.code, r.operator, r.output, r.lowering] for r in report.replacements]),
        "left": json.dumps([[kept.code, kept.operator, kept.output, kept.reason] for kept in report.left]),
        "confirmation": confirmation(report.verification),
    }
    kept = [p for p in model.metadata_props if not p.key.startswith(EXPORT_PREFIX)]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    for key in sorted(entries):
        model.metadata_props.add(key=EXPORT_PREFIX + key, value=entries[key])
