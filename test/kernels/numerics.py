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

"""How near a kernel's result has to be to the oracle's."""

import numpy as np

HALF_STEP = 2.0 ** -11
"""Largest relative error of rounding to fp16."""
SMALLEST_HALF = 2.0 ** -24
"""The distance between fp16 numbers near zero."""
FP16_TOLERANCE = 2e-3
"""Norm of the error over norm of the result, where activations are fp16."""


def assert_rounded(out: np.ndarray, reference: np.ndarray, fp32_error: float = 1e-6) -> None:
    """
    Check fp16 results one by one: a rounding of the reference, give or take fp32 arithmetic.

    ``fp32_error`` is relative to each reference, or an array of absolute errors.
    """
    slack = np.abs(reference) * fp32_error if np.isscalar(fp32_error) else fp32_error
    bound = np.abs(reference) * HALF_STEP + SMALLEST_HALF / 2 + slack
    error = np.abs(out.astype(np.float64) - reference)
    worst = np.unravel_index(np.argmax(error - bound), error.shape)
    assert np.all(error <= bound), f'{worst}: {out[worst]} is not {reference[worst]}'


def assert_near(out: np.ndarray, reference: np.ndarray, tolerance: float) -> None:
    """Check every row (last axis) by the norm of its error relative to the norm of the row."""
    error = np.linalg.norm(out.astype(np.float64) - reference, axis=-1)
    relative = error / np.linalg.norm(reference, axis=-1)
    assert np.all(relative <= tolerance), f'relative error {np.max(relative):.2e}'
