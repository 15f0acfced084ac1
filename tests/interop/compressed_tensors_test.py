"""Synthetic checkpoints in compressed-tensors, opened by Transformers with that package.

Needs the packages of bench/requirements.txt and tests/interop/requirements.txt: run `make interop`.
"""

import os
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"
import compressed_tensors  # noqa: F401  (Transformers looks for it by itself; without it this file must fail)
import torch

from tool import Interop, run, synth
from transformers_test import logits, opened

RELEASES = ["glm-4.5", "glm-4.7-flash", "qwen3-30b-fp8-block", "qwen3-30b-mxfp4"]


class Opened(Interop):
    def test_without_a_missing_or_unexpected_key_and_as_convert_writes_them(self):
        for like in RELEASES:
            with self.subTest(like=like):
                folder = synth(self.folder, like)
                plain = self.folder / (like + "-bf16")
                run("convert", folder, plain, "--to", "bf16")
                model = opened(folder)
                self.assertTrue(torch.isfinite(logits(model)).all())
                theirs, ours = model.state_dict(), opened(plain).state_dict()
                for name, tensor in ours.items():
                    same = torch.equal(theirs[name].to(torch.bfloat16), tensor.to(torch.bfloat16))
                    self.assertTrue(same, f"{like} {name}")


if __name__ == "__main__":
    unittest.main()
