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

"""
The header of a GGUF file, walked with every length checked before it is believed.

A file is input from outside: nothing here allocates or loops in proportion to a number that
the file states before that number is known to fit into the file. (``gguf.GGUFReader`` does
not check, and takes seconds for a vocabulary of 150,000 strings, so it has no part here; the
type tables and the dequantizers are ``gguf``'s.)

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from dataclasses import dataclass
from itertools import pairwise
import math
import mmap
import struct

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
import numpy as np
from reflex_llm_ros.engine.errors import ModelFileError

MAX_HEADER_BYTES = 1 << 27
MAX_ENTRIES = 1 << 16
MAX_STRINGS = 1 << 20
MAX_KEY_BYTES = 1 << 16
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

Value = int | float | bool | str | np.ndarray | tuple[str, ...]
"""Metadata: scalars, text, numeric arrays (n,) and arrays of strings."""

_DTYPES = {
    GGUFValueType.UINT8: '<u1',
    GGUFValueType.INT8: '<i1',
    GGUFValueType.UINT16: '<u2',
    GGUFValueType.INT16: '<i2',
    GGUFValueType.UINT32: '<u4',
    GGUFValueType.INT32: '<i4',
    GGUFValueType.FLOAT32: '<f4',
    GGUFValueType.BOOL: '?',
    GGUFValueType.UINT64: '<u8',
    GGUFValueType.INT64: '<i8',
    GGUFValueType.FLOAT64: '<f8',
}
_SCALARS = {kind: np.dtype(text) for kind, text in _DTYPES.items()}
_U32 = struct.Struct('<I')
_U64 = struct.Struct('<Q')

_GET_IT_AGAIN = 'the file is damaged, get it again'


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's place: row-major ``shape``, first byte and bytes in the file."""

    name: str
    type: GGMLQuantizationType  # noqa: A003
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """What stands before the tensor data."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


def quote(text: str) -> str:
    """Text from a file, safe to show: one line, printable, short."""
    shown = text if len(text) <= 80 else text[:77] + '...'
    return ascii(shown)


def read_header(data: mmap.mmap) -> Header:
    """
    Walk the header of a mapped file.

    Raises
    ------
    ModelFileError
        The bytes are not a whole little-endian GGUF of version 2 or 3. The message is one
        line without the file's name.

    """
    cursor = _Cursor(data)
    _check_identity(data)
    cursor.skip(8)
    tensor_count = cursor.count('tensors', 32, MAX_ENTRIES)
    key_count = cursor.count('metadata keys', 13, MAX_ENTRIES)
    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.string('a metadata key', MAX_KEY_BYTES)
        if key in metadata:
            raise ModelFileError(f'the metadata key {quote(key)} stands twice; {_GET_IT_AGAIN}')
        metadata[key] = cursor.value(key)
    alignment = _alignment(metadata)
    stated = [cursor.tensor() for _ in range(tensor_count)]
    data_start = -(-cursor.position // alignment) * alignment
    return Header(metadata, _place(stated, data_start, alignment, len(data)))


def _check_identity(data: mmap.mmap) -> None:
    """Refuse what is no GGUF, or one of another byte order or version."""
    magic = data[:4]
    if magic != b'GGUF':
        if data[:24] == b'version https://git-lfs.':
            raise ModelFileError('a Git LFS pointer, not the model; run git lfs pull')
        raise ModelFileError(
            f'not a GGUF file: it begins with {magic!r}; give the path of a .gguf model')
    if len(data) < 24:
        raise ModelFileError(f'truncated within its first 24 bytes; {_GET_IT_AGAIN}')
    (version,) = _U32.unpack_from(data, 4)
    if version and version & 0xFFFF == 0:
        raise ModelFileError('a big-endian GGUF; convert it with gguf-convert-endian')
    if version not in (2, 3):
        raise ModelFileError(
            f'GGUF version {version}, but 2 and 3 are known; get a current file')


def _alignment(metadata: dict[str, Value]) -> int:
    alignment = metadata.get('general.alignment', DEFAULT_ALIGNMENT)
    if (type(alignment) is not int or not 8 <= alignment <= 1 << 20
            or alignment & (alignment - 1)):
        raise ModelFileError(
            'general.alignment must be a power of two from 8 to 1048576; ' + _GET_IT_AGAIN)
    return alignment


def _place(
    stated: list[TensorInfo], data_start: int, alignment: int, file_bytes: int
) -> dict[str, TensorInfo]:
    """Check every tensor's bytes against the file and against each other."""
    tensors: dict[str, TensorInfo] = {}
    for info in stated:
        label = f'tensor {quote(info.name)}'
        if info.name in tensors:
            raise ModelFileError(f'{label} stands twice; {_GET_IT_AGAIN}')
        if info.start % alignment:
            raise ModelFileError(
                f'{label} is not aligned to {alignment} bytes; {_GET_IT_AGAIN}')
        start = data_start + info.start
        if start + info.nbytes > file_bytes:
            raise ModelFileError(
                f'truncated: {label} ends at byte {start + info.nbytes}, '
                f'the file has {file_bytes}; get it again')
        tensors[info.name] = TensorInfo(info.name, info.type, info.shape, start, info.nbytes)
    in_order = sorted(tensors.values(), key=lambda info: info.start)
    for before, after in pairwise(in_order):
        if before.start + before.nbytes > after.start:
            raise ModelFileError(
                f'tensors {quote(before.name)} and {quote(after.name)} overlap; '
                + _GET_IT_AGAIN)
    return tensors


