"""Files that moe64 writes, read by the safetensors package, and the other way round.

Needs the packages of bench/requirements.txt: run `make interop`.
"""

import hashlib
import pathlib
import shutil
import unittest

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tool import Interop, models, raw_tensors, run_json, shards, synth

# How the format's dtypes are called in torch.
TORCH = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu, "I16": torch.int16, "U16": torch.uint16,
    "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32,
    "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64, "C64": torch.complex64,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F4": torch.float4_e2m1fn_x2,
}


def bits(tensor):
    """The bytes of a tensor of any dtype."""
    flat = tensor.contiguous()
    if flat.numel() == 0:
        return b""
    return flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.dim() else bits(flat.reshape(1))


class Written(Interop):
    """What moe64 writes."""

    def test_every_model_is_read_bit_for_bit(self):
        for like in models():
            with self.subTest(like=like):
                folder = synth(self.folder, like)
                for shard in shards(folder):
                    own = raw_tensors(shard)
                    theirs = load_file(shard)
                    self.assertEqual(set(own), set(theirs))
                    with safe_open(shard, "pt") as opened:
                        self.assertEqual(opened.metadata()["format"], "pt")
                        for name, (dtype, shape, data) in own.items():
                            part = opened.get_slice(name)
                            self.assertEqual((part.get_dtype(), part.get_shape()), (dtype, shape))
                            self.assertEqual(theirs[name].dtype, TORCH[dtype])
                            self.assertEqual(bits(theirs[name]), data, name)
                shutil.rmtree(folder)


class Read(Interop):
    """What the safetensors package writes."""

    def test_every_dtype_it_can_write_is_read(self):
        tensors, refused = {}, []
        for word, dtype in TORCH.items():
            data = torch.arange(48, dtype=torch.uint8)
            width = torch.empty(0, dtype=dtype).element_size()
            tensor = data.view(dtype).reshape(-1, 2) if dtype != torch.bool else (data % 2).to(dtype).reshape(-1, 2)
            try:
                save_file({word: tensor}, self.folder / f"{word}.safetensors")
                tensors[word] = tensor
            except (KeyError, ValueError, RuntimeError, TypeError, NotImplementedError) as refusal:
                refused.append((word, str(refusal), width))
            finally:
                (self.folder / f"{word}.safetensors").unlink(missing_ok=True)
        self.assertGreaterEqual(set(tensors), set(TORCH) - {"F4", "U16", "U32", "U64", "C64"}, refused)
        tensors["empty"] = torch.empty(0, 7, dtype=torch.bfloat16)
        tensors["number"] = torch.tensor(1.5)
        path = self.folder / "all.safetensors"
        save_file(tensors, path, metadata={"format": "pt", "made": "by the safetensors package"})
        found = run_json("inspect", path, codes=(0, 1))
        words = {entry["type"] for entry in found["types"]}
        self.assertEqual(words, (set(tensors) - {"empty", "number"}) | {"BF16", "F32"})
        self.assertEqual(found["totals"]["tensors"], len(tensors))
        self.assertEqual(found["totals"]["tensor_bytes"], sum(len(bits(tensor)) for tensor in tensors.values()))

    def test_the_same_tensors_saved_by_it_do_not_differ(self):
        for like in ("glm-4.7-flash", "deepseek-v4-flash", "gpt-oss", "kimi-k2-thinking", "deepseek-v3-nvfp4"):
            with self.subTest(like=like):
                folder = synth(self.folder, like)
                again = self.folder / "again"
                again.mkdir()
                for shard in shards(folder):
                    save_file(load_file(shard), again / shard.name, metadata={"format": "pt"})
                for path in folder.iterdir():
                    if path.suffix == ".json":
                        shutil.copy(path, again)
                found = run_json("diff", folder, again)
                self.assertTrue(found["same"], found)
                inspected = [run_json("inspect", path) for path in (folder, again)]
                for one in inspected:
                    one.pop("checkpoint")
                self.assertEqual(inspected[0]["layers"], inspected[1]["layers"])
                shutil.rmtree(folder)
                shutil.rmtree(again)

    def test_one_bit_is_seen(self):
        folder = synth(self.folder, "glm-5.2")
        again = self.folder / "again"
        shutil.copytree(folder, again)
        shard = shards(again)[-1]
        tensors = load_file(shard)
        name = next(name for name in sorted(tensors) if name.endswith("up_proj.weight") and ".experts." in name)
        tensors[name].view(torch.uint8)[3, 5] ^= 1
        save_file(tensors, shard, metadata={"format": "pt"})
        found = run_json("diff", folder, again, codes=(1,))
        self.assertFalse(found["same"])
        self.assertIn(name, str(found))


class Digest(Interop):
    """The numbers of a seed are a promise: tests elsewhere may rely on them."""

    def test_bytes_of_seed_1(self):
        folder = synth(self.folder, "mixtral")
        digest = hashlib.sha256()
        for path in sorted(pathlib.Path(folder).iterdir()):
            digest.update(path.read_bytes())
        other = hashlib.sha256()
        for path in sorted(synth(self.folder, "mixtral", name="other").iterdir()):
            other.update(path.read_bytes())
        self.assertEqual(digest.hexdigest(), other.hexdigest())


if __name__ == "__main__":
    unittest.main()
