#!/bin/sh
# ccache.sh COMPILER ARGUMENTS...: compiles through ccache so that an object is found again in another folder: a second
# clone, the copy that the mutation tests make, a consumer's build of the sources. Paths below this tree count relative to
# the build folder, and the working directory does not count. The sloppiness is what ccache asks for before it looks behind
# a precompiled header.
CCACHE_BASEDIR=$(cd "$(dirname "$0")/.." && pwd)
CCACHE_NOHASHDIR=1
CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
export CCACHE_BASEDIR CCACHE_NOHASHDIR CCACHE_SLOPPINESS
for argument do
  shift
  case $argument in
    "-isystem=$CCACHE_BASEDIR"/*) # as CMake writes it for nvcc; ccache does not see a path there
      argument=-isystem=$(realpath --relative-to=. "${argument#-isystem=}") ;;
  esac
  set -- "$@" "$argument"
done
exec ccache "$@"
