"""The reference: runs a model as it is, ATen nodes and all, to compare a fixed model with."""

from graphfix.reference.refusal import ReferenceRefusal
from graphfix.reference.session import ReferenceSession

__all__ = ["ReferenceRefusal", "ReferenceSession"]
