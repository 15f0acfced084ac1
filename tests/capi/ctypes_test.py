"""moe64 from Python with nothing but ctypes: what a binding in any language has to declare, and that it works."""

import ctypes
import os
import struct
import unittest
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int16, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

F32, E4M3, INT32 = 0, 3, 9
SCALE_BLOCK, SCALE_ROW = 3, 2
GPTOSS_GLU = 3
INVALID_ARGUMENT, MISSING_SCALE, INVALID_EXPERT = 1, 5, 6


class Device(Structure):
    _fields_ = [("kind", c_uint8), ("reserved", c_uint8), ("ordinal", c_int16)]


class Stream(Structure):
    _fields_ = [("device", Device), ("reserved", c_uint32), ("handle", c_void_p)]


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_uint8), ("rank", c_uint8), ("device", Device),
                ("reserved", c_uint16), ("extent", c_int64 * 3), ("stride", c_int64 * 3)]


class Workspace(Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_int64), ("device", Device), ("reserved", c_uint32)]


class Granularity(Structure):
    _fields_ = [("kind", c_uint8), ("reserved", c_uint8 * 7), ("block_rows", c_int64), ("block_cols", c_int64)]


class GlobalScale(Structure):
    _fields_ = [("values", Tensor), ("applied", c_uint8), ("reserved", c_uint8 * 7)]


class Quantized(Structure):
    _fields_ = [("values", Tensor), ("scales", Tensor), ("global_scale", GlobalScale), ("layout", Granularity)]


class RoutingPlan(Structure):
    _fields_ = [("tokens", c_int64), ("top_k", c_int64), ("experts", c_int64), ("expert_begin", Tensor),
                ("row_to_slot", Tensor), ("slot_to_row", Tensor), ("slot_weight", Tensor), ("status", Tensor)]


class DequantizeArgs(Structure):
    _fields_ = [("struct_size", c_uint64), ("q", Quantized), ("out", Tensor), ("implementation", c_char_p)]


class PlanArgs(Structure):
    _fields_ = [("struct_size", c_uint64), ("expert_ids", Tensor), ("expert_mask", Tensor), ("weights", Tensor),
                ("experts_total", c_int64), ("first_expert", c_int64), ("capacity", c_int64), ("plan", RoutingPlan),
                ("scratch", Workspace), ("implementation", c_char_p)]


class ActivationSpec(Structure):
    _fields_ = [("kind", c_uint8), ("reserved", c_uint8 * 7), ("alpha", c_float), ("limit", c_float)]


class Lora(Structure):
    _fields_ = [("a", c_void_p), ("b", c_void_p), ("scaling", c_float), ("reserved", c_uint32)]


class Projection(Structure):
    _fields_ = [("weights", c_void_p), ("bias", Tensor * 2), ("lora", Lora)]


class LayerDesc(Structure):
    _fields_ = [("struct_size", c_uint64), ("gate_up", Projection), ("down", Projection),
                ("activation", ActivationSpec), ("mode", c_uint8), ("scheme", c_uint8), ("weight_on", c_uint8),
                ("reserved", c_uint8 * 5), ("experts_total", c_int64), ("first_expert", c_int64),
                ("implementation", c_char_p)]


class LayerShape(Structure):
    _fields_ = [("tokens", c_int64), ("top_k", c_int64), ("io", c_uint8), ("reserved", c_uint8 * 7)]


class ForwardArgs(Structure):
    _fields_ = [("struct_size", c_uint64), ("x", Tensor), ("expert_ids", Tensor), ("weights", Tensor),
                ("capacity", c_int64), ("y", Tensor), ("saved", Workspace), ("scratch", Workspace)]


