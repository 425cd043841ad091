#!/usr/bin/env bash
# Makes the wheel from a built tree, in a few seconds: out/wheel/ddprun-VERSION-….whl, whose name
# is the last line printed. Its tools from PyPI lie in .venv-wheel/, made by the first call.
#
#   scripts/build_wheel.sh [FOLDER]
#
# The wheel goes into FOLDER. DDPRUN names the program (default build/bin/ddprun).
#   scripts/build_wheel.sh --tools      only .venv-wheel/
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
source "$root/scripts/common.sh"
(($# <= 1)) || fail "$2: expected one folder"
[[ ${1:-} != -* || $1 == --tools ]] || fail "$1: expected a folder or --tools"

requirements=$root/scripts/wheel-requirements.txt
if ! cmp -s "$requirements" "$root/.venv-wheel/installed.txt"; then
  step "installing what makes a wheel into .venv-wheel (pip)" >&2
  python3 -m venv --clear "$root/.venv-wheel"
  quietly "$root/out/logs/pip-wheel.log" "$root/.venv-wheel/bin/python" -m pip install \
    --disable-pip-version-check -r "$requirements"
  cp "$requirements" "$root/.venv-wheel/installed.txt"
fi
[[ ${1:-} != --tools ]] || exit 0

folder=$(realpath -m "${1:-$root/out/wheel}")
mkdir -p "$folder"
cd "$root"
quietly "$root/out/logs/wheel.log" "$root/.venv-wheel/bin/python" -m hatchling build -t wheel \
  -d "$folder"
ls -t "$folder"/ddprun-*.whl | head -n 1