class _Cursor:
    """A position in the map that never passes the end of the file or of what is sane."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._end = min(len(data), MAX_HEADER_BYTES)
        self._strings_left = MAX_STRINGS
        self.position = 0

    def skip(self, size: int) -> int:
        """Advance by size bytes; the position before."""
        start = self.position
        if start + size > self._end:
            raise self._too_far()
        self.position = start + size
        return start

    def _too_far(self) -> ModelFileError:
        if self._end == MAX_HEADER_BYTES:
            return ModelFileError(
                f'the header passes {MAX_HEADER_BYTES >> 20} MiB; {_GET_IT_AGAIN}')
        return ModelFileError('truncated within its header; get it again')

    def u32(self) -> int:
        """Read an unsigned 32-bit integer."""
        return int(_U32.unpack_from(self._data, self.skip(4))[0])

    def u64(self) -> int:
        """Read an unsigned 64-bit integer."""
        return int(_U64.unpack_from(self._data, self.skip(8))[0])

    def count(self, what: str, least_bytes: int, limit: int) -> int:
        """Read how many entries of at least ``least_bytes`` bytes follow."""
        count = self.u64()
        if count > limit or count * least_bytes > self._end - self.position:
            raise ModelFileError(
                f'it states {count} {what}, more than it can hold; {_GET_IT_AGAIN}')
        return count

    def string(self, what: str, limit: int = MAX_HEADER_BYTES) -> str:
        """Read a string of at most ``limit`` bytes."""
        length = self.u64()
        if length > limit or length > self._end - self.position:
            raise ModelFileError(
                f'{what} states a length of {length} bytes, more than it can have; '
                + _GET_IT_AGAIN)
        start = self.skip(length)
        try:
            return self._data[start:start + length].decode('utf-8')
        except UnicodeDecodeError:
            raise ModelFileError(f'{what} is not UTF-8; {_GET_IT_AGAIN}') from None

    def value(self, key: str) -> Value:
        """Read a metadata value."""
        kind = self.u32()
        if kind in _SCALARS:
            return self._numbers(kind, 1).tolist()[0]
        if kind == GGUFValueType.STRING:
            return self.string(f'the value of {quote(key)}')
        if kind == GGUFValueType.ARRAY:
            return self._array(key)
        raise ModelFileError(f'{quote(key)} has the unknown type {kind}; {_GET_IT_AGAIN}')

    def _numbers(self, kind: int, count: int) -> np.ndarray:
        dtype = _SCALARS[GGUFValueType(kind)]
        start = self.skip(count * dtype.itemsize)
        return np.frombuffer(self._data[start:self.position], dtype)

    def _array(self, key: str) -> Value:
        kind = self.u32()
        what = f'elements of {quote(key)}'
        if kind in _SCALARS:
            size = _SCALARS[GGUFValueType(kind)].itemsize
            return self._numbers(kind, self.count(what, size, MAX_HEADER_BYTES))
        if kind == GGUFValueType.STRING:
            return self._strings(key, self.count(what, 8, self._strings_left))
        raise ModelFileError(
            f'{quote(key)} is an array of the unknown type {kind}; {_GET_IT_AGAIN}')

    def _strings(self, key: str, count: int) -> tuple[str, ...]:
        """Read ``count`` strings; in one plain loop, as there are hundreds of thousands."""
        self._strings_left -= count
        data, end, position = self._data, self._end, self.position
        length_at = _U64.unpack_from
        strings = []
        for _ in range(count):
            start = position + 8
            if start > end:
                raise self._too_far()
            position = start + length_at(data, position)[0]
            if position > end:
                raise ModelFileError(
                    f'a string of {quote(key)} states a length of {position - start} bytes, '
                    f'more than it can have; {_GET_IT_AGAIN}')
            strings.append(data[start:position])
        self.position = position
        try:
            return tuple([raw.decode('utf-8') for raw in strings])
        except UnicodeDecodeError:
            raise ModelFileError(
                f'a string of {quote(key)} is not UTF-8; {_GET_IT_AGAIN}') from None

    def tensor(self) -> TensorInfo:
        """Read a tensor's entry; ``start`` is relative to the tensor data."""
        name = self.string('a tensor name', MAX_KEY_BYTES)
        label = f'tensor {quote(name)}'
        dimensions = self.u32()
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ModelFileError(
                f'{label} states {dimensions} dimensions, 1 to {MAX_DIMENSIONS} are known; '
                + _GET_IT_AGAIN)
        shape = tuple(self.u64() for _ in range(dimensions))[::-1]
        number = self.u32()
        start = self.u64()
        try:
            kind = GGMLQuantizationType(number)
            block, block_bytes = GGML_QUANT_SIZES[kind]
        except (KeyError, ValueError):
            raise ModelFileError(
                f'{label} has the type {number}, which the installed gguf package does not '
                'know; requantize the model to a common type such as Q4_K_M') from None
        if 0 in shape or shape[-1] % block:
            raise ModelFileError(
                f'{label} has the shape {list(shape)}, which {kind.name} blocks of {block} '
                f'cannot fill; {_GET_IT_AGAIN}')
        return TensorInfo(name, kind, shape, start, math.prod(shape) // block * block_bytes)