def load():
    library = ctypes.CDLL(os.environ["MOE64_LIBRARY"])
    signatures = {
        "moe64_plan_bytes": [c_int64, c_int64, c_int64, POINTER(c_int64)],
        "moe64_plan_scratch_bytes": [c_int64, c_int64, c_int64, Device, POINTER(c_int64)],
        "moe64_bind_plan": [POINTER(Workspace), c_int64, c_int64, c_int64, POINTER(RoutingPlan)],
        "moe64_plan": [POINTER(PlanArgs), Stream],
        "moe64_dequantize": [POINTER(DequantizeArgs), Stream],
        "moe64_weights_single": [POINTER(Quantized), POINTER(c_void_p)],
        "moe64_weights_gate_up": [POINTER(Quantized), POINTER(Quantized), POINTER(c_void_p)],
        "moe64_layer_create": [POINTER(LayerDesc), POINTER(c_void_p)],
        "moe64_forward_bytes": [c_void_p, POINTER(LayerShape), c_uint8, Device, POINTER(c_int64)],
        "moe64_forward": [c_void_p, POINTER(ForwardArgs), Stream],
        "moe64_cpu_pool_create": [c_int64, POINTER(c_void_p)],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int32
    for name in ("moe64_weights_destroy", "moe64_layer_destroy", "moe64_executor_destroy"):
        function = getattr(library, name)
        function.argtypes, function.restype = [c_void_p], None
    for name in ("moe64_last_error", "moe64_version"):
        function = getattr(library, name)
        function.argtypes, function.restype = [], c_char_p
    library.moe64_status_name.argtypes, library.moe64_status_name.restype = [c_int32], c_char_p
    return library


def tensor(buffer, dtype, *extents):
    """A row-major tensor over a ctypes buffer, which the caller keeps alive."""
    stride, strides = 1, []
    for extent in reversed(extents):
        strides.insert(0, stride)
        stride *= extent
    pad = [0] * (3 - len(extents))
    return Tensor(ctypes.addressof(buffer), dtype, len(extents), Device(), 0, (c_int64 * 3)(*extents, *pad),
                  (c_int64 * 3)(*strides, *pad))


def floats(values):
    values = list(values)
    return (c_float * len(values))(*values)


def codes(values):
    """Whole numbers from -4 to 4 as e4m3."""
    magnitude = {0: 0x00, 1: 0x38, 2: 0x40, 3: 0x44, 4: 0x48}
    return (c_uint8 * len(values))(*[magnitude[abs(v)] | (0x80 if v < 0 else 0) for v in values])


class Lent:
    """Workspace of the asked size, aligned as the library wants it."""

    def __init__(self, count):
        self.memory = ctypes.create_string_buffer(count + 64)
        begin = (ctypes.addressof(self.memory) + 63) // 64 * 64
        self.workspace = Workspace(begin, count, Device(), 0)


class CtypesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.moe64 = load()
        cls.here = Stream()

    def ok(self, status):
        self.assertEqual(status, 0, self.moe64.moe64_last_error())

    def query(self, function, *arguments):
        answer = c_int64(-1)
        self.ok(function(*arguments, byref(answer)))
        return answer.value

    def test_layouts(self):
        self.assertEqual(ctypes.sizeof(Tensor), 64)
        self.assertEqual(ctypes.sizeof(Stream), 16)
        self.assertEqual(ctypes.sizeof(Workspace), 24)
        self.assertEqual(ctypes.sizeof(Quantized), 64 + 64 + 72 + 24)

    def test_version_and_names(self):
        self.assertRegex(self.moe64.moe64_version().decode(), r"^\d+\.\d+\.\d+$")
        self.assertEqual(self.moe64.moe64_status_name(MISSING_SCALE), b"missing_scale")

    def test_dequantize(self):
        values, scales, out = codes([1, -2, 3, 4, 0, -1]), floats([0.5, 4.0]), floats([float("nan")] * 6)
        args = DequantizeArgs(struct_size=ctypes.sizeof(DequantizeArgs))
        args.q.values = tensor(values, E4M3, 2, 3)
        args.q.layout.kind = SCALE_ROW
        args.out = tensor(out, F32, 2, 3)
        self.assertEqual(self.moe64.moe64_dequantize(byref(args), self.here), MISSING_SCALE)
        self.assertIn(b"e4m3", self.moe64.moe64_last_error())
        self.assertTrue(all(v != v for v in out))
        args.q.scales = tensor(scales, F32, 2, 1)
        self.ok(self.moe64.moe64_dequantize(byref(args), self.here))
        self.assertEqual(list(out), [0.5, -1.0, 1.5, 16.0, 0.0, -4.0])
        args.implementation = b"no_such_thing"
        self.assertNotEqual(self.moe64.moe64_dequantize(byref(args), self.here), 0)
        self.assertIn(b"no_such_thing", self.moe64.moe64_last_error())
        args.struct_size = 0
        self.assertEqual(self.moe64.moe64_dequantize(byref(args), self.here), INVALID_ARGUMENT)

    def test_plan(self):
        ids = (c_int32 * 6)(1, 0, -1, 2, 0, 1)
        memory = Lent(self.query(self.moe64.moe64_plan_bytes, 3, 2, 2))
        scratch = Lent(self.query(self.moe64.moe64_plan_scratch_bytes, 3, 2, 2, Device()))
        args = PlanArgs(struct_size=ctypes.sizeof(PlanArgs), experts_total=2, capacity=-1)
        self.ok(self.moe64.moe64_bind_plan(byref(memory.workspace), 3, 2, 2, byref(args.plan)))
        args.expert_ids = tensor(ids, INT32, 3, 2)
        args.scratch = scratch.workspace
        self.ok(self.moe64.moe64_plan(byref(args), self.here))

        def read(view):
            return list((c_int64 * view.extent[0]).from_address(view.data))

        self.assertEqual(read(args.plan.expert_begin), [0, 2, 4])
        self.assertEqual(read(args.plan.row_to_slot)[:4], [1, 4, 0, 5])
        self.assertEqual(read(args.plan.slot_to_row), [2, 0, -1, -1, 1, 3])
        self.assertEqual(read(args.plan.status), [4, 2, 0, 0, 0, -1])
        ids[5] = 9
        self.assertEqual(self.moe64.moe64_plan(byref(args), self.here), INVALID_EXPERT)
        self.assertIn(b"9", self.moe64.moe64_last_error())

    def test_forward(self):
        """One e4m3 layer in 2 x 2 blocks against plain loops; gptoss_glu with alpha 0 is exact."""
        experts, hidden, inter, tokens, top_k, block = 2, 3, 2, 3, 2, 2
        number = iter(range(1, 10**6))

        def small(count):
            return [next(number) * 7 % 5 - 2 for _ in range(count)]

        def scaled(numbers, rows, cols):
            """The buffers and the values [experts][rows][cols] of one matrix per expert."""
            grid_rows, grid_cols = -(-rows // block), -(-cols // block)
            scales = [2.0 ** (i % 3 - 1) for i in range(experts * grid_rows * grid_cols)]
            buffers = codes(numbers), floats(scales)
            q = Quantized()
            q.values = tensor(buffers[0], E4M3, experts, rows, cols)
            q.scales = tensor(buffers[1], F32, experts, grid_rows, grid_cols)
            q.layout.kind, q.layout.block_rows, q.layout.block_cols = SCALE_BLOCK, block, block
            matrix = [[[numbers[(e * rows + r) * cols + c] *
                        scales[(e * grid_rows + r // block) * grid_cols + c // block]
                        for c in range(cols)] for r in range(rows)] for e in range(experts)]
            return buffers, q, matrix

        gate_memory, gate_q, gate = scaled(small(experts * inter * hidden), inter, hidden)
        up_memory, up_q, up = scaled(small(experts * inter * hidden), inter, hidden)
        down_memory, down_q, down = scaled(small(experts * hidden * inter), hidden, inter)
        x, ids, weights = small(tokens * hidden), [1, 0, -1, 1, 0, 2], [0.5, 1.0, 2.0, 0.5, 1.0, 4.0]

        def apply(matrix, vector):
            return [sum(w * v for w, v in zip(row, vector)) for row in matrix]

        expected = [0.0] * (tokens * hidden)
        for slot, (expert, weight) in enumerate(zip(ids, weights)):
            if not 0 <= expert < experts:
                continue
            row = x[slot // top_k * hidden:][:hidden]
            h = [0.5 * g * (u + 1.0) for g, u in zip(apply(gate[expert], row), apply(up[expert], row))]
            for c, value in enumerate(apply(down[expert], h)):
                expected[slot // top_k * hidden + c] += weight * value

        desc = LayerDesc(struct_size=ctypes.sizeof(LayerDesc))
        gate_up_stack, down_stack, layer, pool = c_void_p(), c_void_p(), c_void_p(), c_void_p()
        self.ok(self.moe64.moe64_weights_gate_up(byref(gate_q), byref(up_q), byref(gate_up_stack)))
        self.ok(self.moe64.moe64_weights_single(byref(down_q), byref(down_stack)))
        desc.gate_up.weights, desc.down.weights = gate_up_stack, down_stack
        desc.activation = ActivationSpec(kind=GPTOSS_GLU, alpha=0.0, limit=1e6)
        self.ok(self.moe64.moe64_layer_create(byref(desc), byref(layer)))
        self.moe64.moe64_weights_destroy(gate_up_stack)
        self.moe64.moe64_weights_destroy(down_stack)
        self.ok(self.moe64.moe64_cpu_pool_create(2, byref(pool)))

        shape = LayerShape(tokens, top_k, F32)
        scratch = Lent(self.query(self.moe64.moe64_forward_bytes, layer, byref(shape), 0, Device()))
        buffers = floats(x), (c_int32 * len(ids))(*ids), floats(weights), floats([float("nan")] * (tokens * hidden))
        args = ForwardArgs(struct_size=ctypes.sizeof(ForwardArgs), capacity=-1)
        args.x = tensor(buffers[0], F32, tokens, hidden)
        args.expert_ids = tensor(buffers[1], INT32, tokens, top_k)
        args.weights = tensor(buffers[2], F32, tokens, top_k)
        args.y = tensor(buffers[3], F32, tokens, hidden)
        args.scratch = scratch.workspace
        self.ok(self.moe64.moe64_forward(layer, byref(args), Stream(Device(), 0, pool)))
        self.assertEqual(list(buffers[3]), expected)
        self.assertTrue(any(expected))
        self.moe64.moe64_layer_destroy(layer)
        self.moe64.moe64_executor_destroy(pool)
        del gate_memory, up_memory, down_memory  # the layer looked at them until here


if __name__ == "__main__":
    assert struct.calcsize("P") == 8, "moe64 is a 64-bit library"
    unittest.main()
