"""The moe64 tool and its files, for the tests beside it."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = os.environ.get("MOE64_TOOL", str(ROOT / "build/release/bin/moe64"))


def run(*arguments, codes=(0,)):
    done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    if done.returncode not in codes:
        raise AssertionError(f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def run_json(*arguments, codes=(0,)):
    return json.loads(run(*arguments, "--json", codes=codes).stdout)


def models():
    return [model["like"] for model in run_json("synth", "--list")["models"]]


def synth(folder, like, *arguments, name=None):
    """A small checkpoint below the folder; its path."""
    path = pathlib.Path(folder) / (name or like)
    run("synth", path, "--like", like, "--scale-down", "64", "--layers", "4", *arguments)
    return path


def shards(folder):
    return sorted(pathlib.Path(folder).glob("*.safetensors"))


def raw_tensors(path):
    """name: (dtype, shape, bytes), by nothing but the definition of the format."""
    data = pathlib.Path(path).read_bytes()
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: (entry["dtype"], entry["shape"], data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


class Interop(unittest.TestCase):
    def setUp(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="moe64-interop-")
        self.folder = pathlib.Path(self._temporary.name)

    def tearDown(self):
        self._temporary.cleanup()
