#!/usr/bin/env bash
# scripts/setup.sh [group...]: installs the Debian packages that a task needs and that are missing.
# Groups: build (the default), tidy, fmt, fuzz, bench; cuda: where there is nvcc the headers of CUTLASS for the Hopper
# kernels (into .venv/cutlass, nothing of them is run). Touches neither network nor system when nothing is missing.
set -euo pipefail

cutlass=nvidia-cutlass==4.2.0.0
cutlass_folder=$(dirname "$0")/../.venv/cutlass

bring_cutlass() { # for the group cuda; a failure is no error: without them the build leaves the Hopper kernels out
  [[ " ${requested[*]} " == *" cuda "* ]] || return 0
  command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]] || return 0
  [[ $(cat "$cutlass_folder/version" 2>/dev/null) == "$cutlass" ]] && return 0
  echo "setup: fetching $cutlass"
  rm -rf "$cutlass_folder"
  if python3 -m pip install --quiet --root-user-action=ignore --no-deps --target "$cutlass_folder" "$cutlass"; then
    echo "$cutlass" >"$cutlass_folder/version"
  else
    echo "setup: $cutlass cannot be had; the build will have no Hopper kernels" >&2
  fi
}

# package, or package:command where any installation of the command will do
declare -A groups=(
  [build]="build-essential:c++ cmake:cmake ninja-build:ninja ccache:ccache pkg-config:pkg-config python3:python3
           python3-pip:pip3 libgtest-dev libgmock-dev libcli11-dev nlohmann-json3-dev libfmt-dev libhwy-dev"
  [tidy]="clang:clang++ clang-tidy:clang-tidy"
  [fmt]="clang-format:clang-format"
  [fuzz]="clang:clang++"
  [bench]="python3:python3 python3-venv"
  [cuda]="python3:python3 python3-pip:pip3"
)

is_installed() { # package[:command]
  local package=${1%%:*} command=${1#*:}
  if [[ $1 == *:* ]] && command -v "$command" >/dev/null; then
    return 0
  fi
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]]
}

if [[ $# -eq 0 ]]; then
  set -- build
fi
requested=("$@")
wanted=()
for group in "$@"; do
  if [[ -z ${groups[$group]:-} ]]; then
    echo "setup: unknown group '$group'; the groups are: ${!groups[*]}" >&2
    exit 2
  fi
  read -r -d '' -a entries <<<"${groups[$group]}" || true
  wanted+=("${entries[@]}")
done

if ! command -v dpkg-query >/dev/null; then
  bring_cutlass
  echo "setup: not a Debian system; please provide what these packages hold: ${wanted[*]%%:*}" >&2
  exit 0
fi

missing=()
for entry in "${wanted[@]}"; do
  is_installed "$entry" || missing+=("${entry%%:*}")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  bring_cutlass
  exit 0
fi

echo "setup: installing ${missing[*]}"
as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: neither root nor sudo. Ask an administrator to run:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
"${apt[@]}" update
"${apt[@]}" install --yes --no-install-recommends "${missing[@]}"
bring_cutlass
