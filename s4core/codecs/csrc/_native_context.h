/* Functions that _native.c adds to its module. */
#ifndef S4_NATIVE_CONTEXT_H
#define S4_NATIVE_CONTEXT_H

#include <Python.h>

extern PyMethodDef s4_context_methods[];

#endif
