/* Executes a program on a body. Every read checks the end of the body. The nesting depth is that of the program, not of
 * the body, so there is no recursion. */
#include "program.h"

typedef struct {
    uint64_t left;
    const uint8_t *end; /* required end of the items of the block; NULL if not given */
} frame_t;

typedef struct {
    const uint8_t *p;
    const uint8_t *end;
    const uint8_t *run;
    const uint8_t *constants;
    hr_out *out;
    uint8_t *row;
    uint64_t zero_width_items;
    uint64_t slots[HR_SLOTS_MAX + 1];
    frame_t frames[HR_FRAMES_MAX];
} machine_t;

static inline void flush(machine_t *m) {
    hr_put(m->out, m->run, (uint64_t)(m->p - m->run));
    m->run = m->p;
}

static inline void emit(machine_t *m, const uint32_t *constant) {
    hr_put(m->out, m->constants + constant[0], constant[1]);
}

/* An int has at most 32 bits and 5 bytes, a long 64 bits and 10 bytes. */
static inline const uint8_t *skip_int(const uint8_t *p, const uint8_t *end) {
    for (int i = 0; i < 5 && p < end; i++) {
        uint8_t c = *p++;
        if (c < 128) return i == 4 && c > 15 ? NULL : p;
    }
    return NULL;
}

static const uint8_t *read_number(bool is_int, const uint8_t *p, const uint8_t *end, int64_t *value) {
    if (is_int && skip_int(p, end) == NULL) return NULL;
    return hr_long(p, end, value);
}

static const uint8_t *read_index(const uint8_t *p, const uint8_t *end, uint32_t count, uint32_t *index) {
    uint64_t n;
    p = hr_varint(p, end, &n);
    if (p == NULL || (n & 1) || (n >> 1) >= count) return NULL;
    *index = (uint32_t)(n >> 1);
    return p;
}

static const uint8_t *read_timestamp(const uint8_t *p, const uint8_t *end, uint64_t greatest, int64_t *value) {
    p = hr_long(p, end, value);
    if (p == NULL || *value == INT64_MIN || (uint64_t)(*value < 0 ? -*value : *value) > greatest) return NULL;
    return p;
}

/* Whether a two's-complement number of at least one byte, the highest first, is within the bounds of a decimal.
 * `largest` is less than 2^127. */
static bool fits_decimal(const uint8_t *p, uint64_t size, const uint32_t *largest) {
    uint64_t sign = p[0] & 128 ? UINT64_MAX : 0, high = sign, low = sign;
    uint64_t largest_low = (uint64_t)largest[1] << 32 | largest[0];
    uint64_t largest_high = (uint64_t)largest[3] << 32 | largest[2];
    /* Writers may repeat the sign in front of a number. */
    for (; size > 16; size--)
        if (*p++ != (uint8_t)sign) return false;
    for (; size > 0; size--) {
        high = high << 8 | low >> 56;
        low = low << 8 | *p++;
    }
    /* The complement of a negative number -n is n - 1. A wrong sign after the loops leaves the highest bit set. */
    high ^= sign;
    low ^= sign;
    if (high != largest_high) return high < largest_high;
    return sign == 0 ? low <= largest_low : low < largest_low;
}

/* Writes a number as float or double, rounded once to the nearest. */
static const uint8_t *promote(machine_t *m, uint32_t op) {
    int64_t n;
    const uint8_t *p = read_number(op == OP_INT_TO_FLOAT || op == OP_INT_TO_DOUBLE, m->p, m->end, &n);
    if (p == NULL) return NULL;
    flush(m);
    if (op == OP_INT_TO_FLOAT || op == OP_LONG_TO_FLOAT) {
        float value = (float)n;
        uint32_t bits;
        memcpy(&bits, &value, 4);
        hr_put_fixed(m->out, bits, 4);
    } else {
        double value = (double)n;
        uint64_t bits;
        memcpy(&bits, &value, 8);
        hr_put_fixed(m->out, bits, 8);
    }
    return p;
}

static const uint8_t *float_to_double(machine_t *m) {
    if (m->end - m->p < 4) return NULL;
    uint32_t bits = 0;
    for (int i = 3; i >= 0; i--) bits = (bits << 8) | m->p[i];
    /* The conversion of a signalling NaN depends on the machine, so it is left to the reference. */
    if ((bits & 0x7F800000u) == 0x7F800000u && (bits & 0x007FFFFFu) != 0 && (bits & 0x00400000u) == 0) return NULL;
    float value;
    memcpy(&value, &bits, 4);
    double wide = (double)value;
    uint64_t wide_bits;
    memcpy(&wide_bits, &wide, 8);
    flush(m);
    hr_put_fixed(m->out, wide_bits, 8);
    return m->p + 4;
}

