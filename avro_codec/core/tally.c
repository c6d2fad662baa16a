/* Adds up the messages of a client by window for the audit, like headrace.audit.tally.
 *
 * The messages are Python objects. Only functions of Python's stable ABI read them, and the caller holds the interpreter
 * lock. They are weak symbols, because processes without Python use the other parts of the core.
 */
#include <string.h>

#include "core.h"
#include "hash.h"

typedef struct PyObject PyObject;
#define PYTHON extern __attribute__((weak))
PYTHON PyObject *PyList_GetItem(PyObject *list, intptr_t index);
PYTHON PyObject *PyTuple_GetItem(PyObject *tuple, intptr_t index);
PYTHON char *PyBytes_AsString(PyObject *bytes);
PYTHON intptr_t PyBytes_Size(PyObject *bytes);
PYTHON long long PyLong_AsLongLong(PyObject *number);
PYTHON double PyFloat_AsDouble(PyObject *number);
PYTHON int PyUnicode_Compare(PyObject *left, PyObject *right);
PYTHON PyObject *PyErr_Occurred(void);
PYTHON unsigned long long PyLong_AsUnsignedLongLong(PyObject *number);
PYTHON PyObject *PyLong_FromUnsignedLongLong(unsigned long long number);
PYTHON PyObject *PyObject_GetAttr(PyObject *object, PyObject *name);
PYTHON void Py_DecRef(PyObject *object);

#define SLOTS (2 * HR_TALLIED_TOGETHER) /* of the hash tables; never full */
#define OUT_OF_RANGE_MS (-600000)
#define TIME_MS_MAX 253402300799999

/* Positions in `FetchedRecord` of headrace.clients.decoding. */
enum { TOPIC = 0, PARTITION = 1, OFFSET = 2, KEY = 4, VALUE = 5 };

typedef struct {
    hr_tally_output *output;
    uint16_t tallies[SLOTS]; /* index plus 1; 0 for none */
    uint16_t buckets[SLOTS];
    uint64_t groups[HR_TALLIED_TOGETHER]; /* of each tally */
} tallies_t;

static uint64_t slot_of(uint64_t group, uint64_t number) {
    return ((group * 0x9E3779B97F4A7C15u ^ number) * 0x9E3779B97F4A7C15u) >> 32;
}

/* Returns the tally of a group of messages (a row, or a run of messages of one partition) and window. */
static hr_tally *tally_of(tallies_t *tallies, uint64_t group, int64_t window_start_ms, uint64_t index) {
    hr_tally_output *output = tallies->output;
    for (uint64_t slot = slot_of(group, (uint64_t)window_start_ms);; slot++) {
        uint16_t *found = &tallies->tallies[slot % SLOTS];
        if (*found == 0) {
            tallies->groups[output->tally_count] = group;
            output->tallies[output->tally_count] = (hr_tally){.first = index, .window_start_ms = window_start_ms};
            *found = (uint16_t)++output->tally_count;
        }
        hr_tally *tally = &output->tallies[*found - 1];
        if (tallies->groups[*found - 1] == group && tally->window_start_ms == window_start_ms) return tally;
    }
}

/* Counts a latency in its bucket, like LatencyHistogram of headrace.audit.latency. */
static void add_latency(tallies_t *tallies, hr_tally *tally, int64_t latency_ms) {
    hr_tally_output *output = tallies->output;
    uint64_t latency = latency_ms < 0 ? 0 : (uint64_t)latency_ms;
    tally->latencies++;
    tally->latency_ms += latency;
    if (latency > tally->latency_ms_max) tally->latency_ms_max = latency;
    uint32_t shift = latency < 16 ? 0 : (uint32_t)(60 - __builtin_clzll(latency));
    uint32_t bucket = shift * 8 + (uint32_t)(latency >> shift), index = (uint32_t)(tally - output->tallies);
    for (uint64_t slot = slot_of(index, bucket);; slot++) {
        uint16_t *found = &tallies->buckets[slot % SLOTS];
        if (*found == 0) {
            output->buckets[output->bucket_count] = (hr_latency_bucket){index, bucket, 0};
            *found = (uint16_t)++output->bucket_count;
        }
        hr_latency_bucket *entry = &output->buckets[*found - 1];
        if (entry->tally == index && entry->bucket == bucket) {
            entry->count++;
            return;
        }
    }
}

/* Computes the hash of key and value, and their size. Returns false if one is no bytes; Python's exception is set. */
static bool hash_message(PyObject *none, PyObject *key, PyObject *value, uint64_t *hash, uint64_t *size) {
    const uint8_t *key_bytes = NULL, *value_bytes = (const uint8_t *)PyBytes_AsString(value);
    int64_t key_size = -1;
    if (value_bytes == NULL) return false;
    if (key != none) {
        key_bytes = (const uint8_t *)PyBytes_AsString(key);
        if (key_bytes == NULL) return false;
        key_size = PyBytes_Size(key);
    }
    uint64_t value_size = (uint64_t)PyBytes_Size(value);
    *size = value_size + (key_size < 0 ? 0 : (uint64_t)key_size);
    *hash = hr_hash(key_bytes, key_size, value_bytes, value_size);
    return true;
}

