/* Records to rows: which program, which time, which window and bucket; what headrace.loader.project.messages does. */
#include "program.h"

#define PREFIX_BYTES 5 /* magic 0, schema id */
#define RECENT 64      /* windows and buckets that are found again, by the lowest bits of their number */

static const uint8_t ID_HEADER[] = "__value_schema_id";
#define ID_HEADER_BYTES (sizeof ID_HEADER - 1)

typedef struct {
    const hr_range *range;
    const uint8_t *payload;
    hr_taken *taken;
    hr_out out;
    uint64_t windows[RECENT]; /* their index and one, 0 for none */
    uint64_t buckets[RECENT];
    hr_window *window; /* of the message before, NULL for none: most are of the same, and dividing is slow */
    uint64_t bucket;   /* likewise, its index and one */
    int64_t bucket_start_ms;
} run_t;

/* What of a message is known before anything is counted. */
typedef struct {
    uint32_t program;
    int32_t source;
    int64_t value;
    int64_t window_time_ms;
    int64_t bucket_time_ms;
} judged_t;

static const hr_program *program_of(const hr_range *range, int32_t schema_id) {
    uint64_t low = 0, high = range->program_count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (range->programs[middle].schema_id < schema_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < range->program_count && range->programs[low].schema_id == schema_id ? &range->programs[low] : NULL;
}

/* Whether the headers name the schema, or cannot be told not to. */
static bool has_id_header(const uint8_t *p, uint64_t size) {
    if (size < ID_HEADER_BYTES) return false;
    for (const uint8_t *last = p + size - ID_HEADER_BYTES; p <= last; p++) {
        p = memchr(p, ID_HEADER[0], (uint64_t)(last - p) + 1);
        if (p == NULL) return false;
        if (memcmp(p, ID_HEADER, ID_HEADER_BYTES) == 0) return true;
    }
    return false;
}

static bool to_ms(int32_t unit, int64_t value, int64_t *time_ms) {
    if (value < 0) return false; /* out of range, whatever the unit */
    switch (unit) {
    case HR_UNIT_MICROS:
        *time_ms = value / 1000;
        return true;
    case HR_UNIT_NANOS:
        *time_ms = value / 1000000;
        return true;
    case HR_UNIT_DAYS:
        if (value > INT32_MAX) return false;
        *time_ms = value * 86400000;
        return true;
    default:
        *time_ms = value;
        return true;
    }
}

/* The time of a message; false where it is out of range, which the reference has several words for. */
static bool judge(const hr_range *range, const hr_program *program, const hr_seen *seen, int64_t timestamp,
                  judged_t *judged) {
    int64_t time_ms = timestamp;
    judged->source = HR_SOURCE_OWN;
    judged->value = timestamp;
    if (seen->is_seen) {
        judged->value = seen->value;
        if (!to_ms(program->time_unit, seen->value, &time_ms)) return false;
    } else if (program->time_unit != HR_UNIT_NONE) {
        judged->source = HR_SOURCE_NULL;
    }
    if (time_ms < 0 || time_ms > range->time_ms_max) return false;
    judged->window_time_ms = judged->bucket_time_ms = time_ms;
    if (range->is_clamped) {
        int64_t arrival = timestamp >= 0 && timestamp <= range->now_ms ? timestamp : range->now_ms;
        if (time_ms - range->future_ms_max > arrival) {
            /* Of a message that is filed by its arrival, the window still says by which time it is counted. */
            if (arrival < 0 || arrival > range->time_ms_max) return false;
            judged->bucket_time_ms = arrival;
        }
    }
    return true;
}

static void put_nullable(hr_out *out, const uint8_t *data, int64_t size) {
    if (size < 0) {
        hr_put(out, (const uint8_t *)"\0", 1);
    } else {
        hr_put(out, (const uint8_t *)"\2", 1);
        hr_put_long(out, size);
        hr_put(out, data, (uint64_t)size);
    }
}

/* Headers as an array of key and nullable value; false where they are not plain. */
static bool put_headers(hr_out *out, const uint8_t *p, const uint8_t *end) {
    uint64_t count, size;
    p = hr_varint(p, end, &count);
    if (p == NULL || (count & 1) || (count >> 1) > (uint64_t)(end - p)) return false;
    count >>= 1;
    if (count != 0) hr_put_long(out, (int64_t)count);
    for (uint64_t i = 0; i < count; i++) {
        p = hr_bytes(p, end, &size);
        if (p == NULL || !hr_is_utf8(p, size)) return false;
        hr_put_long(out, (int64_t)size);
        hr_put(out, p, size);
        p = hr_varint(p + size, end, &size);
        if (p == NULL) return false;
        if (size & 1) {
            put_nullable(out, p, -1);
            continue;
        }
        size >>= 1;
        if (size > (uint64_t)(end - p)) return false;
        put_nullable(out, p, (int64_t)size);
        p += size;
    }
    hr_put(out, (const uint8_t *)"\0", 1);
    return p == end;
}

static bool put_suffix(run_t *run, const hr_record *record) {
    const hr_range *range = run->range;
    if (range->suffix_mode == HR_SUFFIX_NONE) return true;
    hr_put(&run->out, range->suffix, range->suffix_size);
    hr_put_long(&run->out, record->offset);
    if (record->time_ms < 0 || record->time_ms > range->time_ms_max) {
        hr_put(&run->out, (const uint8_t *)"\0", 1);
    } else {
        hr_put(&run->out, (const uint8_t *)"\2", 1);
        hr_put_long(&run->out, record->time_ms);
    }
    if (range->suffix_mode == HR_SUFFIX_POSITION) return true;
    put_nullable(&run->out, run->payload + record->key_at, record->key_size);
    hr_put(&run->out, (const uint8_t *)"\2", 1);
    return put_headers(&run->out, run->payload + record->headers_at, run->payload + record->end);
}

static hr_window *window_of(run_t *run, const judged_t *judged) {
    hr_taken *taken = run->taken;
    if (run->window != NULL && judged->window_time_ms >= run->window->start_ms &&
        judged->window_time_ms - run->window->start_ms < run->range->window_ms)
        return run->window;
    int64_t number = judged->window_time_ms / run->range->window_ms;
    uint64_t *recent = &run->windows[(uint64_t)number % RECENT];
    int64_t start_ms = number * run->range->window_ms;
    if (*recent == 0 || taken->windows[*recent - 1].start_ms != start_ms) {
        taken->windows[taken->window_count] =
            (hr_window){start_ms, judged->value, judged->window_time_ms, 0, 0, 0, judged->program, judged->source};
        *recent = ++taken->window_count;
    }
    return run->window = &taken->windows[*recent - 1];
}

static uint64_t bucket_of(run_t *run, int64_t time_ms) {
    hr_taken *taken = run->taken;
    if (run->bucket != 0 && time_ms >= run->bucket_start_ms && time_ms - run->bucket_start_ms < run->range->period_ms)
        return run->bucket - 1;
    int64_t period = time_ms / run->range->period_ms;
    uint64_t *recent = &run->buckets[(uint64_t)period % RECENT];
    if (*recent == 0 || taken->buckets[*recent - 1].period != period) {
        taken->buckets[taken->bucket_count] = (hr_bucket){period, 0, 0, 0, 0};
        *recent = ++taken->bucket_count;
    }
    run->bucket = *recent;
    run->bucket_start_ms = period * run->range->period_ms;
    return *recent - 1;
}

/* Takes a record with a value, or says who is to. */
static int32_t take(run_t *run, const hr_record *record) {
    const hr_range *range = run->range;
    hr_taken *taken = run->taken;
    const uint8_t *value = run->payload + record->value_at;
    const uint8_t *headers = run->payload + record->headers_at;
    if (record->value_size < PREFIX_BYTES || value[0] != 0 || value[1] > 127) return HR_MESSAGE;
    if (headers[0] != 0 && has_id_header(headers, record->end - record->headers_at)) return HR_MESSAGE;
    int32_t schema_id = value[1] << 24 | value[2] << 16 | value[3] << 8 | value[4];
    const hr_program *program = program_of(range, schema_id);
    if (program == NULL) return HR_MESSAGE;

    uint8_t *row = run->out.at;
    hr_seen seen = {false, 0};
    judged_t judged = {.program = (uint32_t)(program - range->programs)};
    run->out.is_full = false;
    int done = hr_execute(program, value + PREFIX_BYTES, (uint64_t)record->value_size - PREFIX_BYTES, &run->out, &seen);
    bool is_fine = done == PROGRAM_DONE && judge(range, program, &seen, record->time_ms, &judged) &&
                   put_suffix(run, record);
    if (!is_fine || run->out.is_full) {
        /* One that has no room even where there is all of it is not asked for again. */
        bool may_fit = run->out.is_full && row != taken->rows;
        run->out.at = row;
        return may_fit ? HR_FULL : HR_MESSAGE;
    }
    uint64_t bytes = (uint64_t)record->value_size + (record->key_size < 0 ? 0 : (uint64_t)record->key_size);
    hr_window *window = window_of(run, &judged);
    window->count++;
    window->bytes += bytes;
    window->fingerprint += hr_message_hash(run->payload + record->key_at, record->key_size, value,
                                           (uint64_t)record->value_size);
    bool is_future = judged.bucket_time_ms != judged.window_time_ms;
    taken->sources[(uint64_t)judged.program * HR_SOURCES + (is_future ? HR_SOURCE_FUTURE : judged.source)]++;
    uint64_t bucket = bucket_of(run, judged.bucket_time_ms);
    taken->offsets[taken->row_count] = record->offset;
    taken->scratch[2 * taken->row_count] = bucket;
    taken->scratch[2 * taken->row_count + 1] = (uint64_t)(run->out.at - row);
    taken->buckets[bucket].count++;
    taken->buckets[bucket].size += (uint64_t)(run->out.at - row);
    taken->row_count++;
    return HR_DONE;
}

/* Rows of one bucket are together already; those of several are sorted, and their columns with them. */
static void group(hr_taken *taken) {
    uint64_t at = 0, first = 0;
    for (uint64_t i = 0; i < taken->bucket_count; i++) {
        hr_bucket *bucket = &taken->buckets[i];
        bucket->at = at;
        bucket->first = first;
        at += bucket->size;
        first += bucket->count;
        bucket->size = bucket->count = 0;
    }
    taken->is_grouped = taken->bucket_count > 1;
    const uint8_t *row = taken->rows;
    for (uint64_t i = 0; i < taken->row_count; i++) {
        hr_bucket *bucket = &taken->buckets[taken->scratch[2 * i]];
        uint64_t size = taken->scratch[2 * i + 1], place = bucket->first + bucket->count++;
        if (taken->is_grouped) memcpy(taken->grouped + bucket->at + bucket->size, row, size);
        row += size;
        bucket->size += size;
        taken->ends[place] = bucket->size;
        taken->scratch[2 * i + 1] = place;
    }
    if (!taken->is_grouped) return;
    /* Every offset goes to its row's place, each cycle of places after the other. */
    for (uint64_t i = 0; i < taken->row_count; i++) {
        while (taken->scratch[2 * i + 1] != i) {
            uint64_t place = taken->scratch[2 * i + 1];
            int64_t offset = taken->offsets[place];
            taken->offsets[place] = taken->offsets[i];
            taken->offsets[i] = offset;
            taken->scratch[2 * i + 1] = taken->scratch[2 * place + 1];
            taken->scratch[2 * place + 1] = place;
        }
    }
}

void hr_run(const hr_range *range, const uint8_t *payload, const hr_record *records, uint64_t from, uint64_t to,
            hr_taken *taken) {
    run_t run = {.range = range, .payload = payload, .taken = taken};
    run.out = (hr_out){taken->rows, taken->rows + taken->rows_room, false};
    taken->window_count = taken->bucket_count = taken->row_count = taken->tombstones = 0;
    taken->status = HR_DONE;
    memset(taken->sources, 0, range->program_count * HR_SOURCES * sizeof *taken->sources);
    uint64_t i = from;
    for (; i < to && taken->status == HR_DONE; i++) {
        if (records[i].value_size < 0) {
            taken->tombstones++;
        } else if (taken->row_count == taken->columns_room) {
            taken->status = HR_FULL;
        } else {
            taken->status = take(&run, &records[i]);
        }
    }
    taken->next = taken->status == HR_DONE ? i : i - 1;
    group(taken);
}