/* Reads the head of a block. Sets `left` to 0 at the end of the array or map. */
static bool open_block(machine_t *m, frame_t *frame, uint32_t flags) {
    int64_t count, size;
    const uint8_t *p = m->p;
    if (flags & FLAG_REWRITTEN) flush(m);
    p = hr_long(p, m->end, &count);
    if (p == NULL || count == INT64_MIN) return false;
    frame->end = NULL;
    if (count < 0) {
        p = hr_long(p, m->end, &size);
        if (p == NULL || size < 0 || size > m->end - p) return false;
        count = -count;
        frame->end = p + size;
    }
    frame->left = (uint64_t)count;
    if (flags & FLAG_ZERO_WIDTH) {
        if (frame->left > HR_ZERO_WIDTH_ITEMS_MAX - m->zero_width_items) return false;
        m->zero_width_items += frame->left;
    } else if (frame->left > (uint64_t)(m->end - p)) {
        return false;
    }
    m->p = p;
    if (flags & FLAG_REWRITTEN) {
        m->run = p;
        hr_put_long(m->out, count);
    }
    return true;
}

/* Reorders the columns of a record: writes them after the record, then moves them to its start. */
static bool arrange(machine_t *m, const uint32_t *operands) {
    uint32_t first = operands[0], slots = operands[1], columns = operands[2];
    flush(m);
    m->slots[first + slots] = (uint64_t)(m->out->at - m->row);
    uint8_t *start = m->row + m->slots[first], *arranged = m->out->at;
    for (uint32_t i = 0; i < columns; i++) {
        const uint32_t *column = operands + 3 + 3 * i;
        if (column[0] == 0) {
            emit(m, column + 1);
        } else {
            uint64_t at = m->slots[column[1]];
            hr_put(m->out, m->row + at, m->slots[column[1] + 1] - at);
        }
    }
    if (m->out->is_full) return false;
    uint64_t size = (uint64_t)(m->out->at - arranged);
    memmove(start, arranged, size);
    m->out->at = start + size;
    return true;
}

static inline void capture(hr_captured *captured, uint32_t rank, uint32_t unit, int64_t value) {
    if (rank >= captured->rank) return;
    captured->rank = rank;
    captured->unit = unit;
    captured->value = value;
}

#define WALK(expression)                  \
    do {                                  \
        const uint8_t *q = (expression);  \
        if (q == NULL) goto refused;      \
        m.p = q;                          \
    } while (0)

