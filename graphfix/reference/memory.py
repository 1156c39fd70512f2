"""A limit on the memory of a run: some inputs make a model ask for tens of gigabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphfix.reference.refusal import ReferenceRefusal

_SHARE = 0.75  # of what is free, that a run may take unless told otherwise
_PLENTY = 4 << 30
_PAGE_FIELDS = "/proc/self/statm"
_SIGNS = ("Failed to allocate memory", "bad_alloc", "bad allocation")  # what ONNX Runtime says


@dataclass
class Memory:
    """What a check may take. ``held`` bytes of the ``limit`` (None for no limit) are taken by what is kept for later.

    Each run gets what is left.
    """

    limit: int | None = None
    held: int = 0

    def hold(self, *values: Any) -> None:
        """Count arrays that stay."""
        self.held += sum(size_of(value) for value in values)

    def excess(self, wanted: int, share: float = 1.0) -> str:
        """Why so many bytes more do not fit into this share of the limit; "" when they do."""
        if self.limit is None or self.held + wanted <= self.limit * share:
            return ""
        return f"{_gibibytes(wanted)}, more than the limit of {_gibibytes(self.limit)} (--memory-limit) leaves"

    def left(self) -> int | None:
        """The bytes that a run may take."""
        return None if self.limit is None else max(self.limit - self.held, 0)


def size_of(value: Any) -> int:
    """The bytes of an array, or of all arrays in a sequence."""
    if isinstance(value, list):
        return sum(size_of(element) for element in value)
    return 0 if value is None else int(np.asarray(value).nbytes)


def available() -> int | None:
    """The bytes that are free on this machine, and in the control group that the process is in; None when unknown."""
    found = []
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    most, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    if most.isdecimal() and used.isdecimal():
        found.append(max(int(most) - int(used), 0))
    return min(found, default=None)


def default_limit(weights: int) -> int | None:
    """4 GiB and four times the bytes of the model's weights, but no more than three quarters of what is available."""
    free = available()
    return None if free is None else min(_PLENTY + 4 * weights, int(free * _SHARE))


@contextmanager
def limited(limit: int | None) -> Iterator[None]:
    """Let the process take at most ``limit`` bytes more, as long as this lasts: what asks for more fails.

    The limit is on address space (RLIMIT_AS), as it is the one that the system enforces at the request. None means no
    limit, and so does a system without it.
    """
    pages = _read(_PAGE_FIELDS).split()
    if limit is None or not pages:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    ceiling = int(pages[0]) * resource.getpagesize() + limit
    for known in before:
        if known != resource.RLIM_INFINITY:
            ceiling = min(ceiling, known)
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def bounded(
    run: Callable[[Mapping[str, Any]], dict[str, Any]], memory: Memory
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function that runs a model in what the limit leaves, and raises ReferenceRefusal, which says so, for more."""

    def within(feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with limited(memory.left()):
                return run(feeds)
        except MemoryError as error:
            reason = " ".join(str(error).split()) or "out of memory"
        except ReferenceRefusal as refusal:
            if not any(sign in str(refusal) for sign in _SIGNS):
                raise
            reason = str(refusal)
        most = "there is"
        if memory.limit is not None:
            most = f"the limit of {_gibibytes(memory.limit)} (--memory-limit)"
            most += f" leaves beside {_gibibytes(memory.held)} of inputs and outputs" if memory.held >> 20 else ""
        raise ReferenceRefusal(f"asks for more memory than {most}: {reason}", memory=True)

    return within


def _gibibytes(number: int) -> str:
    return f"{number / (1 << 30):.3g} GiB"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
