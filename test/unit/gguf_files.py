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

"""GGUF files for the loader's tests: a very small one, and rewriting of its parts."""

from collections.abc import Collection, Mapping
import mmap
from pathlib import Path
from typing import Any

from gguf import GGUFValueType, GGUFWriter
import numpy as np
from reflex_llm_ros.engine.gguf_header import Header, read_header
from reflex_llm_ros.synthetic.model_shape import ModelShape
from reflex_llm_ros.synthetic.qwen3_gguf import generate

SMALL = ModelShape(
    block_count=2, embedding_length=64, feed_forward_length=96, head_count=4,
    head_count_kv=2, head_dim=16, vocab_size=0, context_length=64)


def small_model(path: Path, **options: Any) -> str:
    """Generate a model whose header is larger than its weights; the path."""
    generate(str(path), SMALL, **{'mix': 'q8_0', **options})
    return str(path)


def header_of(path: str) -> Header:
    """Read a file's header."""
    with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return read_header(data)


def rewrite(
    source: str,
    target: Path,
    *,
    without: Collection[str] = (),
    more: Mapping[str, np.ndarray] | None = None,
) -> str:
    """Copy a file, without some tensors and with other float tensors; the path."""
    content = Path(source).read_bytes()
    header = header_of(source)
    writer = GGUFWriter(target, str(header.metadata['general.architecture']))
    for key, value in header.metadata.items():
        if isinstance(value, str):
            kind = GGUFValueType.STRING
        elif isinstance(value, bool):
            kind = GGUFValueType.BOOL
        elif isinstance(value, int):
            kind = GGUFValueType.UINT32
        elif isinstance(value, float):
            kind = GGUFValueType.FLOAT32
        else:
            kind = GGUFValueType.ARRAY
            value = value.tolist() if isinstance(value, np.ndarray) else list(value)
        if key != 'general.architecture':
            writer.add_key_value(key, value, kind)
    for info in header.tensors.values():
        if info.name not in without:
            data = np.frombuffer(content, np.uint8, info.nbytes, info.start)
            rows = info.shape[:-1] or (1,)
            writer.add_tensor(
                info.name, data.reshape(*rows, -1) if len(info.shape) > 1 else data,
                raw_dtype=info.type)
    for name, array in (more or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(target)