int hr_execute(const hr_program *program, const uint8_t *body, uint64_t size, hr_out *out, hr_captured *captured) {
    machine_t m;
    const uint32_t *code = program->code, *op = code + 2;
    uint64_t n;
    int64_t value;
    uint32_t index;
    m.p = m.run = body;
    m.end = body + size;
    m.constants = program->constants;
    m.out = out;
    m.row = out->at;
    m.zero_width_items = 0;
    for (;;) {
        switch (op[0]) {
        case OP_END:
            if (m.p != m.end) goto refused;
            flush(&m);
            return out->is_full ? PROGRAM_FULL : PROGRAM_DONE;
        case OP_BOOLEAN:
            if (m.p == m.end || *m.p > 1) goto refused;
            m.p++;
            op += 1;
            break;
        case OP_INT:
            WALK(skip_int(m.p, m.end));
            op += 1;
            break;
        case OP_LONG:
            WALK(hr_varint(m.p, m.end, &n));
            op += 1;
            break;
        case OP_FIXED:
            if (op[1] > (uint64_t)(m.end - m.p)) goto refused;
            m.p += op[1];
            op += 2;
            break;
        case OP_BYTES:
            WALK(hr_bytes(m.p, m.end, &n));
            m.p += n;
            op += 1;
            break;
        case OP_STRING:
            WALK(hr_bytes(m.p, m.end, &n));
            if (!hr_is_utf8(m.p, n)) goto refused;
            m.p += n;
            op += 1;
            break;
        case OP_ENUM:
            WALK(read_index(m.p, m.end, op[1], &index));
            op += 2;
            break;
        case OP_DECIMAL:
            WALK(hr_bytes(m.p, m.end, &n));
            if (n == 0 || n > op[1] || !fits_decimal(m.p, n, op + 2)) goto refused;
            m.p += n;
            op += 6;
            break;
        case OP_TIMESTAMP:
            WALK(read_timestamp(m.p, m.end, (uint64_t)op[2] << 32 | op[1], &value));
            if (value < HR_GREGORIAN_DAY * INT64_C(86400000)) captured->has_old_day = true;
            op += 3;
            break;
        case OP_DATE:
            WALK(read_number(true, m.p, m.end, &value));
            if (value < HR_GREGORIAN_DAY) captured->has_old_day = true;
            op += 1;
            break;
        case OP_UNION:
            WALK(read_index(m.p, m.end, op[1], &index));
            op = code + op[2 + index];
            break;
        case OP_CAPTURE:
            if (hr_long(m.p, m.end, &value) == NULL) goto refused;
            capture(captured, op[1], op[2], value);
            op += 3;
            break;
        case OP_CAPTURE_TEXT: {
            const uint8_t *text = hr_bytes(m.p, m.end, &n);
            if (text == NULL) goto refused;
            if (hr_parse_time_text(text, n, &value))
                capture(captured, op[1], HR_UNIT_TEXT, value);
            else
                captured->unread |= 1u << op[1];
            op += 2;
            break;
        }
        case OP_EMIT:
            flush(&m);
            emit(&m, op + 1);
            op += 3;
            break;
        case OP_INT_TO_FLOAT:
        case OP_LONG_TO_FLOAT:
        case OP_INT_TO_DOUBLE:
        case OP_LONG_TO_DOUBLE:
            WALK(promote(&m, op[0]));
            m.run = m.p;
            op += 1;
            break;
        case OP_FLOAT_TO_DOUBLE:
            WALK(float_to_double(&m));
            m.run = m.p;
            op += 1;
            break;
        case OP_ENUM_MAP:
            flush(&m);
            WALK(read_index(m.p, m.end, op[1], &index));
            m.run = m.p;
            if (op[3 + 2 * index] == 0) goto refused;
            emit(&m, op + 2 + 2 * index);
            op += 2 + 2 * op[1];
            break;
        case OP_UNION_DROP:
            flush(&m);
            WALK(read_index(m.p, m.end, op[1], &index));
            m.run = m.p;
            op = code + op[2 + index];
            break;
        case OP_JUMP:
            op = code + op[1];
            break;
        case OP_BLOCK:
            if (!open_block(&m, &m.frames[op[1]], op[2])) goto refused;
            if (m.frames[op[1]].left == 0) {
                op = code + op[3];
            } else if (op[2] & FLAG_WALKED) {
                /* Items without bytes that are not rewritten are only counted. */
                m.frames[op[1]].left = 1;
                op += 4;
            } else {
                op += 4;
            }
            break;
        case OP_NEXT: {
            frame_t *frame = &m.frames[op[1]];
            if (out->is_full) return PROGRAM_FULL;
            if (--frame->left > 0) {
                op = code + op[3];
            } else {
                if (frame->end != NULL && frame->end != m.p) goto refused;
                op = code + op[4];
            }
            break;
        }
        case OP_MARK:
            flush(&m);
            m.slots[op[1]] = (uint64_t)(out->at - m.row);
            op += 2;
            break;
        case OP_ARRANGE:
            if (!arrange(&m, op + 1)) return PROGRAM_FULL;
            op += 4 + 3 * op[3];
            break;
        default: /* OP_REFUSE */
            goto refused;
        }
    }
refused:
    return PROGRAM_REFUSED;
}

int64_t hr_project(const hr_program *program, const uint8_t *body, uint64_t size, uint8_t *row, uint64_t capacity,
                   int32_t *unit, int64_t *value) {
    hr_out out = {row, row + capacity, false};
    hr_captured captured = HR_NOT_CAPTURED;
    if (hr_execute(program, body, size, &out, &captured) != PROGRAM_DONE) return -1;
    *unit = (int32_t)captured.unit;
    *value = captured.value;
    return out.at - row;
}

int32_t hr_is_value(const hr_program *program, const uint8_t *body, uint64_t size) {
    /* Only the run is written, after the complete walk, and the buffer is empty. */
    uint8_t empty[1];
    hr_out out = {empty, empty, false};
    hr_captured captured = HR_NOT_CAPTURED;
    return hr_execute(program, body, size, &out, &captured) != PROGRAM_REFUSED;
}
