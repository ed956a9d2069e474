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

"""The shim runs kernels as a GPU would, and catches what a GPU would not report."""

from typing import Any

from devices import CheckedShim, constant, KernelError, PlainShim, poisoned
import numpy as np
import pytest


def test_dynamic_shared_memory_and_barriers(device: Any, rng: np.random.Generator) -> None:
    x = constant(rng.standard_normal(300, np.float32))
    y = poisoned(300, np.float32)
    device.run('probe', 'probe_reverse', 3, 128, [y, x, np.int32(300)], 128 * 4)
    expected = [x[start:start + 128][::-1] for start in (0, 128, 256)]
    np.testing.assert_array_equal(y, np.concatenate(expected))


def test_warp_sum_and_static_shared_memory(device: Any, rng: np.random.Generator) -> None:
    x = constant(rng.integers(-100, 100, 256).astype(np.float16))
    y = poisoned(2, np.float32)
    device.run('probe', 'probe_block_sum', 2, 128, [y, x])
    np.testing.assert_array_equal(y, x.reshape(2, 128).sum(axis=1, dtype=np.float32))


def test_halves_round_to_even_and_saturate(device: Any, rng: np.random.Generator) -> None:
    special = [np.inf, -np.inf, 65504, 65519, 65520, -1e30, 2.0 ** -24, 2.0 ** -25, 1 + 2.0 ** -11]
    x = np.concatenate([special, rng.standard_normal(55) * 10.0 ** rng.integers(-8, 4, 55)])
    x = constant(x.astype(np.float32))
    y = poisoned(64, np.float16)
    device.run('probe', 'probe_round', 1, 64, [y, x])
    np.testing.assert_array_equal(y, np.clip(x, -65504, 65504).astype(np.float16))
    device.run('probe', 'probe_round', 1, 1, [y, constant(np.full(1, np.nan, np.float32))])
    assert np.isnan(y[0])


def test_shuffles_and_ballots(device: Any) -> None:
    y = np.full(192, -1, np.int32)
    device.run('probe', 'probe_shuffles', 1, 32, [y])
    lane = np.arange(32)
    expected = [
        np.full(32, 5), np.where(lane < 3, lane, lane - 3),
        np.where(lane % 8 < 5, lane + 3, lane), lane ^ 16,
        np.full(32, np.packbits(lane % 3 == 0, bitorder='little').view(np.int32)[0]),
        np.where(lane < 16, lane ^ 1, -1),
    ]
    np.testing.assert_array_equal(y.reshape(6, 32), expected)


def test_shared_memory_is_nan_in_every_block(shim: CheckedShim) -> None:
    y = np.zeros(64, np.float32)
    shim.run('probe', 'probe_uninitialized_shared', 3, 32, [y], 128)
    assert np.isnan(y).all()


def test_a_missing_barrier_shows(shim: CheckedShim) -> None:
    y = np.zeros((2, 64), np.float32)
    shim.run('probe', 'probe_missing_barrier', 2, 64, [y])
    assert np.isnan(y).any()


