"""Why the reference session did not run a set of inputs."""

from __future__ import annotations


class ReferenceRefusal(Exception):
    """The reference cannot run this model, or not with these inputs. The message is one line.

    The other fields say, where it is known, what would have been accepted; the search for inputs learns from them.

    ``argument``: the kernel's parameter at fault (``"index"``, ``"indices:1"``), set by the kernel.
    ``tensor``: the name of the tensor at fault in the graph, set by the session.
    ``index_range``: the half-open range ``[low, high)`` that the tensor's values must lie in.
    ``node``: the name of the node at fault, where only that is known.
    ``needs_true``: how many values of the mask must be true.
    ``loading``: the model, or a part of it, does not load: no other inputs will help.
    ``unsupported``: ONNX Runtime knows the operator, but has no code for it with these dtypes on the CPU.
    ``memory``: it takes more memory than it may.
    """

    def __init__(
        self,
        message: str,
        *,
        argument: str = "",
        tensor: str = "",
        node: str = "",
        index_range: tuple[int, int] | None = None,
        needs_true: int | None = None,
        loading: bool = False,
        memory: bool = False,
        unsupported: bool = False,
    ) -> None:
        super().__init__(" ".join(message.split()))
        self.argument = argument
        self.tensor = tensor
        self.node = node
        self.index_range = index_range
        self.needs_true = needs_true
        self.loading = loading
        self.memory = memory
        self.unsupported = unsupported

    def at(self, where: str, tensor: str = "") -> ReferenceRefusal:
        """The same refusal, with the place in front of the message."""
        return ReferenceRefusal(
            f"{where}: {self}",
            argument=self.argument,
            tensor=tensor or self.tensor,
            node=self.node,
            index_range=self.index_range,
            needs_true=self.needs_true,
            loading=self.loading,
            memory=self.memory,
            unsupported=self.unsupported,
        )
