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

"""Which kernel files a model needs, and the macros that leave out what other models need."""

from reflex_llm_ros.engine.backends.cuda.device_info import DeviceInfo
from reflex_llm_ros.engine.backends.cuda.load_plan import LoadPlan, PACKED
from reflex_llm_ros.engine.backends.cuda.packed import REPACK
from reflex_llm_ros.engine.backends.cuda.persistent import DECODE, defines
from reflex_llm_ros.engine.backends.cuda.q8_activations import KINDS
from reflex_llm_ros.engine.backends.cuda.q8_steps import KERNEL_FILES as Q8_FILES
from reflex_llm_ros.engine.backends.cuda.q8_steps import PACKED_KERNEL_FILES as PACKED_Q8_FILES
from reflex_llm_ros.engine.backends.cuda.sampling import SAMPLE
from reflex_llm_ros.engine.backends.cuda.sources import Defines
from reflex_llm_ros.engine.config import EngineConfig
from reflex_llm_ros.engine.gguf_model import ModelConfig

BLOCK_FILES = ('gemm', 'gemv', 'embed')
PACKED_FILES = ('packed_gemm', 'packed_embed')
KINDLESS = ('q8_embed', 'q8_heads')
"""Files for Q8_0 that know nothing of activations."""
WHOLE_FILES = ('norm', 'rope', 'kv_cache', 'elementwise', 'argmax', SAMPLE)
"""Files of which every model needs everything."""


def kernel_files(
    plan: LoadPlan, model: ModelConfig, config: EngineConfig, info: DeviceInfo
) -> dict[str, Defines]:
    """Return the files with their macros, those that take long to compile first."""
    types = {'WEIGHT_TYPES(EACH, MACRO)': ' '.join(
        f'EACH({name}, MACRO)' for name in plan.types)}
    words = {'Q8_WORDS': KINDS[config.q8_activations].words}
    files: dict[str, Defines] = {}
    if plan.placement == PACKED:
        files[DECODE] = defines(model, plan.types, plan.activations, config.kv_cache, info)
        files |= dict.fromkeys((*(() if plan.q8 else PACKED_FILES), REPACK), types)
    elif plan.types:
        files |= dict.fromkeys(BLOCK_FILES, types)
    if plan.q8:
        names = PACKED_Q8_FILES if plan.placement == PACKED else Q8_FILES
        files |= {name: {} if name in KINDLESS else words for name in names}
    files['attention'] = {
        'HEAD_DIM': model.head_dim, 'INT8_CACHE': int(config.kv_cache == 'int8')}
    return files | dict.fromkeys(WHOLE_FILES, {})
