#!/usr/bin/env bash
# Installs what is missing and nothing else. It installs Debian packages (root or sudo), and
# LibTorch in .venv/ at the root. For the tests it installs other people's trainers in
# .venv-trainers/. Done in well under a second where all is there.
#
#   scripts/setup.sh [--launcher-only] [--tests [--first]] [--fuzzers]
#
# --first: only what building needs. The environments of the tests come with a second call, while
# the first build runs.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
source "$root/scripts/common.sh"

packages=(
  g++ cmake ninja-build ccache pkg-config python3
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libboost1.81-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libssl-dev zlib1g-dev libjemalloc-dev
)
engine_packages=(python3-venv libdeflate-dev libturbojpeg0-dev libpng-dev)
test_packages=(python3-venv libgtest-dev libdeflate-dev libturbojpeg0-dev libpng-dev clang-format
  doxygen clang-tidy iproute2 nftables procps
  python3-jsonschema python3-prometheus-client openssl etcd-server
  # Schedulers (tests/schedulers), and what reads packages, pages and completions, and clean systems
  # to try them on (tests/install).
  slurm-wlm openmpi-bin mpich lintian man-db groff mandoc bash-completion zsh fish debootstrap)
fuzzer_packages=(clang-14 libclang-rt-14-dev)  # libFuzzer and the sanitizers' runtimes

with_engine=1
with_tests=0
with_environments=1
for word in "$@"; do
  case $word in
    --launcher-only) with_engine=0 ;;
    --tests)
      with_tests=1
      packages+=("${test_packages[@]}")
      ;;
    --first) with_environments=0 ;;
    --fuzzers) packages+=("${fuzzer_packages[@]}") ;;
    *) fail "$word: expected --launcher-only, --tests, --first or --fuzzers" ;;
  esac
done
((with_engine == 0)) || packages+=("${engine_packages[@]}")

as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "cannot install Debian packages: neither root nor sudo (missing: ${missing[*]})"
  fi
}

apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=3 "$@"
}

install_packages() {
  local installed
  # dpkg-query exits non-zero when it does not know one of the names; those are just not in the list
  # then.
  installed=$(
    dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' "${packages[@]}" 2>/dev/null || true
  )
  missing=()
  for package in "${packages[@]}"; do
    grep -qxF "ii $package" <<<"$installed" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || fail "no apt-get here; on Debian 12 this installs: ${missing[*]}"
  step "installing Debian packages: ${missing[*]}"
  # A machine whose package lists are there and fresh enough needs no update.
  if ! quietly "$log_folder/apt-install.log" apt_get install -y --no-install-recommends \
    "${missing[@]}" 2>/dev/null; then
    step "fetching the package lists first"
    quietly "$log_folder/apt-update.log" apt_get update
    quietly "$log_folder/apt-install.log" apt_get install -y --no-install-recommends "${missing[@]}"
  fi
}

# The tests start an etcd of their own. Debian's package starts one and has it start at boot, on the
# ports that everybody knows.
without_etcd_service() {
  [[ " ${missing[*]} " == *" etcd-server "* ]] || return 0
  if [[ -d /run/systemd/system ]]; then
    as_root systemctl --quiet disable --now etcd.service
  else
    as_root service etcd stop >/dev/null 2>&1 || true
    as_root update-rc.d etcd disable >/dev/null 2>&1 || true
  fi
}

