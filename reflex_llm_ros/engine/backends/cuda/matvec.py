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

"""Products with weight matrices: which kernel, by tensor type, tokens and switches."""

from collections.abc import Callable
from typing import Any

import numpy as np
from reflex_llm_ros.engine.backends.cuda.dispatch import Dispatcher, REFERENCE, Variant
from reflex_llm_ros.engine.backends.cuda.host_reference import HostReference
from reflex_llm_ros.engine.backends.cuda.packed import PackedTensor
from reflex_llm_ros.engine.backends.cuda.weights import DeviceTensor
from reflex_llm_ros.engine.config import FastPaths

BLOCK = 128
ROWS_A_BLOCK = 4
PACKED_ROWS_A_WARP = 2
UINT32_TYPES = ('q4k',)
"""Types whose blocks lie on multiples of four bytes and have kernels that use it."""
PACKED_OUTPUTS = ('', 'logits', 'add')
"""What a product leaves, by the end of its family's name: packed_gemm is told the number."""
TRIPLES = {('q4k', 'q4k', 'q4k'), ('q4k', 'q4k', 'q6k')}

OPERATION = 'gemv'
SINGLE_LAUNCHES = 'single launches'


class Matvec:
    """
    The matrix products of a forward pass.

    One token runs on the ``gemv`` kernels, several on ``gemm``, any number on ``packed_gemm``
    where the matrix is packed; x is (N, K) float16. Kernels of a type agree to the bit, so that
    fused, single and batched launches may be mixed.
    """

    def __init__(
        self, device: Any, fast: FastPaths, dispatcher: Dispatcher, reference: HostReference
    ) -> None:
        self._device = device
        self._fast = fast
        self._dispatcher = dispatcher
        self._reference = reference

    def single(self, y: Any, x: Any, weight: DeviceTensor) -> None:
        """``y = x @ weight.T``, y (N, M) float16."""
        self._run(
            self._product(y, x, weight), lambda: self._reference.linear(y, x, weight))

    def logits(self, y: Any, x: Any, weight: DeviceTensor, spare: Any) -> None:
        """``y = x @ weight.T``, y (1, M) float32; ``spare`` (1, M) float16 may be written."""
        self._run(
            [*self._variants('gemv_logits', weight, (y, x, weight.data), 1),
             *self._in_two_steps(self._product(spare, x, weight), 'halves_to_floats', y, spare)],
            lambda: self._reference.linear(y, x, weight))

    def add(self, residual: Any, x: Any, weight: DeviceTensor, spare: Any) -> None:
        """``residual += x @ weight.T``: residual (N, M) float32, ``spare`` as float16."""
        family = 'gemv_add' if len(x) == 1 else 'gemm_add'
        self._run(
            [*self._variants(family, weight, (residual, residual, x, weight.data), len(x)),
             *self._in_two_steps(
                 self._product(spare, x, weight), 'residual_add', residual, spare)],
            lambda: self._reference.linear(residual, x, weight, residual))

    def pair(
        self, outputs: tuple[Any, Any], x: Any, weights: tuple[DeviceTensor, DeviceTensor]
    ) -> None:
        """Gate and up of one x: in one launch for one token and one type."""
        first, second = weights
        packed = isinstance(first, PackedTensor)
        if len(x) > 1 or packed or first.kernel_type != second.kernel_type:
            self._one_by_one(outputs, x, weights)
            return
        arguments = (*outputs, x, first.data, second.data)
        variants = self._variants('gemv_pair', first, arguments, 1, rows=2 * first.rows)
        self._run(variants, lambda: self._one_by_one(outputs, x, weights), SINGLE_LAUNCHES)

    def triple(
        self, outputs: tuple[Any, Any, Any], x: Any,
        weights: tuple[DeviceTensor, DeviceTensor, DeviceTensor]
    ) -> None:
        """Q, k and v of one x: in one launch for one token and the types that have a kernel."""
        types = tuple(weight.kernel_type for weight in weights)
        packed = isinstance(weights[0], PackedTensor)
        if len(x) > 1 or packed or types not in TRIPLES:
            self._one_by_one(outputs, x, weights)
            return
        sizes = [np.int32(weight.rows) for weight in weights]
        arguments = (*outputs, x, *(weight.data for weight in weights), *sizes)
        variants = [
            Variant(name, self._launch('gemv', name, sum(sizes), (
                *arguments, np.int32(weights[0].columns))))
            for name in self._names('gemv_triple_' + '_'.join(types), weights[0])]
        self._run(variants, lambda: self._one_by_one(outputs, x, weights), SINGLE_LAUNCHES)

    def _product(self, y: Any, x: Any, weight: DeviceTensor) -> list[Variant]:
        family = 'gemv' if len(x) == 1 else 'gemm'
        return self._variants(family, weight, (y, x, weight.data), len(x))

    def _in_two_steps(
        self, products: list[Variant], kernel: str, y: Any, spare: Any
    ) -> list[Variant]:
        """Return what runs a product into ``spare`` and then ``kernel`` from there to ``y``."""
        def both(product: Variant) -> Callable[[], None]:
            def run() -> None:
                product.run()
                self._device.launch(
                    self._device.function('elementwise', kernel), (-(-y.size // BLOCK),), BLOCK,
                    (y, spare, np.int32(y.size)))
            return run

        return [Variant(f'{product.name}, {kernel}', both(product)) for product in products]

    def _one_by_one(
        self, outputs: tuple[Any, ...], x: Any, weights: tuple[DeviceTensor, ...]
    ) -> None:
        for y, weight in zip(outputs, weights, strict=True):
            self.single(y, x, weight)

    def _variants(
        self, family: str, weight: DeviceTensor, arguments: tuple[Any, ...], tokens: int,
        rows: int | None = None
    ) -> list[Variant]:
        shape = (np.int32(weight.rows), np.int32(weight.columns))
        if isinstance(weight, PackedTensor):
            name = f'packed_gemm_{weight.kernel_type}'
            output = family.partition('_')[2]
            # A residual that is not read is any array of the right type.
            residual = () if output == 'add' else arguments[:1]
            warps = weight.rows // PACKED_ROWS_A_WARP
            return [Variant(name, self._launch('packed_gemm', name, warps, (
                *residual, *arguments, np.int32(tokens), *shape, *weight.place,
                np.int32(PACKED_OUTPUTS.index(output)))))]
        file = family.split('_')[0]
        arguments = (*arguments, *([np.int32(tokens)] if file == 'gemm' else []), *shape)
        return [
            Variant(name, self._launch(file, name, rows or weight.rows, arguments))
            for name in self._names(f'{family}_{weight.kernel_type}', weight)]

    def _names(self, kernel: str, weight: DeviceTensor) -> list[str]:
        """Kernels that do the same, fastest first."""
        words = self._fast.q4k_uint32_loads and weight.kernel_type in UINT32_TYPES
        return [kernel + '_uint32', kernel] if words else [kernel]

    def _launch(
        self, file: str, kernel: str, rows: int, arguments: tuple[Any, ...]
    ) -> Callable[[], None]:
        def launch() -> None:
            self._device.launch(
                self._device.function(file, kernel), (-(-int(rows) // ROWS_A_BLOCK),), BLOCK,
                arguments)
        return launch

    def _run(
        self, variants: list[Variant], last: Callable[[], None], name: str = REFERENCE
    ) -> None:
        kernels = variants if self._fast.gemv else []
        self._dispatcher.run(OPERATION, [*kernels, Variant(name, last)])
