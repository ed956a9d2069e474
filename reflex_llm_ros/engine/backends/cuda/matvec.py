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
UINT32_TYPES = ('q4k',)
"""Types whose blocks lie on multiples of four bytes and have kernels that use it."""
OUTPUTS = ('', 'logits', 'add')
"""
What a product leaves: y in float16, y in float32, or y in float32 to which it is added.

A kernel for one token is named after it; one for a batch is told its number.
"""
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
            [*self._product(y, x, weight, 'logits'),
             *self._in_two_steps('halves_to_floats', y, x, weight, spare)],
            lambda: self._reference.linear(y, x, weight))

    def add(self, residual: Any, x: Any, weight: DeviceTensor, spare: Any) -> None:
        """``residual += x @ weight.T``: residual (N, M) float32, ``spare`` as float16."""
        self._run(
            [*self._product(residual, x, weight, 'add'),
             *self._in_two_steps('residual_add', residual, x, weight, spare)],
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
        arguments = (*outputs, x, first.data, second.data, *_shape(first))
        variants = [
            Variant(name, self._launch('gemv', name, 2 * first.rows, arguments))
            for name in self._names(f'gemv_pair_{first.kernel_type}', first)]
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

    def _product(self, y: Any, x: Any, weight: DeviceTensor, output: str = '') -> list[Variant]:
        """Return the kernels for one product, of ``OUTPUTS``; its residual is y."""
        kind = weight.kernel_type
        if len(x) == 1 and not isinstance(weight, PackedTensor):
            kernel = f'gemv_{output}_{kind}' if output else f'gemv_{kind}'
            ys = (y, y) if output == 'add' else (y,)
            arguments = (*ys, x, weight.data, *_shape(weight))
            return [Variant(name, self._launch('gemv', name, weight.rows, arguments))
                    for name in self._names(kernel, weight)]
        arguments = (y, y, x, weight.data, np.int32(len(x)), *_shape(weight))
        told = np.int32(OUTPUTS.index(output))
        if isinstance(weight, PackedTensor):
            name = f'packed_gemm_{kind}'
            return [Variant(name, self._launch(
                'packed_gemm', name, weight.rows, (*arguments, *weight.place, told)))]
        return [Variant(name, self._launch('gemm', name, weight.rows, (*arguments, told)))
                for name in self._names(f'gemm_{kind}', weight)]

    def _in_two_steps(
        self, kernel: str, y: Any, x: Any, weight: DeviceTensor, spare: Any
    ) -> list[Variant]:
        """
        Return what runs a product into ``spare`` and then ``kernel`` from there to ``y``.

        Where one kernel leaves every output there is nothing simpler.
        """
        if len(x) > 1 or isinstance(weight, PackedTensor):
            return []

        def both(product: Variant) -> Callable[[], None]:
            def run() -> None:
                product.run()
                self._device.launch(
                    self._device.function('elementwise', kernel), (-(-y.size // BLOCK),), BLOCK,
                    (y, spare, np.int32(y.size)))
            return run

        return [Variant(f'{product.name}, {kernel}', both(product))
                for product in self._product(spare, x, weight)]

    def _one_by_one(
        self, outputs: tuple[Any, ...], x: Any, weights: tuple[DeviceTensor, ...]
    ) -> None:
        for y, weight in zip(outputs, weights, strict=True):
            self.single(y, x, weight)

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


def _shape(weight: DeviceTensor) -> tuple[np.int32, np.int32]:
    return np.int32(weight.rows), np.int32(weight.columns)
