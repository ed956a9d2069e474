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

from glob import glob

from setuptools import find_packages, setup

package_name = 'reflex_llm_ros'

setup(
    name=package_name,
    version='0.1.0',
    description='A lifecycle node that runs a Qwen3 language model on the robot itself',
    author='The reflex_llm_ros authors',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=[package_name, package_name + '.*']),
    # reflex_llm_ros/kernels is a link to kernels/: the engine finds the sources with
    # importlib.resources alike in a checkout, in a symlink install and in a wheel.
    package_data={package_name: ['py.typed', 'kernels/*.cu', 'kernels/*.cuh']},
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
        ('share/' + package_name + '/launch', glob('launch/*.launch.py')),
        ('share/' + package_name + '/config', glob('config/*.yaml')),
    ],
    zip_safe=False,
    install_requires=['gguf', 'jinja2', 'numpy', 'rich', 'tokenizers'],
    extras_require={
        'cuda': ['cupy-cuda12x'],
        'bench': ['matplotlib'],
        'test': ['hypothesis', 'psutil', 'pytest', 'pytest-timeout', 'pyyaml'],
    },
    entry_points={
        'console_scripts': [
            'reflex_llm_node = reflex_llm_ros.node:main',
            'reflex_llm_chat = reflex_llm_ros.cli.chat:main',
            'reflex_llm_inspect = reflex_llm_ros.cli.inspect_model:main',
            'reflex_llm_bench = reflex_llm_ros.cli.bench:main',
        ],
    },
)
