/* Parses the records of a batch like headrace.kafka_wire.record_batch.parse_records. */
#include "bytes.h"
#include "core.h"

#define SAFE_MS ((int64_t)1 << 62) /* the sum of two numbers below this fits into 64 bits */
#define RECORD_BYTES_MIN 7

int32_t hr_abi(void) { return HR_ABI; }

int32_t hr_program_version(void) { return HR_PROGRAM; }

/* Reads a nullable length and checks that its bytes end before `end`. */
static const uint8_t *nullable(const uint8_t *p, const uint8_t *end, const uint8_t *payload, uint32_t *at,
                               int32_t *size) {
    uint64_t n;
    p = hr_varint(p, end, &n);
    if (p == NULL) return NULL;
    *at = (uint32_t)(p - payload);
    if (n & 1) {
        *size = -1;
        return p;
    }
    n >>= 1;
    if (n > (uint64_t)(end - p) || n > INT32_MAX) return NULL;
    *size = (int32_t)n;
    return p + n;
}

int32_t hr_records(const uint8_t *payload, uint64_t size, uint64_t count, int64_t base_offset, int64_t base_time,
                   int32_t has_fixed_time, int64_t fixed_time, hr_record *records) {
    const uint8_t *p = payload, *payload_end = payload + size;
    int64_t last_delta = -1;
    if (size > UINT32_MAX || count > size / RECORD_BYTES_MIN || base_offset < 0) return 1;
    if (base_time <= -SAFE_MS || base_time >= SAFE_MS) return 1;
    for (uint64_t i = 0; i < count; i++) {
        hr_record *record = &records[i];
        uint64_t n;
        p = hr_bytes(p, payload_end, &n);
        if (p == NULL || n == 0) return 1;
        const uint8_t *end = p + n;
        p = hr_varint(p + 1, end, &n); /* attributes: unused */
        if (p == NULL || n >= (uint64_t)SAFE_MS) return 1;
        record->time_ms = has_fixed_time ? fixed_time : base_time + hr_unzigzag(n);
        p = hr_varint(p, end, &n);
        if (p == NULL || (n & 1)) return 1;
        int64_t delta = (int64_t)(n >> 1);
        if (delta <= last_delta || delta > INT64_MAX - base_offset) return 1;
        last_delta = delta;
        record->offset = base_offset + delta;
        p = nullable(p, end, payload, &record->key_at, &record->key_size);
        if (p == NULL) return 1;
        p = nullable(p, end, payload, &record->value_at, &record->value_size);
        if (p == NULL || p >= end || (*p == 0 && p + 1 != end)) return 1;
        record->headers_at = (uint32_t)(p - payload);
        record->end = (uint32_t)(end - payload);
        p = end;
    }
    return p == payload_end ? 0 : 1;
}
