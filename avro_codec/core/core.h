/* The byte path, batch by batch: records of a batch, their bodies made rows of the load schema, and what the loader
 * counts of them. The page README.md beside this file says how the pieces fit.
 *
 * Nothing here is the meaning of anything: that is headrace.loader.project.projection and what calls it, in Python. The
 * core may refuse whatever it likes, since what it refuses goes through the reference; what it accepts must come out as
 * there, to the byte. It allocates nothing and keeps no state: every buffer is the caller's.
 */
#ifndef HEADRACE_CORE_H
#define HEADRACE_CORE_H

#include <stdint.h>

#define HR_ABI 2     /* of the functions and structures below */
#define HR_PROGRAM 1 /* of the operations in program.h */

/* One record of a batch; positions are in its decompressed payload. Sizes are -1 for null. */
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

/* How the messages of one schema id become rows, and where their time stands. */
typedef struct {
    const uint32_t *code;
    const uint8_t *constants;
    uint64_t constants_size;
    int32_t schema_id;
    int32_t time_unit; /* HR_UNIT_..., HR_UNIT_NONE where no field gives the time */
} hr_program;

enum { HR_UNIT_NONE = 0, HR_UNIT_MILLIS, HR_UNIT_MICROS, HR_UNIT_NANOS, HR_UNIT_DAYS };
enum { HR_SUFFIX_NONE = 0, HR_SUFFIX_POSITION, HR_SUFFIX_FULL };
/* Where a message's time is from. */
enum { HR_SOURCE_OWN = 0, HR_SOURCE_NULL, HR_SOURCE_FUTURE, HR_SOURCES };

/* What all messages of a range have in common. */
typedef struct {
    const hr_program *programs; /* by schema id, ascending */
    uint64_t program_count;
    const uint8_t *suffix; /* what the column that says where a row came from begins with */
    uint64_t suffix_size;
    int32_t suffix_mode;
    int32_t is_clamped;
    int64_t future_ms_max;
    int64_t now_ms;
    int64_t time_ms_max;
    int64_t window_ms;
    int64_t period_ms; /* of a bucket */
} hr_range;

/* What was counted in one window of message time. A window may come more than once. */
typedef struct {
    int64_t start_ms;
    int64_t value; /* of its first message: what the source of the time says, */
    int64_t time_ms;
    uint64_t count;
    uint64_t bytes;
    uint64_t fingerprint;
    uint32_t program; /* and which program it had */
    int32_t source;
} hr_window;

/* Rows of one bucket, which lie together and are in offset order. A bucket may come more than once. */
typedef struct {
    int64_t period;
    uint64_t at; /* in the rows */
    uint64_t size;
    uint64_t first; /* in the columns */
    uint64_t count;
} hr_bucket;

/* Room for what one call gives back, all of it the caller's, and how much of it was taken. */
typedef struct {
    uint8_t *rows;
    uint8_t *grouped; /* as much room again: where the rows are when they are of several buckets */
    uint64_t rows_room;
    int64_t *offsets; /* of each row, */
    uint64_t *ends;   /* and where it ends in the bytes of its bucket */
    uint64_t *scratch; /* two numbers for each row */
    uint64_t columns_room; /* rows, windows and buckets that there is room for */
    hr_window *windows;
    hr_bucket *buckets;
    uint64_t *sources; /* HR_SOURCES numbers for each program */
    uint64_t window_count;
    uint64_t bucket_count;
    uint64_t row_count;
    uint64_t tombstones;
    uint64_t next; /* the first record that was not taken */
    int32_t is_grouped;
    int32_t status; /* HR_DONE, HR_FULL or HR_MESSAGE */
} hr_taken;

enum {
    HR_DONE = 0,
    HR_FULL = 1,   /* there was no room for the record at `next`; call again */
    HR_MESSAGE = 2 /* the record at `next` is for the reference */
};

int32_t hr_abi(void);
int32_t hr_program_version(void);

/* Takes the records of a payload apart. Returns 0, or 1 where the reference is to say what is wrong. */
int32_t hr_records(const uint8_t *payload, uint64_t size, uint64_t count, int64_t base_offset, int64_t base_time,
                   int32_t has_fixed_time, int64_t fixed_time, hr_record *records);

/* Makes rows of the records [from, to). */
void hr_run(const hr_range *range, const uint8_t *payload, const hr_record *records, uint64_t from, uint64_t to,
            hr_taken *taken);

/* The row of one body: its size, or -1 where the reference is to say what is wrong. `seen` is set to 1 and `value` to
 * the number at the time field where the body has one. */
int64_t hr_project(const hr_program *program, const uint8_t *body, uint64_t size, uint8_t *row, uint64_t room,
                   int32_t *seen, int64_t *value);

/* Whether a body is one value, by a program that only walks: 1, or 0 where the reference is to say what is wrong. */
int32_t hr_is_value(const hr_program *program, const uint8_t *body, uint64_t size);

/* XXH64 of a message, as headrace.audit.count has it. */
uint64_t hr_message_hash(const uint8_t *key, int64_t key_size, const uint8_t *value, uint64_t value_size);

#endif