static void add_message(hr_tally *tally, uint64_t size, uint64_t hash) {
    tally->count++;
    tally->bytes += size;
    tally->fingerprint += hash;
}

void *hr_hash_message(void *none, void *const *arguments, intptr_t count) {
    uint64_t hash, size;
    if (count != 2) {
        PyLong_AsLongLong(none); /* sets a TypeError */
        return NULL;
    }
    return hash_message(none, arguments[0], arguments[1], &hash, &size) ? PyLong_FromUnsignedLongLong(hash) : NULL;
}

int32_t hr_can_tally(void) {
    return PyList_GetItem && PyTuple_GetItem && PyBytes_AsString && PyBytes_Size && PyLong_AsLongLong &&
           PyFloat_AsDouble && PyUnicode_Compare && PyErr_Occurred && PyLong_AsUnsignedLongLong &&
           PyLong_FromUnsignedLongLong && PyObject_GetAttr && Py_DecRef;
}

/* Returns an attribute, or NULL. The object owns the value as long as the caller holds the interpreter lock. */
static PyObject *attribute(PyObject *object, PyObject *names, intptr_t index) {
    PyObject *value = PyObject_GetAttr(object, PyTuple_GetItem(names, index));
    if (value != NULL) Py_DecRef(value);
    return value;
}

int32_t hr_tally_sent(void *messages, void *names, void *none, uint64_t from, uint64_t to, hr_tally_output *output) {
    tallies_t tallies = {.output = output};
    output->tally_count = output->bucket_count = 0;
    if (to < from || to - from > HR_TALLIED_TOGETHER) return 1;
    for (uint64_t i = from; i < to; i++) {
        PyObject *message = PyList_GetItem(messages, (intptr_t)i);
        if (message == NULL) return 1;
        PyObject *row = attribute(message, names, 0), *size = attribute(message, names, 1);
        PyObject *hash = attribute(message, names, 2), *latency_s = attribute(message, names, 3);
        if (row == NULL || size == NULL || hash == NULL || latency_s == NULL) return 1;
        hr_tally *tally = tally_of(&tallies, (uint64_t)(uintptr_t)row, 0, i);
        add_message(tally, (uint64_t)PyLong_AsLongLong(size), PyLong_AsUnsignedLongLong(hash));
        if (latency_s == none) continue;
        double latency_ms = PyFloat_AsDouble(latency_s) * 1000;
        if (!(latency_ms > -1e15 && latency_ms < 1e15)) return 1;
        add_latency(&tallies, tally, (int64_t)latency_ms);
    }
    return PyErr_Occurred() != NULL;
}

int32_t hr_tally_delivered(void *messages, void *none, int64_t now_ms, int64_t late_after_ms, int64_t window_ms,
                           uint64_t from, uint64_t to, hr_tally_output *output) {
    tallies_t tallies = {.output = output};
    PyObject *last_topic = NULL;
    int64_t last_partition = 0;
    uint64_t group = 0;
    hr_tally *tally = NULL;
    output->tally_count = output->bucket_count = 0;
    if (to < from || to - from > HR_TALLIED_TOGETHER || window_ms <= 0) return 1;
    for (uint64_t i = from; i < to; i++) {
        PyObject *message = PyList_GetItem(messages, (intptr_t)i);
        PyObject *record = message == NULL ? NULL : PyTuple_GetItem(message, 0);
        if (record == NULL) return 1;
        int64_t time_ms = PyLong_AsLongLong(PyTuple_GetItem(message, 1));
        PyObject *topic = PyTuple_GetItem(record, TOPIC);
        int64_t partition = PyLong_AsLongLong(PyTuple_GetItem(record, PARTITION));
        int64_t offset = PyLong_AsLongLong(PyTuple_GetItem(record, OFFSET));
        if (topic == NULL || ((time_ms == -1 || partition == -1 || offset == -1) && PyErr_Occurred())) return 1;
        if (last_topic == NULL || partition != last_partition ||
            (topic != last_topic && PyUnicode_Compare(topic, last_topic) != 0)) {
            group++;
            tally = NULL;
        }
        last_topic = topic;
        last_partition = partition;
        bool is_time = time_ms >= 0 && time_ms <= TIME_MS_MAX;
        if (tally == NULL || !is_time || time_ms < tally->window_start_ms ||
            time_ms - tally->window_start_ms >= window_ms) {
            tally = tally_of(&tallies, group, is_time ? time_ms - time_ms % window_ms : OUT_OF_RANGE_MS, i);
            if (tally->count == 0) tally->start = tally->end = offset;
        }
        uint64_t hash, size;
        if (!hash_message(none, PyTuple_GetItem(record, KEY), PyTuple_GetItem(record, VALUE), &hash, &size)) return 1;
        add_message(tally, size, hash);
        if (offset < tally->start) tally->start = offset;
        if (offset >= tally->end) tally->end = offset + 1;
        if (!is_time) continue;
        add_latency(&tallies, tally, now_ms - time_ms);
        tally->late += now_ms - tally->window_start_ms - window_ms > late_after_ms;
    }
    return PyErr_Occurred() != NULL;
}
