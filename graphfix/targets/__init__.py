"""What each engine is known to refuse or to run wrongly, as data: one TOML file an engine in this folder.

A file says which engine it is about and holds its rules::

    title = "OpenVINO, CPU plugin"
    version = "2026.4"              # what the rules were measured with or read from
    aliases = ["ov"]                # other names that users may give
    opset = [7, 24]                 # the lowest and the highest opset it takes; 0 for none known
    opset_source = "measured: ..."  # needed where there is one

    [[rule]]
    kind = "refuses"                # refuses, wrong, crash, slow or note
    op = ["ScatterND"]              # operators of the default domain; "*" for all, "input" for the model's inputs
    until = 15                      # the rule is for this opset and those before
    since = 11                      # ... and for this one and those after
    attributes = { reduction = ["add", "max"] }  # one of these values; true: any, false: not given
    inputs = [{ at = 1, type = "bool" }]         # all of these have to hold; see Tensor
    outputs = [{ shape = "run" }]
    inputs_over = 2                 # more inputs than that are given
    why = "..."                     # for people, after "operator (output): "
    source = "measured: openvino 2026.4, CPU"    # where it is from: what was run, or what was read

Everything in a rule but kind, op, why and source may be left out; a rule holds for a node when all that is in it does.
``refuses`` (the model does not load, or does not run), ``wrong`` (other answers) and ``crash`` make a result that is
not ``ok`` for this engine. ``slow`` and ``note`` (a limit of some device, or of values that only a run shows) do not.

What is said about a tensor (`Tensor`):

- ``at``: its position, or a list of positions; any of them is enough, and any at all when there is none
- ``type``: element types, as ONNX calls them: "bool", "float", "float16", "int64", ...
- ``value``: how its value comes about: "stored" (an initializer or a Constant node), "folded" (computed from stored
  ones alone), "sized" (computed from the model's input sizes: known once those are), "counted" (computed from a size
  that depends on the data, as that of a NonZero), "run" (from the data)
- ``shape``: "fixed" (numbers), "sized" (known once the model's input sizes are), "run" (depends on the data)
- ``rank_over``, ``rank_under``: its rank is above, below that
- ``negative``: true: its value is known, and one of its elements is below zero
- ``longer_than``: some size of it is above that of the input at this position
- ``rank_over_input``, ``rank_up_to_input``: its rank is above, at most that of the input at this position
- ``made_by``: the operator that makes it is one of these
- ``typed_data``: true: it is stored, in a typed field of its TensorProto (as onnx.helper.make_tensor does) and not as
  raw bytes
- ``named``: true: value_info of the file declares it with a size that is named as one of an input

What is not known of a tensor, such as its rank, never fulfils a condition: a rule speaks of what is sure.
"""

from __future__ import annotations

from graphfix.targets.loading import find_target, target_names
from graphfix.targets.model import Rule, Target, Tensor

__all__ = ["Rule", "Target", "Tensor", "find_target", "target_names"]
