#!/bin/sh
# The story of a checkpoint, end to end: demo.sh TOOL [FOLDER]. Everything is written below FOLDER (default: a temporary
# one, removed at the end). Stops at the first step that does not end as it should.
set -eu

tool=${1:?usage: demo.sh TOOL [FOLDER]}
if [ $# -gt 1 ]; then
  folder=$2
  mkdir -p "$folder"
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi

say() {
  printf '\n--- %s\n' "$1"
}

# step CODE ARGUMENTS...: shows the command, runs it, and insists on its exit code.
step() {
  expected=$1
  shift
  printf '\n$ moe64 %s\n' "$*"
  code=0
  (cd "$folder" && "$tool" "$@") || code=$?
  if [ "$code" -ne "$expected" ]; then
    printf 'demo: exit code %s, expected %s\n' "$code" "$expected" >&2
    exit 1
  fi
}

case $tool in
  /*) ;;
  *) tool=$(pwd)/$tool ;;
esac

say 'A small GLM-4.7-Flash with FP8 experts, as its release is stored: per-row scales, some layers left in BF16.'
step 0 synth glm --like glm-4.7-flash --scale-down 8 --layers 6
say 'What is it? Headers and configs tell; no weight is read.'
step 0 inspect glm
say 'Is it whole? Every byte is read once: codes, scales, and whether they belong together.'
step 0 check glm --report report.html
say 'One layer straight from the files, forward and backward, against a reference in double precision.'
step 0 run glm --layer 3 --tokens 64 --backward
say 'To BF16, for tools that know no FP8. It streams, and would resume after a kill.'
step 0 convert glm glm-bf16 --to bf16
step 0 inspect glm-bf16
say 'Tensor by tensor the numbers are the same, but for the one rounding to BF16: at most 2^-8 of a number.'
step 0 diff glm glm-bf16 --tolerance 0.004 --shown 4
say 'The same checkpoint with one scale missing: other loaders take the codes for weights and go on.'
step 0 synth broken --like glm-4.7-flash --scale-down 8 --layers 6 --break dropped-scale
step 1 check broken
say 'It was caught: nothing that is not whole is run.'
step 1 inspect broken
