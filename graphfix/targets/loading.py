"""Reads the files of `graphfix.targets` and checks them: a misspelt key would be a rule that never holds."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from graphfix.errors import UsageError
from graphfix.targets.model import KINDS, SHAPES, VALUES, Rule, Target, Tensor
from graphfix.user_inputs import suggest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # the same parser, before it came into the standard library

SUFFIX = ".toml"
SOURCES = ("measured: ", "read: ")


def target_names() -> list[str]:
    """The engines that there is a file for, in order."""
    return sorted(f.name.removesuffix(SUFFIX) for f in files("graphfix.targets").iterdir() if f.name.endswith(SUFFIX))


def find_target(given: str) -> Target:
    """The engine of this name or alias, in any case. Raises UsageError, with a suggestion, when there is none."""
    if not isinstance(given, str):
        raise UsageError(f"target is {given!r}: give the name of an engine (`graphfix targets` lists them)")
    wanted, names = given.strip().casefold(), target_names()
    if wanted in names:
        return load_target(wanted)
    targets = [load_target(name) for name in names]
    for target in targets:
        if wanted in target.aliases:
            return target
    near = suggest(wanted, [*names, *(alias for target in targets for alias in target.aliases)])
    raise UsageError(f"target: there is no engine {given!r}; {near} (`graphfix targets` lists them)")


def load_target(name: str) -> Target:
    """Read the file of one engine. Raises ValueError, with the place, for what is not as the package says."""
    return parse_target(name, (files("graphfix.targets") / f"{name}{SUFFIX}").read_text(encoding="utf-8"))


def parse_target(name: str, text: str) -> Target:
    """The engine that a file's text describes. Raises ValueError for what is not as the package says."""
    content = tomllib.loads(text)
    where = f"{name}{SUFFIX}"
    _known(content, ("title", "version", "aliases", "opset", "opset_source", "rule"), where)
    low, high = content.get("opset", (0, 0))
    if low < 0 or 0 < high < low:
        raise ValueError(f"{where}: opset {low} to {high} is no range")
    opset_source = content.get("opset_source", "")
    if (low or high) and not opset_source.startswith(SOURCES):
        raise ValueError(f"{where}: opset_source has to begin with one of {SOURCES}")
    rules = tuple(_rule(one, f"{where}, rule {i}") for i, one in enumerate(content.get("rule", ()), 1))
    return Target(
        name=name,
        title=_text(content, "title", where),
        version=_text(content, "version", where),
        rules=rules,
        lowest=low or None,
        highest=high or None,
        opset_source=opset_source,
        aliases=tuple(content.get("aliases", ())),
    )


def _rule(content: Mapping[str, Any], where: str) -> Rule:
    _known(content, Rule.__dataclass_fields__, where)
    op, source = content.get("op", ()), _text(content, "source", where)
    kind = _text(content, "kind", where)
    if kind not in KINDS:
        raise ValueError(f"{where}: kind is {kind!r}, not one of {KINDS}")
    if not op:
        raise ValueError(f"{where}: op is missing")
    if not source.startswith(SOURCES):
        raise ValueError(f"{where}: source has to begin with one of {SOURCES}")
    attributes = {
        key: tuple(value) if isinstance(value, list) else (value,)
        for key, value in content.get("attributes", {}).items()
    }
    return Rule(
        kind=kind,
        op=_strings(op),
        why=_text(content, "why", where),
        source=source,
        since=content.get("since", 1),
        until=content.get("until"),
        attributes=attributes or None,
        inputs=tuple(_tensor(one, where) for one in content.get("inputs", ())),
        outputs=tuple(_tensor(one, where) for one in content.get("outputs", ())),
        inputs_over=content.get("inputs_over"),
    )


def _tensor(content: Mapping[str, Any], where: str) -> Tensor:
    from onnx import TensorProto

    _known(content, Tensor.__dataclass_fields__, where)
    given = dict(content)
    at = content.get("at", ())
    given["at"] = (at,) if isinstance(at, int) else tuple(at)
    for key, allowed in (("value", VALUES), ("shape", SHAPES), ("type", None)):
        given[key] = _strings(content.get(key, ()))
        known = allowed or [name.lower() for name, _ in TensorProto.DataType.items()]
        unknown = [word for word in given[key] if word not in known]
        if unknown:
            raise ValueError(f"{where}: {key} {unknown[0]!r} is not one of {', '.join(known)}")
    given["made_by"] = _strings(content.get("made_by", ()))
    return Tensor(**given)


def _known(content: Mapping[str, Any], keys: Any, where: str) -> None:
    unknown = sorted(set(content) - set(keys))
    if unknown:
        raise ValueError(f"{where}: there is no key {unknown[0]!r}")


def _text(content: Mapping[str, Any], key: str, where: str) -> str:
    value = content.get(key, "")
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {key} is missing")
    return value


def _strings(given: Any) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
