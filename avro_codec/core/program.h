/* The operations of a program, which headrace.avro_codec.program compiles and prints. HR_PROGRAM counts them.
 *
 * A program is a row of 32-bit words: two that say how many frames and slots it needs, then operations with their
 * operands. It walks one body from its first byte to its last. What was walked and not yet written is the *run*: an
 * operation that writes something else writes the run first. So a body that is a row already is copied in one piece.
 * Jumps are positions in the words. Constants are (position, size) in the program's constants.
 */
#ifndef HEADRACE_PROGRAM_H
#define HEADRACE_PROGRAM_H

#include "bytes.h"
#include "core.h"

#define HR_FRAMES_MAX 32  /* arrays and maps inside each other */
#define HR_SLOTS_MAX 4096 /* fields of records that are put into another order, and that are inside each other */
#define HR_ZERO_WIDTH_ITEMS_MAX 65536

enum {
    OP_END = 0,
    /* Walks: the value stays as it is. */
    OP_BOOLEAN,
    OP_INT,
    OP_LONG,
    OP_FIXED,     /* bytes */
    OP_BYTES,     /* */
    OP_STRING,    /* */
    OP_ENUM,      /* symbols */
    OP_DECIMAL,   /* bytes at most */
    OP_TIMESTAMP, /* greatest number, lower and upper half */
    OP_UNION,     /* branches, then where each of them goes on */
    OP_NOTE,      /* the int or long that begins here is the message's time */
    /* Writes. */
    OP_EMIT,            /* constant */
    OP_INT_TO_FLOAT,    /* */
    OP_LONG_TO_FLOAT,   /* */
    OP_INT_TO_DOUBLE,   /* */
    OP_LONG_TO_DOUBLE,  /* */
    OP_FLOAT_TO_DOUBLE, /* */
    OP_ENUM_MAP,        /* symbols, then the constant of each; of no bytes where it has none */
    OP_UNION_DROP,      /* like OP_UNION, and the index is not written */
    /* Ways. */
    OP_JUMP,   /* where to */
    OP_REFUSE, /* */
    OP_BLOCK,  /* frame, flags, where the array or map ends: the head of a block, or the end */
    OP_NEXT,   /* frame, flags, its items, its OP_BLOCK */
    OP_MARK,   /* slot: a field's bytes begin here */
    OP_ARRANGE /* first slot, slots, columns; of each a slot and 0, or a constant */
};

enum { FLAG_REWRITTEN = 1, FLAG_ZERO_WIDTH = 2, FLAG_WALKED = 4 };

enum { PROGRAM_DONE = 0, PROGRAM_REFUSED, PROGRAM_FULL };

typedef struct {
    bool is_seen;
    int64_t value;
} hr_seen;

/* Writes the row of a body behind what `out` holds; on anything but PROGRAM_DONE what it wrote is to be forgotten. */
int hr_execute(const hr_program *program, const uint8_t *body, uint64_t size, hr_out *out, hr_seen *seen);

#endif
