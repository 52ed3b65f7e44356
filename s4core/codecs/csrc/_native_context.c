/* The functions of s4core.codecs._native for `rans.ctx` and `rans.grid`; see _native.c. */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include "_native_context.h"
#include "bytes.h"
#include "context.h"
#include "rans.h"

typedef unsigned long long u64;

static const uint8_t *address(u64 number) { return (const uint8_t *)(uintptr_t)number; }
static uint8_t *writable(u64 number) { return (uint8_t *)(uintptr_t)number; }

static PyObject *outcome(int bad, const s4_fault *fault)
{
    if (bad)
        return Py_BuildValue("iiKKK", fault->kind, fault->codec, (u64)fault->offset, (u64)fault->expected,
                             (u64)fault->found);
    Py_RETURN_NONE;
}

static int enough(Py_ssize_t found, size_t needed, const char *what)
{
    if (found >= 0 && (size_t)found >= needed)
        return 1;
    PyErr_Format(PyExc_ValueError, "%zd bytes of %s are too few: expected %zu", found, what, needed);
    return 0;
}

static PyObject *py_context_encode(PyObject *self, PyObject *args)
{
    u64 source, context, target, scratch;
    Py_ssize_t n, sub_block, room, scratch_room;
    size_t size;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKnnKnKn", &source, &context, &n, &sub_block, &target, &room, &scratch,
                          &scratch_room) ||
        !enough(room, s4_pad16((size_t)n) + S4_SLACK, "output") || !enough(scratch_room, (size_t)n, "scratch"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    size = s4_context_encode(address(source), address(context), (size_t)n, (size_t)sub_block, writable(target),
                             writable(scratch));
    Py_END_ALLOW_THREADS
    return PyLong_FromSize_t(size);
}

static PyObject *py_context_decode(PyObject *self, PyObject *args)
{
    u64 blob, context, target, scratch;
    Py_ssize_t size, n, scratch_room;
    int bad;
    s4_fault fault = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "KnKKnKn", &blob, &size, &context, &target, &n, &scratch, &scratch_room) ||
        !enough(scratch_room, (size_t)n, "scratch"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    bad = s4_context_decode(address(blob), (size_t)size, address(context), (size_t)n, writable(target),
                            writable(scratch), &fault);
    Py_END_ALLOW_THREADS
    return outcome(bad, &fault);
}

static PyObject *py_grid_encode(PyObject *self, PyObject *args)
{
    u64 source, target, scratch, values;
    Py_ssize_t n, columns, first, sub_block, room, scratch_room, values_room;
    size_t size;
    (void)self;
    if (!PyArg_ParseTuple(args, "KnnnnKnKnKn", &source, &n, &columns, &first, &sub_block, &target, &room, &scratch,
                          &scratch_room, &values, &values_room))
        return NULL;
    if (columns < 1 || columns > (Py_ssize_t)S4_MAX_COLUMNS || first < 0 || first >= columns)
        return PyErr_Format(PyExc_ValueError, "%zd columns from %zd: no such grid", columns, first);
    size_t rows = ((size_t)(first + n + columns) - 1) / (size_t)columns;
    if (!enough(room, s4_pad16((size_t)n) + S4_SLACK, "output") ||
        !enough(scratch_room, 2 * (size_t)n, "scratch") ||
        !enough(values_room, 4 * (rows + (size_t)columns), "values"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    size = s4_grid_encode(address(source), (size_t)n, (size_t)columns, (size_t)first, (size_t)sub_block,
                          writable(target), writable(scratch), (int32_t *)(uintptr_t)values);
    Py_END_ALLOW_THREADS
    return PyLong_FromSize_t(size);
}

static PyObject *py_grid_decode(PyObject *self, PyObject *args)
{
    u64 blob, target, scratch, values;
    Py_ssize_t size, n, scratch_room, values_room;
    int bad;
    s4_fault fault = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "KnKnKnKn", &blob, &size, &target, &n, &scratch, &scratch_room, &values,
                          &values_room) ||
        !enough(scratch_room, (size_t)n, "scratch") || !enough(values_room, 4 * (size_t)size, "values"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    bad = s4_grid_decode(address(blob), (size_t)size, (size_t)n, writable(target), writable(scratch),
                         (int32_t *)(uintptr_t)values, &fault);
    Py_END_ALLOW_THREADS
    return outcome(bad, &fault);
}

PyMethodDef s4_context_methods[] = {
    {"context_encode", py_context_encode, METH_VARARGS,
     "context_encode(source, context, n, sub_block, target, room, scratch, room) -> length, 0: not worth it"},
    {"context_decode", py_context_decode, METH_VARARGS,
     "context_decode(blob, size, context, target, n, scratch, room) -> None or a fault"},
    {"grid_encode", py_grid_encode, METH_VARARGS,
     "grid_encode(source, n, columns, first, sub_block, target, room, scratch, room, values, room) -> length"},
    {"grid_decode", py_grid_decode, METH_VARARGS,
     "grid_decode(blob, size, target, n, scratch, room, values, room) -> None or a fault"},
    {NULL, NULL, 0, NULL},
};
