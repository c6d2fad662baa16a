/* Conversion of record batches: parses the records, converts their bodies to rows of the load schema, and counts them
 * for the loader. README.md in this directory describes the design.
 *
 * The specification is headrace.loader.project.projection with its callers, in Python (the reference). The core may
 * reject any message, which is then converted by the reference. For accepted messages its output must equal that of the
 * reference, byte for byte. It allocates no memory and has no state; the caller owns all buffers.
 */
#ifndef HEADRACE_CORE_H
#define HEADRACE_CORE_H

#include <stdbool.h>
#include <stdint.h>

#define HR_ABI 10    /* version of the functions and structures below */
#define HR_PROGRAM 5 /* version of the operations in program.h */

/* A record of a batch. Positions are in the decompressed payload. Sizes are -1 for null. */
typedef struct {
    int64_t offset;
    int64_t time_ms;
    uint32_t key_at;
    int32_t key_size;
    uint32_t value_at;
    int32_t value_size;
    uint32_t headers_at;
    uint32_t end;
} hr_record;

/* The conversion of messages with one schema id, and whether they have a time field. */
typedef struct {
    const uint32_t *code;
    const uint8_t *constants;
    uint64_t constants_size;
    int32_t schema_id;
    int32_t has_time_field;
} hr_program;

#define HR_TIME_FIELDS_MAX 8 /* time fields of one schema; each has a rank, 0 is preferred */

/* Unit of the number that a time field holds. The time of an ISO 8601 text is in milliseconds. */
enum { HR_UNIT_NONE = 0, HR_UNIT_MILLIS, HR_UNIT_MICROS, HR_UNIT_NANOS, HR_UNIT_DAYS, HR_UNIT_TEXT };
enum { HR_SUFFIX_NONE = 0, HR_SUFFIX_POSITION, HR_SUFFIX_FULL };
/* Source of a message's time: the rank of its time field (0 if the schema has none), no time in a field, or the arrival.
 * Counted with the sources, from HR_UNREAD on by rank: texts in time fields that are not times; and rows with a day before
 * 1582-10-15. */
enum {
    HR_SOURCE_NONE = HR_TIME_FIELDS_MAX,
    HR_SOURCE_FUTURE,
    HR_UNREAD,
    HR_OLD_DAY = HR_UNREAD + HR_TIME_FIELDS_MAX,
    HR_SOURCES
};

/* Parameters for all messages of an offset range. */
typedef struct {
    const hr_program *programs; /* ordered by schema id */
    uint64_t program_count;
    const uint8_t *suffix; /* first bytes of the column with the Kafka position */
    uint64_t suffix_size;
    int32_t suffix_mode;
    int32_t is_clamped;
    int64_t future_ms_max;
    int64_t now_ms;
    int64_t time_ms_max;
    int64_t window_ms;
    int64_t period_ms; /* length of a time partition */
} hr_range;

#define HR_WINDOW_SLICES 20

/* The count of one window of message time. A window may occur more than once. */
typedef struct {
    int64_t start_ms;
    int64_t value; /* of its first message: the value in its time field, */
    int64_t time_ms;
    uint64_t count;
    uint64_t bytes;
    uint64_t fingerprint;
    uint32_t program; /* the index of its program, */
    uint16_t source;
    uint16_t unit; /* and the unit of the value */
    uint64_t no_time;  /* messages without a time in their time fields */
    uint64_t total_ms; /* sum of the times after the window's start, */
    int64_t first_ms;  /* and the smallest of them */
    uint32_t slices[HR_WINDOW_SLICES]; /* messages in each part of the window */
} hr_window;

/* The rows of one time partition, adjacent and in offset order. A time partition may occur more than once. */
typedef struct {
    int64_t period;
    uint64_t at; /* position in the rows */
    uint64_t size;
    uint64_t first; /* index in the columns */
    uint64_t count;
} hr_time_partition;

/* Output of one call: buffers of the caller, and how much of them is used. */
typedef struct {
    uint8_t *rows;
    uint8_t *grouped; /* a buffer of the same size for rows of several time partitions */
    uint64_t rows_capacity;
    int64_t *offsets; /* offset of each row, */
    uint64_t *ends;   /* and its end in the bytes of its time partition */
    uint64_t *scratch; /* two numbers per row */
    uint64_t columns_capacity; /* capacity for rows, windows and time partitions */
    hr_window *windows;
    hr_time_partition *time_partitions;
    uint64_t *sources; /* HR_SOURCES numbers per program */
    uint64_t window_count;
    uint64_t time_partition_count;
    uint64_t row_count;
    uint64_t tombstones;
    uint64_t next; /* the first record that was not processed */
    int32_t is_grouped;
    int32_t status; /* HR_DONE, HR_FULL or HR_MESSAGE */
} hr_output;

enum {
    HR_DONE = 0,
    HR_FULL = 1,   /* a buffer is full; call again for the record at `next` */
    HR_MESSAGE = 2 /* the reference must convert the record at `next` */
};

#define HR_TALLIED_TOGETHER 512 /* messages of one call */

/* The count of messages of a consumer: of a partition and window. */
typedef struct {
    uint64_t first; /* index of its first message */
    int64_t window_start_ms;
    uint64_t count;
    uint64_t bytes;
    uint64_t fingerprint;
    uint64_t late;
    int64_t start; /* first offset, */
    int64_t end;   /* and the offset after the last one */
    uint64_t latencies; /* number, sum and maximum of the latencies */
    uint64_t latency_ms;
    uint64_t latency_ms_max;
} hr_tally;

