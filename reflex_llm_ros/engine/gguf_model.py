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

"""A GGUF file opened over one memory map: configuration, tensors, tokenizer metadata."""

from collections.abc import Iterator, Mapping
import contextlib
from dataclasses import dataclass
import functools
import mmap
import os
import stat

from gguf import dequantize, GGML_QUANT_SIZES, GGMLQuantizationType
import numpy as np
import numpy.typing as npt
from reflex_llm_ros.engine.errors import ModelFileError
from reflex_llm_ros.engine.gguf_config import (
    check_architecture,
    check_tensors,
    model_config,
    ModelConfig,
)
from reflex_llm_ros.engine.gguf_header import quote, read_header, TensorInfo
from reflex_llm_ros.engine.gguf_metadata import Metadata
from reflex_llm_ros.engine.gguf_rope import RopeConfig
from reflex_llm_ros.engine.gguf_tokenizer import tokenizer_metadata, TokenizerMetadata

__all__ = [
    'GgufModel', 'ModelConfig', 'RopeConfig', 'Tensor', 'TokenizerMetadata', 'read_tokenizer',
]

DEQUANTIZE_CHUNK = 1 << 21
"""Elements dequantized at once: bounds the temporaries, not the result."""

MAX_DIVISOR_BYTES = 1 << 16


@dataclass(frozen=True)
class Tensor:
    """
    One tensor as it lies in the file.

    ``shape`` is row-major, (out, in) for a matrix; ``data`` (rows, bytes a row) uint8 is a
    read-only view into the map, with one row for a vector.
    """

    name: str
    type: GGMLQuantizationType  # noqa: A003
    shape: tuple[int, ...]
    data: np.ndarray

    def dequantize(
        self, rows: slice | None = None, dtype: npt.DTypeLike = np.float32
    ) -> np.ndarray:
        """
        Convert to floats.

        Parameters
        ----------
        rows
            Which rows of a matrix, all when None.
        dtype
            float32, or float64 for the same values in a wider type.

        Returns
        -------
        np.ndarray
            A fresh array: (out, in) or (rows, in) for a matrix, (n,) for a vector.

        """
        data = self.data if rows is None else self.data[rows]
        columns = self.shape[-1]
        out = np.empty((len(data), columns), dtype)
        step = max(1, DEQUANTIZE_CHUNK // columns)
        for start in range(0, len(data), step):
            part = np.ascontiguousarray(data[start:start + step])
            out[start:start + step] = dequantize(part, self.type).reshape(-1, columns)
        return out[0] if len(self.shape) == 1 else out


class GgufModel:
    """
    An open file; ``close`` gives the map back.

    Replace a model file by renaming another over it: cutting an open one short ends the
    process that reads it, as for every memory map.

    Attributes
    ----------
    config
        Sizes and constants.
    tensors
        Every tensor that the forward pass reads, by its name in the file.
    tokenizer
        What the tokenizer is built from.
    chat_template
        The file's Jinja chat template, or None.
    file_bytes
        Size of the file.

    """

    def __init__(
        self, config: ModelConfig, tensors: dict[str, Tensor], tokenizer: TokenizerMetadata,
        chat_template: str | None, file_bytes: int,
    ) -> None:
        self.config = config
        self.tensors = tensors
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.file_bytes = file_bytes

    @classmethod
    def open(cls, path: str) -> 'GgufModel':  # noqa: A003
        """
        Open and check a file.

        Raises
        ------
        ModelFileError
            One line: the path, what is wrong with the file and what to do.

        """
        with _named(path), _mapped(path) as data:
            header = read_header(data)
            metadata = Metadata(header.metadata)
            check_architecture(metadata)
            for info in header.tensors.values():
                if not _dequantizable(info.type):
                    raise ModelFileError(
                        f'tensor {quote(info.name)} has the type {info.type.name}, which '
                        'cannot be dequantized; requantize the model to a common type such '
                        'as Q4_K_M')
            config = model_config(
                metadata, header.tensors, _rope_divisors(data, header.tensors))
            check_tensors(config, header.tensors)
            tokenizer = tokenizer_metadata(metadata)
            if len(tokenizer.tokens) != config.vocab_size:
                raise ModelFileError(
                    f'the tokenizer has {len(tokenizer.tokens)} tokens and token_embd.weight '
                    f'{config.vocab_size} rows; get an intact file')
            template = 'tokenizer.chat_template'
            return cls(
                config,
                {name: _view(data, info) for name, info in header.tensors.items()
                 if name != 'rope_freqs.weight'},
                tokenizer,
                metadata.text(template) if metadata.has(template) else None,
                len(data),
            )

    def close(self) -> None:
        """
        Drop every view into the map and the map itself. May be called twice.

        A view that a caller still holds stays valid, and the map goes with the last one.
        """
        self.tensors = {}


def read_tokenizer(path: str) -> TokenizerMetadata:
    """
    Read the tokenizer of any GGUF file, a vocabulary without weights included.

    Raises
    ------
    ModelFileError
        As for ``GgufModel.open``.

    """
    with _named(path), _mapped(path) as data:
        return tokenizer_metadata(Metadata(read_header(data).metadata))


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Put the path before the message of a ModelFileError."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f'{_shown(path)}: {error}') from None


def _shown(path: str) -> str:
    return path if path.isprintable() and path else ascii(path)


@contextlib.contextmanager
def _mapped(path: str) -> Iterator[mmap.mmap]:
    """Map a regular file; what still has views into it when the block ends keeps it mapped."""
    try:
        # A FIFO without a writer would block the open for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ModelFileError('no such file; check the path') from None
    except (OSError, ValueError) as error:
        reason = getattr(error, 'strerror', None) or str(error)
        raise ModelFileError(f'cannot be opened: {reason}; check the path') from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = 'a directory' if stat.S_ISDIR(status.st_mode) else 'no regular file'
            raise ModelFileError(f'{kind}; give the path of a .gguf file')
        if status.st_size == 0:
            raise ModelFileError('the file is empty; get it again')
        data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f'cannot be mapped: {error.strerror}; check the disk') from None
    finally:
        os.close(descriptor)
    try:
        yield data
    except BaseException:
        with contextlib.suppress(BufferError):
            data.close()
        raise


def _view(data: mmap.mmap, info: TensorInfo) -> Tensor:
    rows = 1 if len(info.shape) == 1 else int(np.prod(info.shape[:-1]))
    flat = np.frombuffer(data, np.uint8, info.nbytes, info.start)
    return Tensor(info.name, info.type, info.shape, flat.reshape(rows, -1))


def _rope_divisors(
    data: mmap.mmap, tensors: Mapping[str, TensorInfo]
) -> np.ndarray | None:
    """Read ``rope_freqs.weight`` as float64 where there is one."""
    info = tensors.get('rope_freqs.weight')
    if info is None:
        return None
    if info.type != GGMLQuantizationType.F32 or info.nbytes > MAX_DIVISOR_BYTES:
        raise ModelFileError(
            f'tensor rope_freqs.weight must be a short F32 vector but is {info.type.name} '
            f'{list(info.shape)}; get an intact file')
    return _view(data, info).dequantize(dtype=np.float64)


@functools.cache
def _dequantizable(kind: GGMLQuantizationType) -> bool:
    """Say whether the installed gguf package dequantizes a type, by asking it to."""
    block = np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8)
    try:
        dequantize(block, kind)
    except NotImplementedError:
        return False
    return True
