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

"""A node as a process: signals, executor, exit code."""

from collections.abc import Callable
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from typing import NoReturn, TypeVar

import rclpy
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

EXECUTOR_THREADS = 4
STOP_S = 1.2
END_S = 1.9
STUCK_S = 5.0
M_MMAP_THRESHOLD = -3
LARGE_BLOCK = 8 * 2**20
SPIN_S = 0.1
PAUSE_S = 0.001
SPIN_END_S = 0.5


StoppableNode = TypeVar('StoppableNode', bound=Node)


def run(
    make_node: Callable[[], StoppableNode],
    stop: Callable[[StoppableNode, float], bool],
    args: list[str] | None,
) -> int:
    """
    Spin a node until SIGINT, SIGTERM or a shutdown of its context, then end the process.

    Exit code 0; 1 is returned when the node cannot be made.

    ``stop`` ends what the node does while publishers still work, and says whether that was
    possible in so many seconds.

    rclpy's own signal handlers shut the context down at once, and nothing could be published
    after that. Here the node first gets to end its work and tell so.
    """
    _return_large_blocks()
    ending, end = os.pipe()
    os.set_blocking(end, False)
    # The handler in C writes to the pipe at once. Handlers in Python would have to interrupt what
    # the main thread waits for, but NVRTC sets SA_RESTART, with which waits go on.
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = make_node()
    except Exception as error:
        print(f'cannot start: {error}', file=sys.stderr)
        rclpy.try_shutdown()
        return 1
    executor = MultiThreadedExecutor(num_threads=EXECUTOR_THREADS)
    executor.add_node(node)
    stopped = threading.Event()
    # The main thread is left to the end, whatever a callback does.
    spinner = threading.Thread(target=_spin, args=(executor, node, stopped, end), daemon=True)
    spinner.start()
    os.read(ending, 1)
    threading.Thread(target=_end_anyway, daemon=True).start()
    # Should something hang that holds Python's lock, this one says where, and needs no lock.
    faulthandler.dump_traceback_later(STUCK_S, exit=True)

    clean = stop(node, STOP_S)
    stopped.set()
    spinner.join(SPIN_END_S)
    clean = clean and not spinner.is_alive()
    if clean:
        executor.shutdown(timeout_sec=0.0)
        node.destroy_node()
    rclpy.try_shutdown()
    _end()


def _end() -> NoReturn:
    """
    End the process here and now: all that had to be said and freed has been.

    A device call that does not return, or a thread of the middleware, would keep the
    interpreter from ending.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_anyway() -> None:
    """End the process although something in its ending hangs."""
    time.sleep(END_S)
    _end()


def _return_large_blocks() -> None:
    """
    Have glibc give every large block back to the system as soon as it is freed.

    By itself it raises its threshold with the sizes that it sees, to 32 MiB, and keeps freed
    blocks below that in the arena of the thread that had them: each model that is loaded on
    a new thread would leave some of its weights behind.
    """
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def _spin(
    executor: MultiThreadedExecutor, node: Node, stopped: threading.Event, end: int
) -> None:
    """
    Spin on after an exception: it belongs to one callback, the node to all.

    On Humble and Jazzy the request of an illegal transition raises here.
    """
    while not stopped.is_set() and executor.context.ok():
        try:
            executor.spin_once(timeout_sec=SPIN_S)
        except ExternalShutdownException:
            break
        except Exception as error:
            node.get_logger().error(f'a callback failed: {error}\n{traceback.format_exc()}')
        # rclpy hands a callback to its pool again and again until a thread has begun it, and
        # without a pause keeps Python's lock from that very thread: for seconds, beside an engine.
        time.sleep(PAUSE_S)
    os.write(end, b'\0')
