"""The arrays of a bundle without reading them into memory: large tables stay in the file and are shared."""

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open

from bcd4rec.data.states import FloatArray

if TYPE_CHECKING:
    from onnx import TensorProto

ARRAYS = "arrays.safetensors"


class StoredArrays:
    """The 32-bit floats of a safetensors file, by name."""

    def __init__(self, path: Path):
        self.path = path
        with safe_open(path, "numpy") as file:  # checks that names, shapes and offsets fit the file
            self._names = list(file.keys())

    @cached_property
    def _places(self) -> tuple[dict[str, Any], int]:
        """The header, and where the data begin."""
        with self.path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return json.loads(file.read(size)), 8 + size

    def _place(self, name: str) -> tuple[tuple[int, ...], int, int]:
        """Shape, offset and length in bytes."""
        header, begin = self._places
        entry = header[name]
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} is of type {entry['dtype']}, expected F32")
        first, last = entry["data_offsets"]
        return tuple(entry["shape"]), begin + first, last - first

    def shape(self, name: str) -> tuple[int, ...]:
        return self._place(name)[0]

    def __getitem__(self, name: str) -> FloatArray:
        shape, offset, length = self._place(name)
        if length == 0:
            return np.empty(shape, np.float32)
        return np.memmap(self.path, np.float32, "r", offset, shape)

    def under(self, prefix: str) -> dict[str, FloatArray]:
        """The arrays whose names begin with `prefix`, by the rest of their names."""
        if not prefix:
            return {}
        return {name.removeprefix(prefix): self[name] for name in self._names if name.startswith(prefix)}

    def external(self, name: str, called: str) -> "TensorProto":
        """A constant of an ONNX model beside this file that refers to an array in it."""
        import onnx

        shape, offset, length = self._place(name)
        tensor = onnx.TensorProto(name=called, dims=shape, data_type=onnx.TensorProto.FLOAT)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", self.path.name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor
