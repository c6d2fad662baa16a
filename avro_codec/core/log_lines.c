/* Lines of a log as the records of a batch, like headrace.gateway.sessions.lane. */
#include "core.h"
#include "hash.h"

#define SEQNO_SIZE 8

static uint64_t long_size(uint64_t value) {
    uint64_t n = hr_zigzag((int64_t)value), size = 1;
    for (; n > 127; n >>= 7) size++;
    return size;
}

static void put_seqno(hr_out *out, uint64_t seqno) {
    uint8_t bytes[SEQNO_SIZE];
    for (int i = 0; i < SEQNO_SIZE; i++) bytes[i] = (uint8_t)(seqno >> (8 * (SEQNO_SIZE - 1 - i)));
    hr_put(out, bytes, SEQNO_SIZE);
}

/* Appends the record of a line. Returns the hash of its value. */
static uint64_t put_record(hr_out *out, const hr_lines *lines, const uint8_t *line, uint64_t size, uint64_t value_size,
                           uint64_t seqno) {
    static const uint8_t no_time_delta[] = {0, 0}, no_key[] = {1};
    uint64_t delta = lines->delta + lines->count, headers_size = lines->headers_size + SEQNO_SIZE;
    uint64_t content_size = sizeof no_time_delta + long_size(delta) + sizeof no_key + long_size(value_size) + value_size;
    hr_put_long(out, (int64_t)(content_size + headers_size));
    hr_put(out, no_time_delta, sizeof no_time_delta);
    hr_put_long(out, (int64_t)delta);
    hr_put(out, no_key, sizeof no_key);
    hr_put_long(out, (int64_t)value_size);
    const uint8_t *value = out->at;
    hr_put(out, lines->before, lines->before_size);
    hr_put_long(out, (int64_t)size);
    hr_put(out, line, size);
    hr_put(out, lines->after, lines->after_size);
    uint64_t hash = out->is_full ? 0 : hr_hash(NULL, -1, value, value_size);
    hr_put(out, lines->headers, lines->headers_size);
    put_seqno(out, seqno);
    return hash;
}

void hr_encode_lines(hr_lines *lines) {
    hr_out out = {lines->records, lines->records + lines->records_capacity, false};
    lines->count = lines->records_size = lines->sizes = lines->value_bytes = lines->fingerprint = 0;
    lines->status = HR_MESSAGE;
    if (lines->at > lines->body_size) return;
    while (lines->at < lines->body_size) {
        const uint8_t *line = lines->body + lines->at;
        const uint8_t *line_end = memchr(line, '\n', lines->body_size - lines->at);
        if (line_end == NULL) return;
        uint64_t size = (uint64_t)(line_end - line), end = lines->at + size + 1;
        uint64_t value_size = lines->before_size + long_size(size) + size + lines->after_size;
        uint64_t record_size = value_size + lines->headers_size + SEQNO_SIZE + lines->record_overhead;
        if (record_size > lines->record_size_max || !hr_is_utf8(line, size)) return;
        if (record_size > lines->sizes_max - lines->sizes) break;
        uint64_t hash = put_record(&out, lines, line, size, value_size, lines->begin + end);
        if (out.is_full) break;
        lines->at = end;
        lines->count++;
        lines->records_size = (uint64_t)(out.at - lines->records);
        lines->sizes += record_size;
        lines->value_bytes += value_size;
        lines->fingerprint += hash;
    }
    lines->status = lines->at < lines->body_size ? HR_FULL : HR_DONE;
}
