"""The C ABI in ctypes: layouts against a C compiler, the library's own checks, errors, and life without torch."""

import ctypes
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import moe64
from moe64 import _c, _library

HEADERS = Path(__file__).resolve().parents[2] / "include"


@pytest.mark.skipif(not shutil.which("cc") or not HEADERS.is_dir(), reason="no C compiler or no headers")
def test_every_field_lies_where_c_has_it(tmp_path):
    lines = ['printf("scratch %d\\n", MOE64_GROUPED_GEMM_SCRATCH_BYTES);']
    for name, kind in _c.structs().items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in kind._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field.rstrip("_")}));')
    source = tmp_path / "layout.c"
    source.write_text("#include <moe64/moe64.h>\n#include <stdio.h>\n#include <stddef.h>\nint main(void) {\n"
                      + "\n".join(lines) + "\nreturn 0; }\n")
    subprocess.run(["cc", "-I", HEADERS, source, "-o", tmp_path / "layout"], check=True)
    said = dict(line.split() for line in subprocess.check_output(tmp_path / "layout", text=True).splitlines())
    assert int(said["scratch"]) == _c.GROUPED_GEMM_SCRATCH_BYTES
    for name, kind in _c.structs().items():
        assert int(said[name]) == ctypes.sizeof(kind), name
        for field, *_ in kind._fields_:
            assert int(said[f"{name}.{field}"]) == getattr(kind, field).offset, f"{name}.{field}"


def test_a_struct_of_another_size_is_refused(monkeypatch):
    class Device(ctypes.Structure):
        _fields_ = [("kind", ctypes.c_uint8)]
    monkeypatch.setattr(_c, "structs", lambda: {"moe64_device": Device})
    with pytest.raises(moe64.LibraryError, match="moe64_device has 4 bytes, this package declares 1"):
        _library.Library(moe64.library().path)


def test_another_abi_version_is_refused(monkeypatch):
    monkeypatch.setattr(_c, "ABI_VERSION", 99)
    with pytest.raises(moe64.LibraryError, match="made for 99"):
        _library.Library(moe64.library().path)


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("MOE64_LIBRARY", "/nonexistent/libmoe64.so")
    _library.library.cache_clear()
    try:
        with pytest.raises(moe64.LibraryError, match="/nonexistent/libmoe64.so: no such file"):
            moe64.version()
    finally:
        monkeypatch.undo()
        _library.library.cache_clear()


def test_another_library_is_refused():
    with pytest.raises(moe64.LibraryError, match="not the libmoe64"):
        _library.Library(Path("libc.so.6"))


def test_errors_carry_code_name_and_message():
    with pytest.raises(moe64.InvalidArgumentError) as caught:
        moe64.library().ask("struct_bytes", b"moe64_nothing")
    assert caught.value.code == 1 and caught.value.name == "invalid_argument"
    assert "[struct_bytes]" in str(caught.value) and "moe64_nothing" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.code, str(again)) == (type(caught.value), 1, str(caught.value))


def test_every_status_has_its_exception():
    dll = ctypes.CDLL(str(moe64.library().path))
    dll.moe64_status_name.restype = ctypes.c_char_p
    for code in range(1, 64):
        name = dll.moe64_status_name(code).decode()
        if name == "unknown":
            assert code > max(_library.BY_CODE)
            break
        assert _library.BY_CODE[code].name == name


def test_one_version_everywhere():
    root = HEADERS.parent
    if not (root / "pyproject.toml").is_file():
        pytest.skip("not in a checkout")
    stated = re.search(r'^version = "(.+)"', (root / "pyproject.toml").read_text(), re.M).group(1)
    project = re.search(r"VERSION (\S+)", (root / "CMakeLists.txt").read_text().split("project(")[1]).group(1)
    assert moe64.version() == moe64.__version__ == stated == project


def test_the_plain_parts_need_no_torch():
    code = ("import sys; sys.modules['torch'] = None\n"
            "import moe64\nassert moe64.version()\nassert moe64.cuda_devices()[0] >= 0\n"
            "try:\n    moe64.experts\nexcept ImportError:\n    print('ok')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "ok\n"
