#!/usr/bin/env bash
# Called by the benchmarks before they start: builds programs into build/bin. Says one line if there
# is something to do. If all is up to date it is done in a quarter of a second.
#
#   scripts/build_for_bench.sh ddprun|bench-allreduce…
#
# Exit code 2 if it cannot build; its last line then has the command that installs what is missing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
source "$root/scripts/common.sh"
cd "$root"

log=out/logs/build-for-bench.log
give_up() {
  printf 'cannot build %s (whole output: %s); this installs what is missing: ./quickstart\n' \
    "$*" "$log" >&2
  exit 2
}

# -n is ninja's: it says what there is to do. It fails where nothing is configured, or a build
# without the engine.
known=1
to_do=$(cmake --build build --target "$@" -- -n 2>&1) || known=0
[[ $to_do != *"no work to do"* ]] || exit 0

jobs=$(build_jobs)
step "building $* in build/ (release, $jobs at a time)" >&2
if ((known == 0)); then
  release_configuration
  quietly "$log" cmake "${configure[@]}" 2>/dev/null || give_up "$@"
fi
quietly "$log" cmake --build build -j "$jobs" --target "$@" 2>/dev/null || give_up "$@"
