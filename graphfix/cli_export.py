"""The command ``graphfix export``: a PyTorch model to ONNX, losslessly, checked against PyTorch."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from graphfix.cli import NamedRange, Whole, _Run, once, outcome_options, tolerance_options
from graphfix.errors import GraphfixError, InputError, UsageError

if TYPE_CHECKING:
    from graphfix.report import Report

EPILOG = """\b
Examples:
  graphfix export model.pt2 model.onnx              a saved torch.export.ExportedProgram
  graphfix export mypackage.models:make model.onnx  make() returns (module, args) or (module, args, options)
  graphfix explain model.onnx                       what made it

\b
The options that a factory may return are those of graphfix.export: kwargs, dynamic_shapes, input_names,
output_names, ...

\b
Exit codes:
  0  written, and confirmed unless it was not checked
  1  not confirmed, or it cannot be exported; nothing written
  2  bad usage, or an input or output that cannot be read or written
  3  as 0, but nodes remain that were asked to go, or that the target is known to refuse or to run wrongly
"""
ROUTES = ("auto", "torch.export", "torchscript")


@click.command(
    "graphfix export",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("source", metavar="MODEL.pt2|MODULE:FACTORY")
@click.argument("output", metavar="OUT")
@click.option(
    "--opset",
    type=click.IntRange(min=7),
    metavar="N",
    help="Opset of the result (default: 18, or what --target takes).",
)
@click.option(
    "--route",
    type=click.Choice(ROUTES),
    default="auto",
    show_default=True,
    help="How the module is captured; auto tries torch.export, then TorchScript.",
)
@click.option(
    "--input-range",
    "input_ranges",
    type=NamedRange(),
    multiple=True,
    metavar="NAME:LO:HI",
    help="Check with values from LO to HI, both included, as in tokens:0:29999. May be repeated.",
)
@click.option("--inputs", metavar="FILE.npz", help="Check with these inputs: arrays <input> or <set>/<input>.")
@click.option("--seed", type=Whole(), default=0, metavar="N", help="Check with other random values.")
@tolerance_options
@click.option(
    "--verify",
    type=click.Choice(["all", "rewrites", "model", "none"]),
    default="all",
    show_default=True,
    help="How to confirm the result: each rewrite alone, the whole model against PyTorch, both, or not at all.",
)
@outcome_options
def export_command(**options: Any) -> int:
    """Export a PyTorch model to the ONNX file OUT, keep every index write, and confirm the result against PyTorch.

    The model is a saved ExportedProgram (MODEL.pt2), or what FACTORY() of a Python module returns. Both run code: use
    only files that you trust.
    """
    if options["quiet"] and options["verbose"]:
        raise click.UsageError("--quiet and --verbose exclude each other")
    options["input_ranges"] = once("--input-range", options["input_ranges"])
    options["simplify"] = not options.pop("no_simplify")
    return _Export(**options).run()


class _Export(_Run):
    """One `graphfix export`."""

    def _fix(self) -> tuple[Report, bool]:
        from graphfix.api import export, require_torch
        from graphfix.pipeline import Event

        with self.console.progress() as show:

            def progress(event: Event) -> None:
                self.interruption.check()
                show(event)

            require_torch()
            progress(Event("load", f"reading {self.source}"))
            module, args, more = _load(self.source)
            progress(Event("load", f"read {self.source}", 1, 1))
            unknown = sorted(set(more) - set(inspect.signature(export).parameters) | ({"output", "args"} & set(more)))
            if unknown:
                raise UsageError(f"{self.source} returns the option {unknown[0]!r}, which graphfix.export has not")
            result = export(module, args, self.output, **{**self.options, **more}, progress=progress)
        return result.report, result.ok


def _load(source: str) -> tuple[Any, Any, dict[str, Any]]:
    """The model, its arguments and more options of graphfix.export."""
    if os.path.exists(source) or source.endswith(".pt2"):
        return _load_program(source), (), {}
    module_name, colon, name = source.partition(":")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise InputError(f"{source}: no such file, and not of the form package.module:factory")
    sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), name, None)
    except Exception as error:
        raise InputError(f"{source}: {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(os.getcwd())
    if not callable(factory):
        raise InputError(f"{source}: {module_name} has no function {name}")
    try:
        made = factory()
    except GraphfixError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{source}: {name}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise InputError(f"{source}: {name}() has to return (module, args) or (module, args, options)")
    module, args, more = (*made, {})[:3]
    if not isinstance(more, Mapping):
        raise InputError(f"{source}: the third value that {name}() returns has to be a dict of options")
    return module, args, dict(more)


def _load_program(source: str) -> Any:
    import torch

    if not os.path.isfile(source):
        raise InputError(f"{source}: no such file")
    from graphfix.torch_export.silence import silence

    if source.endswith(".py"):
        raise InputError(f"{source}: is Python source: give its module and a function, as in package.module:factory")
    try:
        with silence():
            return torch.export.load(source)
    except Exception as error:
        raise InputError(
            f"{source}: is no exported program of this version of PyTorch ({torch.__version__}): "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error
