/* The Python module s4core.codecs._native: addresses and sizes in, numbers out.
 *
 * Only s4core/codecs/native.py calls it, and validates what it passes: every address is that of
 * a live buffer of at least the size that goes with it. Written against the limited API of
 * Python 3.10, so that one binary serves every later version. The GIL is released around all
 * work on data. A fault of a blob comes back as (kind, codec, offset, expected, found).
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include "_native_context.h"
#include "bytes.h"
#include "chunk.h"
#include "choice.h"
#include "path.h"
#include "plane.h"

typedef unsigned long long u64;

static const uint8_t *address(u64 number) { return (const uint8_t *)(uintptr_t)number; }
static uint8_t *writable(u64 number) { return (uint8_t *)(uintptr_t)number; }

/* The path at that place of `paths()`, or NULL with an exception set. */
static const s4_path *path_at(int index)
{
    const s4_path *paths;
    int count = s4_paths(&paths);
    if (index >= 0 && index < count)
        return &paths[index];
    PyErr_Format(PyExc_ValueError, "path %d: expected 0 to %d", index, count - 1);
    return NULL;
}

static PyObject *fault_tuple(const s4_fault *fault)
{
    return Py_BuildValue("iiKKK", fault->kind, fault->codec, (u64)fault->offset, (u64)fault->expected,
                         (u64)fault->found);
}

static PyObject *py_paths(PyObject *self, PyObject *args)
{
    const s4_path *paths;
    int count = s4_paths(&paths);
    PyObject *names = PyTuple_New(count);
    (void)self;
    (void)args;
    for (int i = 0; names && i < count; i++) {
        PyObject *name = PyUnicode_FromString(paths[i].name);
        if (!name || PyTuple_SetItem(names, i, name)) {
            Py_DECREF(names);
            return NULL;
        }
    }
    return names;
}

/* The C side of numpy's array interface protocol, version 3: as documented, and stable. */
typedef struct {
    int two; /* 2, or this is something else */
    int dimensions;
    char kind;
    int item_bytes;
    int flags;
    Py_intptr_t *shape;
    Py_intptr_t *strides;
    void *data;
    PyObject *description;
} array_interface;

#define C_CONTIGUOUS 1

/* Reading `array.ctypes.data` or `array.__array_interface__` instead takes microseconds. */
static PyObject *py_address(PyObject *self, PyObject *array)
{
    PyObject *capsule = PyObject_GetAttrString(array, "__array_struct__");
    (void)self;
    if (!capsule)
        return NULL;
    const array_interface *found = PyCapsule_GetPointer(capsule, NULL);
    PyObject *result = NULL;
    if (found && found->two == 2 && found->flags & C_CONTIGUOUS)
        result = PyLong_FromVoidPtr(found->data);
    else if (found)
        PyErr_SetString(PyExc_ValueError, "expected a contiguous array");
    Py_DECREF(capsule);
    return result;
}

static PyObject *py_histogram(PyObject *self, PyObject *args)
{
    u64 source, counts;
    Py_ssize_t n;
    (void)self;
    if (!PyArg_ParseTuple(args, "KnK", &source, &n, &counts))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    s4_count(address(source), (size_t)n, (uint32_t *)(uintptr_t)counts);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_encode_plane(PyObject *self, PyObject *args)
{
    u64 source, target;
    Py_ssize_t n, sub_block, room;
    int index;
    s4_choice choice;
    (void)self;
    if (!PyArg_ParseTuple(args, "iKnnKn", &index, &source, &n, &sub_block, &target, &room))
        return NULL;
    const s4_path *path = path_at(index);
    if (!path)
        return NULL;
    if ((size_t)room < s4_pad16((size_t)n) + S4_SLACK)
        return PyErr_Format(PyExc_ValueError, "%zd bytes of output are too few", room);
    Py_BEGIN_ALLOW_THREADS
    choice = s4_plane_encode(path, address(source), (size_t)n, (size_t)sub_block, writable(target));
    if (choice.codec == S4_RAW) {
        memcpy(writable(target), address(source), (size_t)n);
        s4_zero_padding(writable(target), (size_t)n);
    }
    Py_END_ALLOW_THREADS
    return Py_BuildValue("iin", choice.codec, choice.param, (Py_ssize_t)choice.length);
}

static PyObject *py_decode_plane(PyObject *self, PyObject *args)
{
    u64 blob, target;
    Py_ssize_t size, n;
    int index, codec, param, bad;
    s4_fault fault = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "iiiKnKn", &index, &codec, &param, &blob, &size, &target, &n))
        return NULL;
    const s4_path *path = path_at(index);
    if (!path)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    bad = s4_plane_decode(path, codec, param, address(blob), (size_t)size, (size_t)n, writable(target), &fault);
    Py_END_ALLOW_THREADS
    if (bad)
        return fault_tuple(&fault);
    Py_RETURN_NONE;
}

