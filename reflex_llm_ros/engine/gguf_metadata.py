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

"""Typed, ranged look-ups in a GGUF file's metadata."""

import math

import numpy as np
from reflex_llm_ros.engine.errors import ModelFileError
from reflex_llm_ros.engine.gguf_header import quote, Value


class Metadata:
    """
    The metadata of one file; every look-up names the key it fails on.

    A look-up without a default raises ModelFileError when the key is missing; each raises
    it when the value has another kind or lies outside its range.
    """

    def __init__(self, values: dict[str, Value]) -> None:
        self._values = values

    def has(self, key: str) -> bool:
        """Say whether the key is there."""
        return key in self._values

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Look up an integer from low to high."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, 'one integer', value)
        if not low <= value <= high:
            raise ModelFileError(
                f'{key} is {value}, outside {low} to {high}; get an intact file')
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """Look up a finite number from low to high."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, 'one number', value)
        if not (math.isfinite(value) and low <= value <= high):
            raise ModelFileError(
                f'{key} is {value:g}, outside {low:g} to {high:g}; get an intact file')
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """Look up a truth value."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, 'a truth value', value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Look up a string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, 'a string', value)
        return value

    def texts(
        self, key: str, default: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        """Look up an array of strings."""
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size == 0:
            return ()
        if not isinstance(value, tuple):
            raise self._wrong(key, 'an array of strings', value)
        return value

    def integers(self, key: str) -> np.ndarray:
        """Look up an array of n integers."""
        value = self._get(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in 'iu':
            raise self._wrong(key, 'an array of integers', value)
        return value

    def _get(self, key: str, default: Value | None) -> Value:
        value = self._values.get(key, default)
        if value is None:
            raise ModelFileError(f'the metadata key {key} is missing; get an intact file')
        return value

    @staticmethod
    def _wrong(key: str, wanted: str, value: Value) -> ModelFileError:
        if isinstance(value, (np.ndarray, tuple)):
            found = f'an array of {len(value)}'
        else:
            found = quote(str(value))
        return ModelFileError(f'{key} must be {wanted} but is {found}; get another file')