# pip writes RECORD last, so a package that has one is whole.
has_wheel() {
  local name=${1%%==*} version=${1##*==}
  compgen -G "$root/.venv/lib/python3*/site-packages/$name-$version.dist-info/RECORD" >/dev/null
}

install_python_packages() {
  local requirement whole=1
  while read -r requirement; do
    has_wheel "$requirement" || whole=0
  done < <(grep -v '^#' "$root/scripts/requirements.txt")
  if ((whole)) && "$root/.venv/bin/python" -c '' 2>/dev/null; then return; fi
  if ! "$root/.venv/bin/python" -c '' 2>/dev/null; then
    step "making the virtual environment .venv"
    python3 -m venv --clear "$root/.venv"
  fi
  step "installing LibTorch into .venv (pip; 4.7 GB, a minute or more)"
  quietly "$log_folder/pip.log" "$root/.venv/bin/python" -m pip install \
    --disable-pip-version-check -r "$root/scripts/requirements.txt"
}

# has_packages VENV REQUIREMENTS: whether the environment has all of them already.
has_packages() {
  "$1/bin/python" "$root/scripts/lacking_packages.py" "$2" >/dev/null 2>&1
}

# pip_install LOG VENV REQUIREMENTS [FLAG]: installs them, with pip's output in LOG.
pip_install() {
  quietly "$1" "$2/bin/python" -m pip install --disable-pip-version-check "${@:4}" -r "$3" \
    2>/dev/null
}

# accelerate, transformers, Lightning, fastai, mpi4py and timm, for tests/trainers and
# tests/worker/checkpoint. The file names all that they need here, so pip looks for no more. They
# run on the PyTorch of .venv: a second one would take gigabytes and minutes. Its site-packages come
# last on their path, by a .pth file. So pip installs beside it, never into it. A pin that .venv has
# already counts as installed. `python -m venv` is .venv's own, since both must be one Python; pip
# is .venv's too. A failure is no reason to stop: without this environment those tests are skipped,
# and say why.
install_trainers() {
  local venv=$root/.venv-trainers requirements=$root/scripts/trainers-requirements.txt
  if has_packages "$venv" "$requirements"; then return; fi
  step "installing trainers to test with into .venv-trainers (pip; 700 MB, a minute)"
  "$root/.venv/bin/python" -m venv --clear --without-pip "$venv"
  local packages=("$venv"/lib/python3*/site-packages)
  echo "../../../../.venv/${packages[0]#"$venv/"}" >"${packages[0]}/environment_of_the_engine.pth"
  local log=$log_folder/pip-trainers.log
  pip_install "$log" "$venv" "$requirements" --no-deps ||
    step "trainers not installed (whole output: $log); tests/trainers will be skipped"
}

# Kubernetes' schemas and Kubeflow's models, for the manifests in examples/kubernetes. Not in .venv,
# whose packages are those of PyTorch. A failure is no reason to stop: those tests are skipped then,
# and say why.
install_manifest_models() {
  local venv=$root/.venv-manifests requirements=$root/scripts/manifests-requirements.txt
  if has_packages "$venv" "$requirements"; then return; fi
  step "installing models of Kubernetes' objects into .venv-manifests (pip; 200 MB, some seconds)"
  local log=$log_folder/pip-manifests.log
  if "$root/.venv/bin/python" -m venv --clear "$venv" &&
    pip_install "$log" "$venv" "$requirements"; then return; fi
  step "not installed (whole output: $log); tests of the manifests will be skipped"
}

# Installs the tools that make the wheel, and those with which its tests look at it. Without it
# those tests are skipped, and say so.
install_wheel_tools() {
  local venv=$root/.venv-wheel requirements=$root/scripts/wheel-tests-requirements.txt
  mkdir -p "$log_folder"
  if ! "$root/scripts/build_wheel.sh" --tools 2>"$log_folder/wheel-tools.log"; then
    step "what makes a wheel is not installed (whole output: $log_folder/wheel-tools.log);" \
      "tests of the wheel will be skipped"
    return 0
  fi
  if has_packages "$venv" "$requirements"; then return; fi
  step "installing what looks at the wheel into .venv-wheel (pip; 100 MB, some seconds)"
  local log=$log_folder/pip-wheel-tests.log
  pip_install "$log" "$venv" "$requirements" ||
    step "not installed (whole output: $log); some tests of the wheel will be skipped"
}

log_folder=$root/out/logs
missing=()
install_packages
without_etcd_service
((with_engine == 0)) || install_python_packages
((with_environments)) || exit 0
((with_engine == 0 || with_tests == 0)) || install_trainers
((with_engine == 0 || with_tests == 0)) || install_manifest_models
((with_tests == 0)) || install_wheel_tools