/* What split, join, encode_chunk and decode_chunk have in common. */
typedef struct {
    const s4_path *path;
    s4_coding coding;
} chunk_coder;

static int make_coder(int index, int word_bytes, int layout, int delta, u64 base, chunk_coder *out)
{
    out->path = path_at(index);
    out->coding.word_bytes = word_bytes;
    out->coding.layout = layout;
    out->coding.delta = delta;
    out->coding.base = address(base);
    if (!out->path)
        return 0;
    int sized = word_bytes == 1 || word_bytes == 2 || word_bytes == 4 || word_bytes == 8;
    int fits = layout == S4_WORDS || layout == S4_BYTES || (layout == S4_FLOAT && word_bytes > 1);
    if (sized && fits && delta >= S4_WHOLE && delta <= S4_ZIGZAG_FLOAT && !base == (delta == S4_WHOLE))
        return 1;
    PyErr_Format(PyExc_ValueError, "layout %d, %d bytes a word, delta %d: no such coding", layout, word_bytes,
                 delta);
    return 0;
}

static PyObject *blob_tuples(const s4_blob *blobs, int count)
{
    PyObject *list = PyList_New(count);
    for (int k = 0; list && k < count; k++) {
        PyObject *item = Py_BuildValue("iinn", blobs[k].codec, blobs[k].param, (Py_ssize_t)blobs[k].offset,
                                       (Py_ssize_t)blobs[k].length);
        if (!item || PyList_SetItem(list, k, item)) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *py_encode_chunk(PyObject *self, PyObject *args)
{
    u64 words, base, target, scratch;
    Py_ssize_t n, sub_block, room, scratch_room;
    int index, word_bytes, layout, delta;
    size_t used;
    s4_blob blobs[S4_MAX_PLANES];
    chunk_coder coder;
    (void)self;
    if (!PyArg_ParseTuple(args, "iiiiKKnnKnKn", &index, &word_bytes, &layout, &delta, &base, &words, &n,
                          &sub_block, &target, &room, &scratch, &scratch_room) ||
        !make_coder(index, word_bytes, layout, delta, base, &coder))
        return NULL;
    if ((size_t)room < s4_chunk_out_size(&coder.coding, (size_t)n) ||
        (size_t)scratch_room < s4_chunk_encode_scratch(&coder.coding, (size_t)n))
        return PyErr_Format(PyExc_ValueError, "%zd bytes of output or %zd of scratch are too few", room,
                            scratch_room);
    Py_BEGIN_ALLOW_THREADS
    used = s4_chunk_encode(coder.path, &coder.coding, address(words), (size_t)n, (size_t)sub_block,
                           writable(target), writable(scratch), blobs);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("nN", (Py_ssize_t)used, blob_tuples(blobs, s4_plane_count(&coder.coding)));
}

/* Reads the sequence of (codec, param, address, bytes). */
static int read_planes(PyObject *sequence, int count, size_t n, s4_stored_plane *planes)
{
    if (PySequence_Size(sequence) != count) {
        PyErr_Format(PyExc_ValueError, "expected %d planes", count);
        return 0;
    }
    for (int k = 0; k < count; k++) {
        u64 data;
        Py_ssize_t length;
        PyObject *item = PySequence_GetItem(sequence, k);
        int fine = item && PyArg_ParseTuple(item, "iiKn", &planes[k].codec, &planes[k].param, &data, &length);
        Py_XDECREF(item);
        if (!fine)
            return 0;
        planes[k].data = address(data);
        planes[k].length = (size_t)length;
        if (planes[k].codec == S4_DECODED && planes[k].length != n) {
            PyErr_Format(PyExc_ValueError, "decoded plane of %zd bytes: expected %zu", length, n);
            return 0;
        }
    }
    return 1;
}

static PyObject *py_decode_chunk(PyObject *self, PyObject *args)
{
    u64 words, base, scratch;
    Py_ssize_t n, scratch_room;
    int index, word_bytes, layout, delta, bad, bad_plane = 0;
    PyObject *sequence;
    s4_stored_plane planes[S4_MAX_PLANES];
    s4_fault fault = {0};
    chunk_coder coder;
    (void)self;
    if (!PyArg_ParseTuple(args, "iiiiKOKnKn", &index, &word_bytes, &layout, &delta, &base, &sequence, &words,
                          &n, &scratch, &scratch_room) ||
        !make_coder(index, word_bytes, layout, delta, base, &coder))
        return NULL;
    if ((size_t)scratch_room < s4_chunk_decode_scratch(&coder.coding, (size_t)n))
        return PyErr_Format(PyExc_ValueError, "%zd bytes of scratch are too few", scratch_room);
    int count = s4_plane_count(&coder.coding);
    if (!read_planes(sequence, count, (size_t)(layout == S4_WORDS ? n * word_bytes : n), planes))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    bad = s4_chunk_decode(coder.path, &coder.coding, planes, (size_t)n, writable(words), writable(scratch),
                          &bad_plane, &fault);
    Py_END_ALLOW_THREADS
    if (bad)
        return fault_tuple(&fault);
    Py_RETURN_NONE;
}

static PyObject *py_split(PyObject *self, PyObject *args)
{
    u64 words, base, target;
    Py_ssize_t n;
    int index, word_bytes, layout, delta;
    chunk_coder coder;
    uint8_t *planes[S4_MAX_PLANES];
    (void)self;
    if (!PyArg_ParseTuple(args, "iiiiKKnK", &index, &word_bytes, &layout, &delta, &base, &words, &n, &target) ||
        !make_coder(index, word_bytes, layout, delta, base, &coder))
        return NULL;
    for (int k = 0; k < S4_MAX_PLANES; k++)
        planes[k] = writable(target) + (size_t)k * (size_t)n;
    Py_BEGIN_ALLOW_THREADS
    s4_split(coder.path->words, &coder.coding, address(words), (size_t)n, planes);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"paths", py_paths, METH_NOARGS, "paths() -> names of the instruction sets that can be used, best first"},
    {"address", py_address, METH_O, "address(array) -> where its bytes are; the array must be contiguous"},
    {"histogram", py_histogram, METH_VARARGS, "histogram(source, n, counts): adds to uint32[256]"},
    {"encode_plane", py_encode_plane, METH_VARARGS,
     "encode_plane(path, source, n, sub_block, target, room) -> (codec, param, length)"},
    {"decode_plane", py_decode_plane, METH_VARARGS,
     "decode_plane(path, codec, param, blob, size, target, n) -> None or a fault"},
    {"encode_chunk", py_encode_chunk, METH_VARARGS,
     "encode_chunk(path, word_bytes, layout, delta, base, words, n, sub_block, target, room, scratch, room)"
     " -> (bytes used, [(codec, param, offset, length)])"},
    {"decode_chunk", py_decode_chunk, METH_VARARGS,
     "decode_chunk(path, word_bytes, layout, delta, base, planes, words, n, scratch, room) -> None or a fault"},
    {"split", py_split, METH_VARARGS, "split(path, word_bytes, layout, delta, base, words, n, target)"},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    s4_choice_init();
    s4_path_init();
    if (PyModule_AddFunctions(module, s4_context_methods))
        return -1;
    return PyModule_AddIntConstant(module, "SLACK", S4_SLACK);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Codecs in C; called by s4core.codecs.native only.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
