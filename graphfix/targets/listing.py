"""What `graphfix targets` prints."""

from __future__ import annotations

from graphfix.targets.loading import find_target, load_target, target_names
from graphfix.targets.model import Rule, Target, Tensor

VALUE_WORDS = {
    "stored": "stored",
    "folded": "computed from constants",
    "sized": "computed from input sizes",
    "counted": "computed from sizes that depend on the data",
    "run": "computed from data",
}


def target_table() -> str:
    """One line an engine: name, version, opsets, number of rules, what it is."""
    rows = [("target", "version", "opsets", "rules", "")]
    for name in target_names():
        target = load_target(name)
        aliases = f" (also: {', '.join(target.aliases)})" if target.aliases else ""
        rows.append((name, target.version, _opsets(target), str(len(target.rules)), target.title + aliases))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[4]]) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def target_rules(name: str) -> str:
    """The rules of one engine, each with its source. Raises UsageError for an unknown name."""
    target = find_target(name)
    lines = [f"{target.label}: {target.title}"]
    source = f" ({target.opset_source})" if target.opset_source else ""
    lines.append(f"opsets: {_opsets(target)}{source}")
    for rule in target.rules:
        what = ", ".join("any operator" if op == "*" else op for op in rule.op)
        condition = _condition(rule)
        lines += ["", f"{rule.kind}: {what}{' with ' + condition if condition else ''}", f"  {rule.why}"]
        lines.append(f"  {rule.source}")
    return "\n".join(lines)


def _opsets(target: Target) -> str:
    if target.lowest is None and target.highest is None:
        return "no limit known"
    if target.highest is None:
        return f"from {target.lowest}"
    return f"up to {target.highest}" if target.lowest is None else f"{target.lowest} to {target.highest}"


def _condition(rule: Rule) -> str:
    """When a rule holds, in words."""
    parts = []
    if rule.until is not None:
        parts.append(f"opset {rule.since} to {rule.until}" if rule.since > 1 else f"opset {rule.until} or below")
    elif rule.since > 1:
        parts.append(f"opset {rule.since} or above")
    for name, wanted in (rule.attributes or {}).items():
        words = ["any" if one is True else "not given" if one is False else str(one) for one in wanted]
        parts.append(f"the attribute {name} {' or '.join(words)}")
    if rule.inputs_over is not None:
        parts.append(f"more than {rule.inputs_over} inputs")
    for kind, tensors in (("input", rule.inputs), ("output", rule.outputs)):
        parts += [_tensor_text(kind, said) for said in tensors]
    return ", ".join(parts)


def _tensor_text(kind: str, said: Tensor) -> str:
    one = f"{kind} {' or '.join(map(str, said.at))}" if said.at else f"an {kind}"
    parts = []
    if said.type:
        parts.append(f"of type {' or '.join(said.type)}")
    if said.value:
        parts.append(f"that is {' or '.join(VALUE_WORDS[word] for word in said.value)}")
    if said.shape:
        words = {"fixed": "fixed", "sized": "by the input sizes", "run": "by the data"}
        parts.append(f"whose shape is {' or '.join(words[word] for word in said.shape)}")
    if said.rank_over is not None:
        parts.append(f"of rank above {said.rank_over}")
    if said.rank_under is not None:
        parts.append(f"of rank below {said.rank_under}")
    if said.negative:
        parts.append("with known negative values")
    if said.longer_than is not None:
        parts.append(f"larger than input {said.longer_than}")
    if said.rank_over_input is not None:
        parts.append(f"of higher rank than input {said.rank_over_input}")
    if said.rank_up_to_input is not None:
        parts.append(f"of no higher rank than input {said.rank_up_to_input}")
    if said.made_by:
        parts.append(f"made by {' or '.join(said.made_by)}")
    if said.typed_data:
        parts.append("stored in a typed field")
    if said.named:
        parts.append("declared with a named size")
    return " ".join([one, *parts])