/* The latencies of one bucket of a histogram, by the index of the tally. */
typedef struct {
    uint32_t tally;
    uint32_t bucket;
    uint64_t count;
} hr_latency_bucket;

/* Buffers of the caller for HR_TALLIED_TOGETHER tallies and buckets, and how much of them is used. */
typedef struct {
    hr_tally *tallies;
    hr_latency_bucket *buckets;
    uint64_t tally_count;
    uint64_t bucket_count;
} hr_tally_output;

/* A message of a producer, like `message_digest` of headrace.audit.open_row: hash, and bytes of key and value. */
typedef struct {
    uint64_t hash;
    uint64_t size;
} hr_digest;

enum { HR_SENT = 0, HR_COUNT, HR_BYTES, HR_FINGERPRINT }; /* positions in the sums of a row */
#define HR_LATENCY_MS_MAX INT32_MAX
#define HR_LATENCY_BUCKETS 232 /* of latencies up to HR_LATENCY_MS_MAX */

/* The running count of a producer, for OpenRow of headrace.audit.open_row; the content of a bytearray of Python. */
typedef struct {
    int64_t is_open;
    int64_t start_ms; /* counts the messages with times [start, end) */
    int64_t end_ms;
    int64_t late_from_ms; /* messages that are acknowledged later are late */
    uint64_t *sums;       /* four numbers, in the spool of the process */
    void *none;           /* Python's None */
    uint64_t late;
    uint64_t latencies; /* number, sum and maximum of the latencies */
    uint64_t latency_ms;
    uint64_t latency_ms_max;
    uint32_t buckets[HR_LATENCY_BUCKETS];
} hr_sent_row;

/* The lines of a log. Each becomes a record of one batch. */
typedef struct {
    const uint8_t *body; /* lines with their LF */
    uint64_t body_size;
    const uint8_t *before; /* bytes of each value before the length of its line, */
    uint64_t before_size;
    const uint8_t *after; /* and after the line */
    uint64_t after_size;
    const uint8_t *headers; /* encoded headers of each record, before the 8 bytes of its sequence number */
    uint64_t headers_size;
    uint8_t *records; /* output, a buffer of the caller */
    uint64_t records_capacity;
    uint64_t begin; /* a line's sequence number is this plus the position after its LF */
    uint64_t delta; /* number of records before these in the batch */
    uint64_t record_overhead; /* the size of a record is that of its value and headers plus this: */
    uint64_t record_size_max; /* of one record, */
    uint64_t sizes_max;       /* and of all */
    uint64_t at; /* position of the next line, which the call moves */
    /* Output for the lines before that position: */
    uint64_t count;
    uint64_t records_size; /* used bytes of the buffer */
    uint64_t sizes;
    uint64_t value_bytes;
    uint64_t fingerprint; /* sum of the message hashes */
    int32_t status; /* HR_DONE; HR_FULL if the next line does not fit; HR_MESSAGE if the reference must encode it */
} hr_lines;

int32_t hr_abi(void);
int32_t hr_program_version(void);

/* Parses the records of a payload. Returns 0, or 1 if the reference must report the error. */
int32_t hr_records(const uint8_t *payload, uint64_t size, uint64_t count, int64_t base_offset, int64_t base_time,
                   int32_t has_fixed_time, int64_t fixed_time, hr_record *records);

/* Converts the records [from, to) to rows. */
void hr_run(const hr_range *range, const uint8_t *payload, const hr_record *records, uint64_t from, uint64_t to,
            hr_output *output);

/* Converts one body to a row. Returns its size, or -1 if the reference must report the error. Sets `value` to the number,
 * or the milliseconds of the text, in the time field that determines the time, and `unit` to its unit (HR_UNIT_...). */
int64_t hr_project(const hr_program *program, const uint8_t *body, uint64_t size, uint8_t *row, uint64_t capacity,
                   int32_t *unit, int64_t *value);

/* Validates a body with a program without output. Returns 1 if it is one value, or 0 if the reference must decide. */
int32_t hr_is_value(const hr_program *program, const uint8_t *body, uint64_t size);

/* Returns whether the process has the functions of Python that the next functions call. */
int32_t hr_can_tally(void);

/* The methods `count(time_ms, key, value)` and `acknowledge(digest, latency_s, now_ms)` of OpenRow, as functions of
 * Python with the calling convention METH_FASTCALL. `array` is the bytearray with the hr_sent_row. */
void *hr_row_count(void *array, void *const *arguments, intptr_t count);
void *hr_row_acknowledge(void *array, void *const *arguments, intptr_t count);

/* Adds up the messages [from, to) of a Python list of pairs of a record and its message time. Returns 0, or 1 if the
 * reference must add them up; a Python exception may be set then. */
int32_t hr_tally_delivered(void *messages, void *none, int64_t now_ms, int64_t late_after_ms, int64_t window_ms,
                           uint64_t from, uint64_t to, hr_tally_output *output);

/* Encodes lines as the records of a batch, until the end, the limit of sizes, or a line that is rejected because it is too
 * large or invalid UTF-8. */
void hr_encode_lines(hr_lines *lines);

/* The message hash of headrace.audit.count (XXH64). */
uint64_t hr_message_hash(const uint8_t *key, int64_t key_size, const uint8_t *value, uint64_t value_size);

#endif
