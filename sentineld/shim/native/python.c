// SPDX-License-Identifier: Apache-2.0
/*
 * The functions that the Python hooks call in every step. They are CPython built-in
 * functions, because a call of a built-in function takes a few tens of ns, whereas
 * a call through ctypes takes several hundred ns. The functions below use only
 * PyMethodDef and a few functions of CPython's stable ABI, which are declared here so
 * that no Python headers are needed. native.py wraps the functions below in Python
 * objects with PyCFunction_NewEx. The library is not linked with CPython: at the first
 * call of a CPython function, the dynamic linker finds this function in the Python
 * process (-z lazy in the Makefile).
 */
#include "shim.h"

typedef struct _object PyObject;
typedef struct _ts PyThreadState;
typedef PyObject *(*py_function)(PyObject *self, PyObject *argument);

extern long PyLong_AsLong(PyObject *number);
extern void Py_IncRef(PyObject *object);
extern PyThreadState *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(PyThreadState *state);

#define METH_NOARGS 0x0004
#define METH_O 0x0008

struct py_method_def { /* PyMethodDef */
	const char *name;
	py_function function;
	int flags;
	const char *doc;
};

static PyObject *none;

API struct py_method_def *sentinel_methods(void);
API void sentinel_none(PyObject *object);

/* Set the None object. native.py passes the object, because the name of its symbol differs between
   Python versions. */
API void sentinel_none(PyObject *object)
{
	none = object;
}

static PyObject *return_none(void)
{
	Py_IncRef(none);
	return none;
}

static void wait_for(uint64_t position)
{
	PyThreadState *state;

	if (!position || observe(moves_done) >= position)
		return;
	state = PyEval_SaveThread();
	barrier_wait(position);
	PyEval_RestoreThread(state);
}

/* Emulated tiers: wait, and thereby pay the delay debt of the past stretches. all: pay even a small
   debt. */
static void pay_debt(bool all)
{
	uint64_t debt_ns = debt_due(all);
	PyThreadState *state;

	if (!debt_ns)
		return;
	state = PyEval_SaveThread();
	debt_pay(debt_ns);
	PyEval_RestoreThread(state);
}

static void pass(enum sentinel_boundary kind, uint32_t layer)
{
	if (!shim.on || !is_owner())
		return;
	pay_debt(false);
	wait_for(boundary_pass(kind, layer));
	stretch_begin();
}

static PyObject *py_forward(PyObject *self, PyObject *layer)
{
	(void)self;
	pass(SENTINEL_BOUNDARY_FORWARD, (uint32_t)PyLong_AsLong(layer));
	return return_none();
}

static PyObject *py_forward_end(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	boundary_leaf_ended();
	return return_none();
}

/* A prehook of a grad_fn. native.py binds this function to a layer's number, which is the first
   argument. Autograd passes the gradients. */
static PyObject *py_backward(PyObject *layer, PyObject *gradients)
{
	(void)gradients;
	pass(SENTINEL_BOUNDARY_BACKWARD, (uint32_t)PyLong_AsLong(layer));
	return return_none();
}

static PyObject *py_optimizer(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	pass(SENTINEL_BOUNDARY_OPTIMIZER, 0);
	return return_none();
}

static PyObject *py_step_end(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	if (shim.on && is_owner()) {
		pay_debt(true);
		step_end();
	}
	return return_none();
}

static PyObject *py_step_begin(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	if (shim.on) {
		wait_for(step_begin());
		stretch_begin();
	}
	return return_none();
}

static struct py_method_def methods[] = {
	{"forward", py_forward, METH_O, "forward(layer): a leaf module's forward begins"},
	{"forward_end", py_forward_end, METH_NOARGS, "forward_end(): a leaf module's forward has ended"},
	{"backward", py_backward, METH_O, "backward(gradients): the bound layer's backward begins"},
	{"optimizer", py_optimizer, METH_NOARGS, "optimizer(): optimizer.step begins"},
	{"step_end", py_step_end, METH_NOARGS, "step_end(): the step has ended"},
	{"step_begin", py_step_begin, METH_NOARGS, "step_begin(): the next step begins"},
	{0},
};

API struct py_method_def *sentinel_methods(void)
{
	return methods;
}
