"""How Python calls machine code without numba: what an entry takes, and what it gives back."""

import enum
import inspect
import sys
import sysconfig
import threading
import time
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from storage_core.errors import UnsupportedPythonError
from storage_core.kernels import _code_files, _native
from storage_core.kernels._binding import binding_text
from storage_core.kernels._jit import Kernel, kernel


class Number(enum.IntEnum):
    SEVEN = 7


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch):
    # Kernels of a test are no sources that the cache knows of.
    monkeypatch.setattr(_code_files, "cache_folder", lambda: None)
    monkeypatch.setattr(_code_files, "layer_folder", lambda: None)


def first_and_size(values, at):
    return int(values[at]), values.size


def add_unsigned(left, right):
    return left + np.uint64(right)


def choose(is_left):
    return 1 if is_left else 2


def fill(values, number):
    for index in range(values.shape[0]):
        for column in range(values.shape[1]):
            values[index, column] = number + index


def total(values):
    found = 0
    for value in values:
        found += value
    return found


class Columns(NamedTuple):
    values: np.ndarray
    lengths: np.ndarray
    scale: int


def add_columns(first: int, columns: Columns, out: np.ndarray) -> int:
    for index in range(out.size):
        out[index] = columns.values[index] + columns.scale * columns.lengths[index]
    return first + out.size


def add_nested(columns: Columns, out: np.ndarray) -> int:
    return ADD_COLUMNS(5, columns, out)


ADD_COLUMNS = kernel(add_columns)


def half_of_size(values):
    return values.size / 2


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_arrays_and_numbers_of_all_types_that_kernels_have(dtype):
    compiled = kernel(first_and_size)
    values = np.arange(3, 8, dtype=dtype)
    assert compiled(values, 2) == (5, 5)
    assert compiled(values[1:3], 1) == (5, 2)
    assert len(compiled._entries) == 1


@pytest.mark.parametrize("number", [0, -(2**63), 2**63 - 1, -1])
def test_a_signed_number_comes_back_as_it_was(number):
    compiled = kernel(total)
    assert compiled(np.array([number])) == number


def test_numbers_that_look_otherwise_and_are_the_same():
    compiled = kernel(first_and_size)
    values = np.arange(9)
    for at in (7, np.int64(7), np.int32(7), np.uint8(7), np.uint32(7), Number.SEVEN):
        assert compiled(values, at) == (7, 9)
    assert len(compiled._entries) == 1


def test_unsigned_numbers_are_not_signed_ones():
    compiled = kernel(add_unsigned)
    assert compiled(np.uint64(2**63), np.uint64(2**63 - 1)) == 2**64 - 1
    # What does not fit a signed number is unsigned.
    assert compiled(2**63, 2**63 - 1) == 2**64 - 1


@pytest.mark.parametrize("is_left", [True, np.True_, False, np.False_])
def test_a_truth_is_one_whoever_says_it(is_left):
    assert kernel(choose)(is_left) == (1 if is_left else 2)


def test_a_named_tuple_is_one_argument_here_and_between_kernels():
    out = np.zeros(3, np.int64)
    compiled = kernel(add_columns)
    columns = Columns(np.arange(3, dtype=np.uint8), np.array([5, 6, 7]), 10)
    assert compiled(4, columns, out) == 7
    assert out.tolist() == [50, 61, 72]
    assert compiled(4, columns._replace(scale=np.int32(1)), out) == 7
    assert out.tolist() == [5, 7, 9]
    assert len(compiled._entries) == 1
    assert kernel(add_nested)(columns, out) == 8
    assert out.tolist() == [50, 61, 72]


def test_a_named_tuple_with_another_field_is_compiled_once_more():
    out = np.zeros(3, np.int64)
    compiled = kernel(add_columns)
    for dtype in (np.uint8, np.int64):
        compiled(4, Columns(np.arange(3, dtype=dtype), np.array([5, 6, 7]), 10), out)
        assert out.tolist() == [50, 61, 72]
    assert len(compiled._entries) == 2


