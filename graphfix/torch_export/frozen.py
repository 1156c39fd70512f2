"""Numbers of Python that a trace would keep as they are in the example: which may not be made, and what to say."""

from __future__ import annotations

import enum

from graphfix.errors import ExportError
from graphfix.torch_export.user_code import in_assertion, in_message, where


class On(enum.Flag):
    """What the elements of a tensor may depend on, that is not the same in every run."""

    NOTHING = 0
    SIZES = enum.auto()
    ELEMENTS = enum.auto()


class Stop(BaseException):
    """Ends a trace, past what the module catches: PyTorch does not survive errors within one. ``error`` says why."""

    def __init__(self, error: ExportError) -> None:
        super().__init__(str(error))
        self.error = error


def refuse_number(depends: On) -> None:
    """Raise ExportError for a number of Python that depends on what is not the same in every run.

    One that only an assertion or a message needs changes no result.
    """
    if not depends:
        return
    if in_assertion() or in_message():
        return
    if On.ELEMENTS in depends:
        raise ExportError(
            f"{where()}: a number is taken from a tensor, and a trace keeps that of the example; "
            "keep it a tensor: torch.where, a mask (torch.arange(n) < length), x[:, :n] with n a 0-d tensor"
        )
    raise ExportError(
        f"{where()}: a number is made of a dynamic size, and a trace keeps that of the example; "
        "compute with the sizes as they are (no int(), no loop, no branch), or leave them out of dynamic_shapes"
    )
