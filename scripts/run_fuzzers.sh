#!/usr/bin/env bash
# scripts/run_fuzzers.sh FOLDER SECONDS: runs every fuzzer of the folder that long; a finding ends it with an error.
# The corpus grows in FOLDER/corpus/NAME; seeds come from tests/fuzz/NAME where that folder exists, words to try from
# tests/fuzz/NAME.dict.
set -euo pipefail

folder=$1
seconds=$2
seeds_root=$(dirname "$0")/../tests/fuzz
found=0
for fuzzer in "$folder"/*_fuzz; do
  [[ -x $fuzzer ]] || continue
  found=1
  name=$(basename "$fuzzer" _fuzz)
  corpus=("$folder/corpus/$name")
  mkdir -p "${corpus[0]}"
  if [[ -d $seeds_root/$name ]]; then
    corpus+=("$seeds_root/$name")
  fi
  options=()
  if [[ -f $seeds_root/$name.dict ]]; then
    options+=("-dict=$seeds_root/$name.dict")
  fi
  echo "== $name for $seconds s"
  "$fuzzer" -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$folder/$name-" "${options[@]}" \
    "${corpus[@]}"
done
if [[ $found -eq 0 ]]; then
  echo "there are no fuzzers yet: add tests/fuzz/NAME_fuzz.cpp"
fi