@pytest.mark.parametrize('kernel, message', [
    ('probe_divergent_barrier', 'never arrives at __syncthreads'),
    ('probe_divergent_shuffle', 'never arrives at a warp operation'),
])
def test_divergence_is_an_error(shim: CheckedShim, kernel: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        shim.run('probe', kernel, 1, 64, [poisoned(64, np.float32)])
    test_dynamic_shared_memory_and_barriers(shim, np.random.default_rng())


@pytest.mark.parametrize('kernel, offset, message', [
    ('probe_read', 101, 'heap-buffer-overflow'),
    ('probe_read', -1, 'heap-buffer-overflow'),
    ('probe_read_word', 98, 'heap-buffer-overflow|misaligned'),
    ('probe_read_word', 2, 'misaligned address'),
])
def test_a_read_outside_a_buffer_is_an_error(
        shim: CheckedShim, kernel: str, offset: int, message: str) -> None:
    x = constant(np.arange(101, dtype=np.uint8))
    y = poisoned(1, np.uint32)
    shim.run('probe', 'probe_read', 1, 1, [y, x, np.int64(100)])
    assert y.view(np.uint8)[0] == 100
    with pytest.raises(KernelError, match=message):
        shim.run('probe', kernel, 1, 1, [y, x, np.int64(offset)])


def test_a_read_outside_shared_memory_is_an_error(shim: CheckedShim) -> None:
    with pytest.raises(KernelError, match='insufficient space|buffer-overflow|out of bounds'):
        shim.run('probe', 'probe_shared_overflow', 1, 32, [poisoned(32, np.float32), np.int32(32)])


def test_argument_sizes_are_checked(shim: CheckedShim) -> None:
    x = constant(np.zeros(300, np.float32))
    y = poisoned(300, np.float32)
    with pytest.raises(KernelError, match='argument 2 has 8 bytes, the kernel takes 4'):
        shim.run('probe', 'probe_reverse', 3, 128, [y, x, np.int64(300)], 128 * 4)
    with pytest.raises(KernelError, match='2 arguments, the kernel takes 3'):
        shim.run('probe', 'probe_reverse', 3, 128, [y, x], 128 * 4)
    with pytest.raises(TypeError, match='NumPy type'):
        shim.run('probe', 'probe_reverse', 3, 128, [y, x, 300], 128 * 4)
    with pytest.raises(KernelError, match='no kernel of this name'):
        shim.run('probe', 'probe_unknown', 1, 1, [])


def test_an_array_given_twice_is_one_buffer(device: Any) -> None:
    x = np.arange(128, dtype=np.float32)
    device.run('probe', 'probe_reverse', 1, 128, [x, x, np.int32(128)], 128 * 4)
    np.testing.assert_array_equal(x, np.arange(128)[::-1])


def test_the_plain_shim_works_on_arrays_and_addresses(rng: np.random.Generator) -> None:
    plain = PlainShim()
    x = rng.standard_normal(128).astype(np.float32)
    y = poisoned(128, np.float32)
    plain.run('probe', 'probe_reverse', 1, 128,
              [np.uint64(y.ctypes.data), constant(x), np.int32(128)], 128 * 4)
    np.testing.assert_array_equal(y, x[::-1])
    with pytest.raises(KernelError, match='never arrives'):
        plain.run('probe', 'probe_divergent_shuffle', 1, 64, [y])


def test_blocks_that_run_together_wait_for_each_other(shim: CheckedShim) -> None:
    slots = np.zeros(5, np.uint64)
    for tag in range(1, 9):
        y = poisoned(5, np.float32)
        shim.run('probe', 'probe_pass_on', 5, 70, [slots, y, np.uint32(tag)], 70 * 4, True)
        np.testing.assert_array_equal(y, [1, 3, 6, 10, 15])


def test_lanes_wait_while_others_are_at_a_warp_operation(shim: CheckedShim) -> None:
    slots = np.zeros(3, np.uint64)
    y = poisoned((3, 32), np.float32)
    shim.run('probe', 'probe_wait_in_a_warp', 3, 32, [slots, y, np.uint32(1)], together=True)
    np.testing.assert_array_equal(y, np.repeat([[10], [15], [5]], 32, axis=1))


@pytest.mark.parametrize('kernel, together', [
    ('probe_wait_for_each_other', True), ('probe_wait_for_each_other', False),
    ('probe_wait_in_a_warp', False)])
def test_waiting_for_ever_is_an_error(shim: CheckedShim, kernel: str, together: bool) -> None:
    slots, y = np.zeros(3, np.uint64), poisoned(96, np.float32)
    arguments = [slots, *([y] if kernel == 'probe_wait_in_a_warp' else []), np.uint32(1)]
    with pytest.raises(KernelError, match='waits for what never comes'):
        shim.run('probe', kernel, 3, 32, arguments, together=together)
    test_blocks_that_run_together_wait_for_each_other(shim)


def test_a_seed_gives_the_same_orders_again() -> None:
    def orders(seed: int) -> list[list[int]]:
        plain, results = PlainShim(seed), []
        for _ in range(8):
            order, count = poisoned(5, np.int32), np.zeros(1, np.int32)
            plain.run('probe', 'probe_order', 5, 32, [order, count], together=True)
            results.append(order.tolist())
        return results

    assert orders(7) == orders(7)
    assert orders(7) != orders(8)
    assert all(sorted(order) == list(range(5)) for order in orders(7))