def test_an_entry_that_refuses_its_own_types_is_an_error():
    def add_without_annotation(first, columns, out):
        return ADD_COLUMNS(first, columns, out)

    # Its entry takes the fields, and nothing says that there are any.
    compiled = kernel(add_without_annotation)
    columns = Columns(np.arange(3, dtype=np.uint8), np.array([5, 6, 7]), 10)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"add_without_annotation: .* \(int, Columns\(.*,int\)"):
            compiled(4, columns, np.zeros(3, np.int64))


def test_a_map_of_a_file_is_an_array(tmp_path):
    np.arange(5).tofile(tmp_path / "numbers")
    mapped = np.memmap(tmp_path / "numbers", np.int64, mode="r")
    assert kernel(total)(mapped) == 10


def test_what_an_entry_may_not_write_it_only_reads():
    compiled = kernel(total)
    locked = np.arange(4)
    locked.flags.writeable = False
    assert compiled(locked) == 6
    assert compiled(np.arange(4)) == 6
    assert len(compiled._entries) == 1
    # The other way round it is compiled once more.
    compiled = kernel(total)
    assert compiled(np.arange(4)) == compiled(locked) == 6
    assert len(compiled._entries) == 2


def test_rows_with_gaps_between_them_are_written_where_they_are():
    compiled = kernel(fill)
    for layout in ("gaps", "none", "columns first"):
        wide = np.zeros((3, 8), np.int64)
        rows = {"gaps": wide[:, 2:5], "none": wide, "columns first": np.asfortranarray(wide)}[
            layout
        ]
        assert compiled(rows, 7) is None
        assert rows.tolist() == [[7 + index] * rows.shape[1] for index in range(3)]
        if layout == "gaps":
            assert not wide[:, :2].any()
            assert not wide[:, 5:].any()
    assert len(compiled._entries) == 2  # with gaps and without


def test_a_kernel_with_a_fraction_for_a_result_is_called_by_numba():
    compiled = kernel(half_of_size)
    assert compiled(np.arange(3)) == 1.5
    assert compiled(np.arange(4)) == 2
    assert not compiled._entries


@pytest.mark.parametrize("arguments", [(), (np.arange(3),), (np.arange(3), 1, 2)])
def test_the_wrong_number_of_arguments_is_an_error(arguments):
    compiled = kernel(first_and_size)
    assert compiled(np.arange(3), 1) == (1, 3)
    with pytest.raises(TypeError):
        compiled(*arguments)


def test_an_argument_of_no_kind_of_number_is_an_error():
    compiled = kernel(first_and_size)
    assert compiled(np.arange(3), 1) == (1, 3)
    for wrong in ("1", None, 1.5, b"1"):
        with pytest.raises(Exception, match=r"(?i)no implementation|invalid|unsupported|failed"):
            compiled(np.arange(3), wrong)


def test_big_endian_numbers_are_not_taken_for_others():
    compiled = kernel(total)
    assert compiled(np.arange(3)) == 3
    with pytest.raises(Exception, match=r"(?i)unsupported"):
        compiled(np.arange(3, dtype=">i8"))


def test_references_are_given_back():
    compiled = kernel(first_and_size)
    values = np.arange(300, 310)
    compiled(values, 1)
    before = sys.getrefcount(values), sys.getrefcount(NotImplemented), sys.getrefcount(None)
    for _ in range(1_000):
        compiled(values, 1)
        compiled._try((values, None))
    after = sys.getrefcount(values), sys.getrefcount(NotImplemented), sys.getrefcount(None)
    assert before[0] == after[0]
    assert abs(after[1] - before[1]) < 100
    assert abs(after[2] - before[2]) < 100


@pytest.mark.thorough
def test_other_threads_run_beside_a_kernel():
    def spin(values, rounds):
        found = 0
        for index in range(rounds):
            found ^= values[index % values.size] * index
        return found

    compiled = kernel(spin)
    values = np.arange(1, 1000)
    compiled(values, 1)
    ticks = []
    worker = threading.Thread(target=compiled, args=(values, 400_000_000))
    worker.start()
    while worker.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    assert len(ticks) > 5


