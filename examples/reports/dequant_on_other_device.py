"""Dequantisation on a device that is not the current one.

The report: on models that are spread over GPUs unsloth launched its kernel on the current device while the tensor lived on
another: sometimes right, sometimes silently corrupted weights, NaN losses. Fixed there by now where it was reported.

    python dequant_on_other_device.py      # with two GPUs: on cuda:1 while cuda:0 is current; else on what there is
"""

import sys

import torch

import moe64
from moe64.compat.unsloth import weight_dequant_block


def main() -> int:
    count = torch.cuda.device_count()
    places = [f"cuda:{i}" for i in range(count)] or ["cpu"]
    codes, scales = torch.randn(256, 256).to(torch.float8_e4m3fn), torch.rand(2, 2) + 0.5
    grown = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    expected = (codes.float() * grown).bfloat16()
    for place in places:
        before = torch.cuda.current_device() if count else None
        y = weight_dequant_block(codes.to(place), scales.to(place))
        right = torch.equal(y.cpu(), expected) and str(y.device) == place
        unmoved = not count or torch.cuda.current_device() == before
        print(f"{place}, current device {before}: {'right' if right and unmoved else 'WRONG'}")
        if not (right and unmoved):
            return 1
    if count:
        try:  # and operands on two devices are an error, never a guess
            weight_dequant_block(codes.to("cuda:0"), scales)
        except moe64.DeviceMismatchError as refusal:
            print(f"mixed devices: {refusal}")
        else:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
