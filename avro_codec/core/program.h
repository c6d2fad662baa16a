/* The operations of a program, which headrace.avro_codec.program compiles and prints. HR_PROGRAM is their version.
 *
 * A program is a sequence of 32-bit words: the numbers of frames and slots, then operations with their operands. It
 * walks one body from its first byte to its last. The bytes that were walked but not yet written are the *run*; an
 * operation that writes other bytes writes the run first. A body that already is a row is therefore copied in one
 * piece. Jump targets are positions in the words. Constants are (position, size) in the constants of the program.
 */
#ifndef HEADRACE_PROGRAM_H
#define HEADRACE_PROGRAM_H

#include "bytes.h"
#include "core.h"

#define HR_FRAMES_MAX 32  /* nesting of arrays and maps */
#define HR_SLOTS_MAX 4096 /* fields of reordered records, including nested ones */
#define HR_ZERO_WIDTH_ITEMS_MAX 65536
#define HR_GREGORIAN_DAY (-141427) /* 1582-10-15 */

enum {
    OP_END = 0,
    /* Walks: the value is copied unchanged. */
    OP_BOOLEAN,
    OP_INT,
    OP_LONG,
    OP_FIXED,     /* bytes */
    OP_BYTES,     /* */
    OP_STRING,    /* */
    OP_ENUM,      /* symbols */
    OP_DECIMAL,   /* maximum size, largest unscaled value in four words, the lowest first */
    OP_TIMESTAMP, /* maximum, lower and upper half */
    OP_DATE,      /* */
    OP_UNION,     /* number of branches, then the jump target of each */
    OP_CAPTURE,      /* rank, unit: captures the int or long that begins here, which is a time of the message */
    OP_CAPTURE_TEXT, /* rank: captures the time in the string that begins here, if it is an ISO 8601 time */
    /* Writes. */
    OP_EMIT,            /* constant */
    OP_INT_TO_FLOAT,    /* */
    OP_LONG_TO_FLOAT,   /* */
    OP_INT_TO_DOUBLE,   /* */
    OP_LONG_TO_DOUBLE,  /* */
    OP_FLOAT_TO_DOUBLE, /* */
    OP_ENUM_MAP,        /* number of symbols, then the constant of each; empty if rejected */
    OP_UNION_DROP,      /* like OP_UNION, but without writing the index */
    /* Control. */
    OP_JUMP,   /* target */
    OP_REFUSE, /* */
    OP_BLOCK,  /* frame, flags, target at the end of the array or map: reads the head of a block */
    OP_NEXT,   /* frame, flags, target for the next item, target of its OP_BLOCK */
    OP_MARK,   /* slot: stores the start of a field */
    OP_ARRANGE /* first slot, number of slots, number of columns; for each a slot, or a constant */
};

enum { FLAG_REWRITTEN = 1, FLAG_ZERO_WIDTH = 2, FLAG_WALKED = 4 };

enum { PROGRAM_DONE = 0, PROGRAM_REFUSED, PROGRAM_FULL };

/* The time of a message: the one with the lowest rank. `unread` has a bit for each rank with a text that is not a time.
 * `has_old_day` is set by a date or timestamp before 1582-10-15. */
typedef struct {
    int64_t value;
    uint32_t rank; /* HR_TIME_FIELDS_MAX if there is no time */
    uint32_t unit;
    uint32_t unread;
    bool has_old_day;
} hr_captured;

static const hr_captured HR_NOT_CAPTURED = {0, HR_TIME_FIELDS_MAX, HR_UNIT_NONE, 0, false};

/* Reads an ISO 8601 time as milliseconds since 1970; false if the text is none. Like
 * headrace.avro_schema.message_time.parse_time_text. */
bool hr_parse_time_text(const uint8_t *text, uint64_t size, int64_t *time_ms);

/* Appends the row of a body to `out`. Unless it returns PROGRAM_DONE, the caller must discard the appended bytes. */
int hr_execute(const hr_program *program, const uint8_t *body, uint64_t size, hr_out *out, hr_captured *captured);

#endif