def test_a_kernel_says_what_it_is():
    compiled = kernel(total)
    assert isinstance(compiled, Kernel)
    assert compiled.__name__ == "total"
    assert compiled.py_func is total
    assert inspect.signature(compiled) == inspect.signature(total)


def test_unaligned_numbers_are_not_taken_for_others():
    compiled = kernel(total)
    assert compiled(np.arange(3)) == 3
    unaligned = np.frombuffer(b"." + np.arange(3).tobytes(), np.uint8)[1:].view(np.int64)
    assert not unaligned.flags.aligned
    assert all(entry(unaligned) is NotImplemented for entry in compiled._entries.values())
    assert compiled(unaligned) == 3
    assert len(compiled._entries) == 1  # they have none: numba reads them


def test_long_and_long_long_are_one():
    compiled = kernel(total)
    assert compiled(np.arange(3, dtype="l")) == compiled(np.arange(3, dtype="q")) == 3
    assert len(compiled._entries) == 1


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 3), (3, 1)])
def test_rows_of_none_and_of_one_are_read_as_they_are(shape):
    def sizes(values):
        return values.shape[0], values.shape[1]

    compiled = kernel(sizes)
    assert compiled(np.zeros(shape)[:, :].astype(np.int64)) == shape
    assert compiled(np.zeros((4, 9), np.int64)[: shape[0], 2 : 2 + shape[1]]) == shape


def test_an_array_is_free_again_after_a_call():
    compiled = kernel(fill)
    values = np.zeros((3, 4), np.int64)
    compiled(values, 1)
    compiled._try((values, "1"))  # refused after the array was taken
    # NumPy refuses this while somebody has the array's memory.
    values.resize((6, 4), refcheck=True)


CHECKS = {
    "another field of a buffer": (
        "%View, ptr %view, i32 0, i32 7",
        "%View, ptr %view, i32 0, i32 8",
    ),
    "another object": (
        "%Closure, ptr %closure, i32 0, i32 4",
        "%Closure, ptr %closure, i32 0, i32 3",
    ),
    "no look at the letter": ("%is.type = or i1", "%is.type = or i1 true, %is.letter ;"),
    "a number of 32 bits": ("store i64 %number.word, ptr %value", "store i64 7, ptr %value"),
    "one sign for all": ("%is.signed = icmp eq i64 %sign, 0", "%is.signed = icmp eq i64 0, 0"),
}


@pytest.mark.parametrize(("right", "wrong"), CHECKS.values(), ids=CHECKS)
def test_a_python_whose_objects_are_read_wrongly_is_refused(monkeypatch, right, wrong):
    text = binding_text(5)
    assert text.count(right) == 1
    monkeypatch.setattr(_native, "binding_text", lambda _arguments: text.replace(right, wrong))
    with pytest.raises(
        UnsupportedPythonError, match=r"Python 3\.\d+\.\d+ .*machine code"
    ) as caught:
        _native._checked_engine.__wrapped__()
    assert "use CPython 3.11" in str(caught.value)


def test_a_python_without_the_interpreter_lock_is_refused(monkeypatch):
    asked = sysconfig.get_config_var
    monkeypatch.setattr(
        _native.sysconfig,
        "get_config_var",
        lambda name: 1 if name == "Py_GIL_DISABLED" else asked(name),
    )
    with pytest.raises(UnsupportedPythonError, match="free-threaded"):
        _native._checked_engine.__wrapped__()


def test_a_python_without_a_function_is_refused_before_it_is_missed(monkeypatch):
    text = binding_text(5).replace("@PyTuple_New(", "@PyTuple_Fresh(")
    monkeypatch.setattr(_native, "binding_text", lambda _arguments: text)
    with pytest.raises(UnsupportedPythonError, match="it has no PyTuple_Fresh"):
        _native._checked_engine.__wrapped__()


def test_another_python_is_refused(monkeypatch):
    monkeypatch.setattr(_native.sys, "implementation", SimpleNamespace(name="pypy"))
    with pytest.raises(UnsupportedPythonError, match="cannot run this program"):
        _native._checked_engine.__wrapped__()
