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

"""The fastest of the kernels of equal results, measured once for each device and shape."""

from collections.abc import Callable, Mapping, Sequence
import hashlib
import json
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from reflex_llm_ros.engine.backends.cuda.device_info import DeviceInfo
from reflex_llm_ros.engine.backends.cuda.disk_cache import cache_folder, store
from reflex_llm_ros.engine.backends.cuda.q8_activations import Kind
from reflex_llm_ros.engine.backends.cuda.q8_choice import suffixes
from reflex_llm_ros.engine.backends.cuda.sources import kernel_source
from reflex_llm_ros.engine.errors import DeviceError

Launch = Callable[[str], None]
"""Launches a kernel of one layer, given the end of its name."""

REPEATS = 3
MOST_LAYERS = 8


def fastest_variants(
    device: Any, kind: Kind, products: Mapping[str, Sequence[Launch]]
) -> dict[str, str]:
    """
    Choose a variant for each product, from the cache where it is known there.

    Parameters
    ----------
    device
        Where ``products`` launch.
    kind
        Of the activations.
    products
        By kernel and shape, ``q8_qkv 6144x2560``, the launches of a model's layers: several, so
        that the second-level cache helps none. Their results are of no account.

    Returns
    -------
    dict
        The end of the kernel's name for each product that has several.

    """
    path = _path(device.info, kind)
    known = _read(path)
    chosen = {
        product: known[product] for product in products
        if known.get(product) in suffixes(product, kind)}
    new = measure_variants(device, kind, {
        product: launches for product, launches in products.items()
        if product not in chosen and len(suffixes(product, kind)) > 1})
    if new:
        store(path, json.dumps({**known, **new}, indent=2).encode())
    return {**chosen, **new}


def measure_variants(
    device: Any, kind: Kind, products: Mapping[str, Sequence[Launch]]
) -> dict[str, str]:
    """Measure which variant of each product is the fastest; see ``fastest_variants``."""
    chosen = {}
    for product, launches in products.items():
        times = {
            end: _seconds(device, launches[:MOST_LAYERS], end) for end in suffixes(product, kind)}
        chosen[product] = min(times, key=times.__getitem__)
    return chosen


def _seconds(device: Any, launches: Sequence[Launch], end: str) -> float:
    def run() -> None:
        for launch in launches:
            launch(end)

    try:
        run()
        replay = device.capture(run)
        replay()
        return float(median(device.elapsed(replay) for _ in range(REPEATS)))
    except DeviceError:
        return inf


def _path(info: DeviceInfo, kind: Kind) -> Path:
    source = kernel_source('q8_layer')
    parts = [
        info.name, repr(info.capability), repr(info.multiprocessors), kind.name, source.code,
        *(text for _, text in sorted(source.headers.items()))]
    digest = hashlib.sha256('\0'.join(parts).encode()).hexdigest()[:24]
    return cache_folder() / f'q8-variants-{digest}.json'


def _read(path: Path) -> dict[str, str]:
    """Return what is known; nothing where the file is missing or damaged."""
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
