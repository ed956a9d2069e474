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
Write a model with every matrix in Q8_0, from a file of any types.

``python benchmarks/requantize_q8_0.py MODEL.gguf OUT.gguf``: the weights are those that the file's
own types stand for, rounded once more.
"""

import argparse

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from reflex_llm_ros.synthetic.quantize import quantize

OWN = ('GGUF.', 'general.architecture', 'general.file_type')


def main() -> None:
    """Convert a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('model')
    parser.add_argument('out')
    options = parser.parse_args()
    reader = GGUFReader(options.model)
    writer = GGUFWriter(options.out, reader.fields['general.architecture'].contents())
    for name, field in reader.fields.items():
        if not name.startswith(OWN):
            kind = field.types[0]
            sub_type = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
            continue
        blocks = quantize(values, GGMLQuantizationType.Q8_0)
        writer.add_tensor(tensor.name, blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == '__main__':
    main()
