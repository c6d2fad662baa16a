/* Varints, UTF-8 and an output buffer, for all parts. Every read checks the end of its input. */
#ifndef HEADRACE_BYTES_H
#define HEADRACE_BYTES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Reads an unsigned varint of at most 10 bytes and 64 bits; NULL if there is none. */
static inline const uint8_t *hr_slow_varint(const uint8_t *p, const uint8_t *end, uint64_t *value) {
    uint64_t n = 0;
    for (int shift = 0; shift < 70 && p < end; shift += 7) {
        uint8_t c = *p++;
        if (shift == 63 && c > 1) return NULL;
        n |= (uint64_t)(c & 127) << shift;
        if (c < 128) {
            *value = n;
            return p;
        }
    }
    return NULL;
}

static inline const uint8_t *hr_varint(const uint8_t *p, const uint8_t *end, uint64_t *value) {
    if (p < end && *p < 128) {
        *value = *p;
        return p + 1;
    }
    return hr_slow_varint(p, end, value);
}

static inline int64_t hr_unzigzag(uint64_t n) { return (int64_t)(n >> 1) ^ -(int64_t)(n & 1); }

static inline uint64_t hr_zigzag(int64_t n) { return ((uint64_t)n << 1) ^ (uint64_t)(n >> 63); }

static inline const uint8_t *hr_long(const uint8_t *p, const uint8_t *end, int64_t *value) {
    uint64_t n;
    p = hr_varint(p, end, &n);
    if (p != NULL) *value = hr_unzigzag(n);
    return p;
}

/* Reads a length and checks that its bytes exist; NULL if it is negative or too large. */
static inline const uint8_t *hr_bytes(const uint8_t *p, const uint8_t *end, uint64_t *size) {
    uint64_t n;
    p = hr_varint(p, end, &n);
    if (p == NULL || (n & 1) || (n >> 1) > (uint64_t)(end - p)) return NULL;
    *size = n >> 1;
    return p;
}

static inline uint64_t hr_load64(const uint8_t *p) {
    uint64_t n;
    memcpy(&n, p, 8);
    return n;
}

static inline bool hr_is_continuation(uint8_t c) { return (c & 0xC0) == 0x80; }

static inline bool hr_is_ascii(const uint8_t *p, uint64_t size) {
    const uint64_t high = 0x8080808080808080u;
    if (size >= 8) {
        const uint8_t *last = p + size - 8;
        for (; p < last; p += 8)
            if (hr_load64(p) & high) return false;
        return (hr_load64(last) & high) == 0; /* may overlap with checked bytes */
    }
    uint8_t all = 0;
    for (const uint8_t *end = p + size; p < end; p++) all |= *p;
    return all < 128;
}

/* Unicode 15, table 3-7: well-formed byte sequences. */
static inline bool hr_is_utf8(const uint8_t *p, uint64_t size) {
    const uint8_t *end = p + size;
    if (hr_is_ascii(p, size)) return true;
    while (p < end) {
        while (end - p >= 8 && (hr_load64(p) & 0x8080808080808080u) == 0) p += 8;
        while (p < end && *p < 128) p++;
        while (p < end && *p >= 128) {
            uint8_t c = *p;
            uint64_t left = (uint64_t)(end - p);
            if (c >= 0xC2 && c <= 0xDF) {
                if (left < 2 || !hr_is_continuation(p[1])) return false;
                p += 2;
            } else if (c >= 0xE0 && c <= 0xEF) {
                if (left < 3 || !hr_is_continuation(p[1]) || !hr_is_continuation(p[2])) return false;
                if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F)) return false;
                p += 3;
            } else if (c >= 0xF0 && c <= 0xF4) {
                if (left < 4 || !hr_is_continuation(p[1]) || !hr_is_continuation(p[2]) || !hr_is_continuation(p[3]))
                    return false;
                if ((c == 0xF0 && p[1] < 0x90) || (c == 0xF4 && p[1] > 0x8F)) return false;
                p += 4;
            } else {
                return false;
            }
        }
    }
    return true;
}

/* Output of rows. `at` never passes `end`; `is_full` is set if a write did not fit. */
typedef struct {
    uint8_t *at;
    uint8_t *end;
    bool is_full;
} hr_out;

static inline void hr_put(hr_out *out, const uint8_t *data, uint64_t size) {
    if (size > (uint64_t)(out->end - out->at)) {
        out->is_full = true;
        return;
    }
    if (size != 0) memcpy(out->at, data, size);
    out->at += size;
}

static inline void hr_put_long(hr_out *out, int64_t value) {
    uint8_t bytes[10];
    uint64_t n = hr_zigzag(value);
    int size = 0;
    while (n > 127) {
        bytes[size++] = (uint8_t)(n & 127) | 128;
        n >>= 7;
    }
    bytes[size++] = (uint8_t)n;
    hr_put(out, bytes, (uint64_t)size);
}

/* Appends a number in little endian, as Avro encodes floats and doubles. */
static inline void hr_put_fixed(hr_out *out, uint64_t bits, int size) {
    uint8_t bytes[8];
    for (int i = 0; i < size; i++) bytes[i] = (uint8_t)(bits >> (8 * i));
    hr_put(out, bytes, (uint64_t)size);
}

#endif
