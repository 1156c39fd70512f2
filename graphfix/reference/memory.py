"""A limit on the memory of a run: some inputs make a model ask for tens of gigabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphfix.reference.refusal import ReferenceRefusal

_SHARE = 0.75  # of what is free, that a run may take unless told otherwise
_PLENTY = 4 << 30
_PAGE_FIELDS = "/proc/self/statm"
_SIGNS = ("Failed to allocate memory", "bad_alloc", "bad allocation")  # what ONNX Runtime says


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
    run: Callable[[Mapping[str, Any]], dict[str, Any]], limit: int | None
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function that runs a model within the limit, and raises ReferenceRefusal, which says so, for more."""

    def within(feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with limited(limit):
                return run(feeds)
        except MemoryError as error:
            reason = " ".join(str(error).split()) or "out of memory"
        except ReferenceRefusal as refusal:
            if not any(sign in str(refusal) for sign in _SIGNS):
                raise
            reason = str(refusal)
        most = "there is" if limit is None else f"the limit of {limit / (1 << 30):.3g} GiB (--memory-limit)"
        raise ReferenceRefusal(f"asks for more memory than {most}: {reason}")

    return within


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
