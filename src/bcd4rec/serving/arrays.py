"""The 32-bit floats of a bundle, all within the one buffer that was read and checked: no table is copied."""

import json
import math
from typing import TYPE_CHECKING

import numpy as np

from bcd4rec.data.states import FloatArray

if TYPE_CHECKING:
    from onnx import TensorProto

ARRAYS = "arrays.safetensors"


class StoredArrays:
    """The arrays of a safetensors file, by name."""

    def __init__(self, data: bytes):
        self._data, size = data, int.from_bytes(data[:8], "little")
        self._header, self._begin = json.loads(data[8 : 8 + size]), 8 + size

    def _place(self, name: str) -> tuple[tuple[int, ...], int, int]:
        """Shape, offset and length in bytes."""
        entry = self._header[name]
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} is of type {entry['dtype']}, expected F32")
        shape, (first, last) = tuple(entry["shape"]), entry["data_offsets"]
        if not 0 <= first <= last <= len(self._data) - self._begin or 4 * math.prod(shape) != last - first:
            raise ValueError(f"{name} is not where the file says")
        return shape, self._begin + first, last - first

    def shape(self, name: str) -> tuple[int, ...]:
        return self._place(name)[0]

    def __getitem__(self, name: str) -> FloatArray:
        shape, offset, length = self._place(name)
        array = np.frombuffer(self._data, np.float32, length // 4, offset).reshape(shape)
        if not np.isfinite(array).all():
            raise ValueError(f"weights of {name} are not numbers")
        return array

    def under(self, prefix: str) -> dict[str, FloatArray]:
        """The arrays whose names begin with `prefix`, by the rest of their names."""
        if not prefix:
            return {}
        return {name.removeprefix(prefix): self[name] for name in self._header if name.startswith(prefix)}

    def external(self, name: str, called: str) -> "TensorProto":
        """A constant of an ONNX model beside this file that refers to an array in that."""
        import onnx

        shape, offset, length = self._place(name)
        tensor = onnx.TensorProto(name=called, dims=shape, data_type=onnx.TensorProto.FLOAT)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", ARRAYS), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor
