# Copyright 2026 The reflex_llm_ros authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""The keys and values that attention has seen, for the reference backend."""


import numpy as np
from reflex_llm_ros.engine.backends import reference_ops as ops
from reflex_llm_ros.engine.gguf_config import ModelConfig

KeysValues = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]


class KvCache:
    """
    Keys and values of every layer, in the compute dtype or in int8 with scales.

    Storage is (layers, G, T, D), so that one head's positions are one contiguous matrix for
    BLAS; what goes in and comes out is (positions, G, D).
    """

    def __init__(self, sizes: ModelConfig, length: int, dtype: np.dtype, int8: bool) -> None:
        shape = (sizes.block_count, sizes.head_count_kv, length, sizes.head_dim)
        held = np.int8 if int8 else dtype
        # Zeros cost no memory until a position is written: the system maps pages lazily.
        self._k: np.ndarray = np.zeros(shape, held)
        self._v: np.ndarray = np.zeros(shape, held)
        self._k_scale = np.zeros(shape[:3], dtype) if int8 else None
        self._v_scale = np.zeros(shape[:3], dtype) if int8 else None

    @property
    def nbytes(self) -> int:
        """Bytes that the cache holds when it is full."""
        arrays = (self._k, self._v, self._k_scale, self._v_scale)
        return sum(array.nbytes for array in arrays if array is not None)

    def write(self, layer: int, start: int, k: np.ndarray, v: np.ndarray) -> None:
        """Store k and v (N, G, D) at positions start to start+N-1 of a layer."""
        at = np.s_[layer, :, start:start + len(k)]
        if self._k_scale is not None and self._v_scale is not None:
            k, k_scale = ops.quantize_kv_int8(k)
            v, v_scale = ops.quantize_kv_int8(v)
            self._k_scale[at] = k_scale.T
            self._v_scale[at] = v_scale.T
        self._k[at] = k.transpose(1, 0, 2)
        self._v[at] = v.transpose(1, 0, 2)

    def read(self, layer: int, length: int) -> KeysValues:
        """
        Return the first ``length`` positions of a layer, as views.

        Keys and values (T, G, D), then their scales (T, G), which are None unless int8.
        """
        at = np.s_[layer, :, :length]
        k, v = self._k[at].transpose(1, 0, 2), self._v[at].transpose(1, 0, 2)
        if self._k_scale is None or self._v_scale is None:
            return k, v, None, None
        return k, v, self._k_scale[at].T, self._v_scale[at].T
