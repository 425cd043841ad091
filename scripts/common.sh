# Sourced by quickstart, run-tests, setup.sh and build_for_bench.sh. It has one line per step, how
# many compilers may run at once, and how build/ is configured.

# step TEXT…: says what is about to happen, with the seconds since the command began. DDPRUN_STARTED
# is handed down to scripts that a command calls, so that all count from one moment. So is
# DDPRUN_STEPS, a file that gets the lines, too.
export DDPRUN_STARTED="${DDPRUN_STARTED:-$(date +%s)}"
step() {
  printf '[%4d s] %s\n' "$(($(date +%s) - DDPRUN_STARTED))" "$*" |
    tee -a "${DDPRUN_STEPS:-/dev/null}"
}

fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# Compilers at once: one a processor, but no more than one per 2 GiB of memory. A translation unit
# with LibTorch's headers may need that. A container's limit counts where it is below the machine's
# memory.
build_jobs() {
  local cpus memory_kib limit jobs
  cpus=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [[ $limit =~ ^[0-9]+$ ]] && ((limit / 1024 < memory_kib)); then
    memory_kib=$((limit / 1024))
  fi
  jobs=$((memory_kib / (2 * 1024 * 1024)))
  ((jobs < cpus)) || jobs=$cpus
  ((jobs > 0)) || jobs=1
  echo "$jobs"
}

# quietly LOG COMMAND…: runs it with its output in LOG, and shows the end of that only if it fails.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 && return
  local code=$?
  tail -n 60 "$log" >&2
  printf 'failed (exit code %d): %s\nwhole output: %s\n' "$code" "$*" "$log" >&2
  return "$code"
}

# Sets `configure`: the arguments that make build/ a release build with the engine. Tests stay as
# run-tests left them, so that all commands share build/; a fresh build has none. Call in the root.
release_configuration() {
  configure=(--preset release -DDDPRUN_BUILD_WORKER=ON)
  [[ -e build/CMakeCache.txt ]] || configure+=(-DDDPRUN_BUILD_TESTS=OFF)
}
