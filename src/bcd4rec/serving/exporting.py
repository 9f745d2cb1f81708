"""A bundle's networks as ONNX models, which onnxruntime runs without torch.

`model.onnx`      positives (B, L), skips (B, S) → preference (B, D), bias (B, 1), state (B, D′)
`quantiles.onnx`  state (B, D′), taus (N,) → vectors (B, N, D′)
`behaviour.onnx`  positives (B, L), skips (B, S) → preference (B, D)

An item's value is preference · embedding + bias. Item ids are positions in the vocabulary, −1 is padding.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bcd4rec.artifacts import atomic_file
from bcd4rec.data.states import FloatArray
from bcd4rec.errors import InputError
from bcd4rec.policies.bundle import Bundle
from bcd4rec.policies.risk import MEAN, Risk
from bcd4rec.serving.arrays import StoredArrays
from bcd4rec.serving.graphs import ENCODER_GRAPHS, OPENING, Part, pooled
from bcd4rec.serving.heads import mean, quantiles

if TYPE_CHECKING:
    from onnx import ModelProto

MODEL, QUANTILES, BEHAVIOUR = "model.onnx", "quantiles.onnx", "behaviour.onnx"
EXPORTED = ("quantile_network", "neural")  # the kinds of policy that are networks
VERSION = "bcd4rec_policy"  # the key under which a model names the bundle it was made from
STATES = "int64[B,L] positives, int64[B,S] skips"


@dataclass(frozen=True)
class Network:
    """What to export, whatever kind of policy it comes from."""

    table: str  # the name of the embeddings among the arrays
    encoder: str
    encoder_prefix: str
    head: str = "expected"
    head_prefix: str = ""
    count: int = 1
    more: int = 0  # entries of a state that embeddings do not have
    gains: FloatArray | None = None
    risk: Risk = MEAN


def network_of(kind: str, settings: dict[str, Any], arrays: StoredArrays) -> Network:
    if kind == "neural":
        return Network("embeddings", settings["encoder"], "encoder.")
    shape = settings["network"]
    gains = arrays["network.gains"] if shape["pooling"] else None
    count = 1 if shape["head"] == "expected" else shape["quantiles"]
    return Network(
        "network.embeddings",
        shape["encoder"],
        "network.encoder.",
        shape["head"],
        "network.head.",
        count,
        int(shape["state_value"]),
        gains,
        Risk(**settings["risk"]),
    )


def models_of(kind: str, settings: dict[str, Any], arrays: StoredArrays, version: str) -> "dict[str, ModelProto]":
    """The models of a bundle by file name."""
    network = network_of(kind, settings, arrays)
    models = {MODEL: _preferences(network, arrays, version)}
    if kind == "quantile_network":
        part = quantiles(network.head, arrays.under(network.head_prefix))
        models[QUANTILES] = _model("float[B,D] state, float[N] taus", "float[B,N,D] vectors", part, version)
        if settings["constrained"]:
            behaviour = Network("behaviour.embeddings", "srgnn", "behaviour.encoder.")
            models[BEHAVIOUR] = _preferences(behaviour, arrays, version)
    return models


def _preferences(network: Network, arrays: StoredArrays, version: str) -> "ModelProto":
    if network.encoder not in ENCODER_GRAPHS:
        known = ", ".join(ENCODER_GRAPHS)
        raise InputError(f"The encoder {network.encoder!r} has no ONNX graph; those that have one are {known}.")
    encoder = ENCODER_GRAPHS[network.encoder](arrays.under(network.encoder_prefix))
    part = OPENING + encoder + pooled(network.gains, network.more)
    part += mean(network.head, arrays.under(network.head_prefix), network.risk)
    outputs = "float[B,D] preference, float[B,E] state"
    if network.more:
        width = arrays.shape(network.table)[1]
        part += Part(f"""
          split = Constant<value_ints=[{width}, {network.more}]>()
          preference, bias = Split<axis=1>(mean, split)
        """)
        outputs += ", float[B,1] bias"
    else:
        part += Part("preference = Identity(mean)\n")
    model = _model(STATES, outputs, part, version)
    model.graph.initializer.append(arrays.external(network.table, "embeddings"))
    return model


def _model(inputs: str, outputs: str, part: Part, version: str) -> "ModelProto":
    onnx = import_onnx()
    text = f'<ir_version: 10, opset_import: ["" : 20]>\nbcd4rec ({inputs}) => ({outputs}) {{\n{part.lines}\n}}'
    model: ModelProto = onnx.parser.parse_model(text)
    for name, array in part.weights.items():
        tensor = onnx.numpy_helper.from_array(np.ascontiguousarray(array, np.float32), name)
        model.graph.initializer.append(tensor)
    model.metadata_props.add(key=VERSION, value=version)
    return model


def import_onnx() -> Any:
    try:
        import onnx
        import onnx.numpy_helper
        import onnx.parser
    except ModuleNotFoundError:
        raise InputError("Exporting a network needs the onnx package: pip install 'bcd4rec[serve]'.") from None
    return onnx


def serialized(saved: Bundle, arrays: StoredArrays) -> dict[str, bytes]:
    """The models of a bundle by file name, as they are written; the same bundle always gives the same bytes."""
    kind, settings = saved.manifest["scorer"], saved.manifest["settings"]
    if kind not in EXPORTED:
        raise InputError(
            f"{saved.folder} holds a policy of kind {kind!r}, which has no network; `bcd4rec serve` takes it as it is, "
            "and there is nothing to export."
        )
    made = models_of(kind, settings, arrays, saved.trained)
    return {name: model.SerializeToString() for name, model in made.items()}


def write_models(folder: Path, models: dict[str, bytes]) -> list[Path]:
    """Into the bundle's folder, beside the arrays they refer to."""
    for name, model in models.items():
        with atomic_file(folder / name, force=True) as partial:
            partial.write_bytes(model)
    return [folder / name for name in models]
