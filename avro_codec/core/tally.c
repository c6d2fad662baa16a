/* Counts the messages of clients for the audit, like headrace.audit.open_row and headrace.audit.tally.
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
PYTHON int PyBytes_AsStringAndSize(PyObject *bytes, char **start, intptr_t *size);
PYTHON long PyLong_AsLong(PyObject *number); /* several times as fast as PyLong_AsLongLong */
PYTHON double PyFloat_AsDouble(PyObject *number);
PYTHON int PyUnicode_Compare(PyObject *left, PyObject *right);
PYTHON PyObject *PyErr_Occurred(void);
PYTHON void PyErr_Clear(void);
PYTHON PyObject *PyBool_FromLong(long number);
PYTHON PyObject *PyBytes_FromStringAndSize(const char *start, intptr_t size);
PYTHON char *PyByteArray_AsString(PyObject *array);
PYTHON void Py_IncRef(PyObject *object);

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

/* Returns the tally of a group of messages (a run of messages of one partition) and window. */
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

/* Returns the bucket of a latency, like LatencyHistogram of headrace.audit.latency. */
static uint32_t bucket_of(uint64_t latency) {
    uint32_t shift = latency < 16 ? 0 : (uint32_t)(60 - __builtin_clzll(latency));
    return shift * 8 + (uint32_t)(latency >> shift);
}

static void add_latency(tallies_t *tallies, hr_tally *tally, int64_t latency_ms) {
    hr_tally_output *output = tallies->output;
    uint64_t latency = latency_ms < 0 ? 0 : (uint64_t)latency_ms;
    tally->latencies++;
    tally->latency_ms += latency;
    if (latency > tally->latency_ms_max) tally->latency_ms_max = latency;
    uint32_t bucket = bucket_of(latency), index = (uint32_t)(tally - output->tallies);
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
    char *key_bytes = NULL, *value_bytes;
    intptr_t key_size = -1, value_size;
    if (PyBytes_AsStringAndSize(value, &value_bytes, &value_size) != 0) return false;
    if (key != none && PyBytes_AsStringAndSize(key, &key_bytes, &key_size) != 0) return false;
    *size = (uint64_t)value_size + (key_size < 0 ? 0 : (uint64_t)key_size);
    *hash = hr_hash((const uint8_t *)key_bytes, key_size, (const uint8_t *)value_bytes, (uint64_t)value_size);
    return true;
}

int32_t hr_can_tally(void) {
    return sizeof(long) == sizeof(int64_t) && PyList_GetItem && PyTuple_GetItem && PyBytes_AsStringAndSize &&
           PyBytes_FromStringAndSize && PyLong_AsLong && PyBool_FromLong && PyFloat_AsDouble && PyUnicode_Compare &&
           PyErr_Occurred && PyErr_Clear && PyByteArray_AsString && Py_IncRef;
}

/* Sets a TypeError. `bytes` is a bytes object or a bytearray. */
static void *wrong_type(PyObject *bytes) {
    PyLong_AsLong(bytes);
    return NULL;
}

/* Returns the row of a function, or NULL with a TypeError if the function was called with another number of arguments. */
static hr_sent_row *row_of(void *array, intptr_t count, intptr_t expected) {
    return count == expected ? (hr_sent_row *)PyByteArray_AsString(array) : wrong_type(array);
}

void *hr_row_count(void *array, void *const *arguments, intptr_t count) {
    hr_sent_row *row = row_of(array, count, 3);
    if (row == NULL) return NULL;
    bool is_counted = row->is_open;
    if (is_counted && arguments[0] != row->none) {
        int64_t time_ms = PyLong_AsLong(arguments[0]);
        is_counted = time_ms >= row->start_ms && time_ms < row->end_ms;
        if (time_ms == -1) PyErr_Clear(); /* no number of 64 bits; the caller then chooses the window */
    }
    if (!is_counted) {
        Py_IncRef(row->none);
        return row->none;
    }
    hr_digest digest;
    if (!hash_message(row->none, arguments[1], arguments[2], &digest.hash, &digest.size)) return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)&digest, sizeof digest);
    if (bytes != NULL) row->sums[HR_SENT]++;
    return bytes;
}

void *hr_row_acknowledge(void *array, void *const *arguments, intptr_t count) {
    hr_sent_row *row = row_of(array, count, 3);
    if (row == NULL) return NULL;
    if (!row->is_open) return PyBool_FromLong(0);
    hr_digest digest;
    char *bytes;
    intptr_t size;
    if (PyBytes_AsStringAndSize(arguments[0], &bytes, &size) != 0) return NULL;
    if (size != sizeof digest) return wrong_type(arguments[0]);
    memcpy(&digest, bytes, sizeof digest);
    bool has_latency = arguments[1] != row->none;
    double latency_s = has_latency ? PyFloat_AsDouble(arguments[1]) : 0;
    double now_ms = PyFloat_AsDouble(arguments[2]); /* of a float, ten times as fast as the conversion of an int */
    if ((latency_s == -1 || now_ms == -1) && PyErr_Occurred()) return NULL;
    row->sums[HR_COUNT]++;
    row->sums[HR_BYTES] += digest.size;
    row->sums[HR_FINGERPRINT] += digest.hash;
    row->late += now_ms > (double)row->late_from_ms;
    if (has_latency) {
        double latency_ms = latency_s * 1000;
        uint64_t latency = !(latency_ms > 0) ? 0 : latency_ms < HR_LATENCY_MS_MAX ? (uint64_t)latency_ms : HR_LATENCY_MS_MAX;
        row->latencies++;
        row->latency_ms += latency;
        if (latency > row->latency_ms_max) row->latency_ms_max = latency;
        row->buckets[bucket_of(latency)]++;
    }
    return PyBool_FromLong(1);
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
        int64_t time_ms = PyLong_AsLong(PyTuple_GetItem(message, 1));
        PyObject *topic = PyTuple_GetItem(record, TOPIC);
        int64_t partition = PyLong_AsLong(PyTuple_GetItem(record, PARTITION));
        int64_t offset = PyLong_AsLong(PyTuple_GetItem(record, OFFSET));
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
        tally->count++;
        tally->bytes += size;
        tally->fingerprint += hash;
        if (offset < tally->start) tally->start = offset;
        if (offset >= tally->end) tally->end = offset + 1;
        if (!is_time) continue;
        add_latency(&tallies, tally, now_ms - time_ms);
        tally->late += now_ms - tally->window_start_ms - window_ms > late_after_ms;
    }
    return PyErr_Occurred() != NULL;
}
