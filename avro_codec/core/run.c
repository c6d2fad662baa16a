/* Converts records to rows like headrace.loader.project.messages: finds program, time, window and time partition. */
#include "hash.h"
#include "program.h"

#define PREFIX_BYTES 5 /* magic 0, schema id */
#define RECENT 64      /* cache size for windows and time partitions, indexed by the lowest bits of their number */

static const uint8_t ID_HEADER[] = "__value_schema_id";
#define ID_HEADER_BYTES (sizeof ID_HEADER - 1)

typedef struct {
    const hr_range *range;
    const uint8_t *payload;
    hr_output *output;
    hr_out out;
    uint64_t windows[RECENT]; /* index plus 1; 0 for none */
    uint64_t time_partitions[RECENT];
    hr_window *window; /* window of the previous message: usually the same, and division is slow */
    uint64_t time_partition;   /* the same for the time partition: index plus 1 */
    int64_t time_partition_start_ms;
} run_t;

/* Properties of a message that are determined before it is counted. */
typedef struct {
    uint32_t program;
    uint16_t source;
    uint16_t unit;
    int64_t value;
    int64_t window_time_ms;
    int64_t partition_time_ms;
} message_t;

static const hr_program *find_program(const hr_range *range, int32_t schema_id) {
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

/* Returns whether the headers may contain the schema id. */
static bool has_schema_id_header(const uint8_t *p, uint64_t size) {
    if (size < ID_HEADER_BYTES) return false;
    for (const uint8_t *last = p + size - ID_HEADER_BYTES; p <= last; p++) {
        p = memchr(p, ID_HEADER[0], (uint64_t)(last - p) + 1);
        if (p == NULL) return false;
        if (memcmp(p, ID_HEADER, ID_HEADER_BYTES) == 0) return true;
    }
    return false;
}

static bool to_ms(uint32_t unit, int64_t value, int64_t *time_ms) {
    if (value < 0) return false; /* out of range in every unit */
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

/* Determines the time of a message; false if it is out of range, which the reference reports in detail. */
static bool classify(const hr_range *range, const hr_program *program, const hr_captured *captured, int64_t timestamp,
                  message_t *message) {
    int64_t time_ms = timestamp;
    message->value = timestamp;
    if (captured->rank < HR_TIME_FIELDS_MAX) {
        message->source = (uint16_t)captured->rank;
        message->unit = (uint16_t)captured->unit;
        message->value = captured->value;
        if (!to_ms(captured->unit, captured->value, &time_ms)) return false;
    } else if (program->has_time_field) {
        message->source = HR_SOURCE_NONE;
    }
    if (time_ms < 0 || time_ms > range->time_ms_max) return false;
    message->window_time_ms = message->partition_time_ms = time_ms;
    if (range->is_clamped) {
        int64_t arrival = timestamp >= 0 && timestamp <= range->now_ms ? timestamp : range->now_ms;
        if (time_ms - range->future_ms_max > arrival) {
            /* The arrival determines the time partition, but the window keeps the message time. */
            if (arrival < 0 || arrival > range->time_ms_max) return false;
            message->partition_time_ms = arrival;
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

/* Writes headers as an array of key and nullable value; false for unusual ones. */
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

static hr_window *window_of(run_t *run, const message_t *message) {
    hr_output *output = run->output;
    if (run->window != NULL && message->window_time_ms >= run->window->start_ms &&
        message->window_time_ms - run->window->start_ms < run->range->window_ms)
        return run->window;
    int64_t number = message->window_time_ms / run->range->window_ms;
    uint64_t *recent = &run->windows[(uint64_t)number % RECENT];
    int64_t start_ms = number * run->range->window_ms;
    if (*recent == 0 || output->windows[*recent - 1].start_ms != start_ms) {
        output->windows[output->window_count] =
            (hr_window){.start_ms = start_ms, .value = message->value, .time_ms = message->window_time_ms,
                        .program = message->program, .source = message->source, .unit = message->unit,
                        .first_ms = run->range->window_ms};
        *recent = ++output->window_count;
    }
    return run->window = &output->windows[*recent - 1];
}

static uint64_t time_partition_of(run_t *run, int64_t time_ms) {
    hr_output *output = run->output;
    if (run->time_partition != 0 && time_ms >= run->time_partition_start_ms &&
        time_ms - run->time_partition_start_ms < run->range->period_ms)
        return run->time_partition - 1;
    int64_t period = time_ms / run->range->period_ms;
    uint64_t *recent = &run->time_partitions[(uint64_t)period % RECENT];
    if (*recent == 0 || output->time_partitions[*recent - 1].period != period) {
        output->time_partitions[output->time_partition_count] = (hr_time_partition){period, 0, 0, 0, 0};
        *recent = ++output->time_partition_count;
    }
    run->time_partition = *recent;
    run->time_partition_start_ms = period * run->range->period_ms;
    return *recent - 1;
}

/* Processes a record with a value; otherwise returns the reason in a status. */
static int32_t process_record(run_t *run, const hr_record *record) {
    const hr_range *range = run->range;
    hr_output *output = run->output;
    const uint8_t *value = run->payload + record->value_at;
    const uint8_t *headers = run->payload + record->headers_at;
    if (record->value_size < PREFIX_BYTES || value[0] != 0 || value[1] > 127) return HR_MESSAGE;
    if (headers[0] != 0 && has_schema_id_header(headers, record->end - record->headers_at)) return HR_MESSAGE;
    int32_t schema_id = value[1] << 24 | value[2] << 16 | value[3] << 8 | value[4];
    const hr_program *program = find_program(range, schema_id);
    if (program == NULL) return HR_MESSAGE;

    uint8_t *row = run->out.at;
    hr_captured captured = HR_NOT_CAPTURED;
    message_t message = {.program = (uint32_t)(program - range->programs)};
    run->out.is_full = false;
    uint64_t body_size = (uint64_t)record->value_size - PREFIX_BYTES;
    int done = hr_execute(program, value + PREFIX_BYTES, body_size, &run->out, &captured);
    bool is_fine = done == PROGRAM_DONE && classify(range, program, &captured, record->time_ms, &message) &&
                   put_suffix(run, record);
    if (!is_fine || run->out.is_full) {
        /* A row that does not fit into an empty buffer is left to the reference. */
        bool may_fit = run->out.is_full && row != output->rows;
        run->out.at = row;
        return may_fit ? HR_FULL : HR_MESSAGE;
    }
    uint64_t bytes = (uint64_t)record->value_size + (record->key_size < 0 ? 0 : (uint64_t)record->key_size);
    hr_window *window = window_of(run, &message);
    window->count++;
#ifndef HR_UNCOUNTED /* bench/counting.py measures the cost of counting */
    window->bytes += bytes;
    window->fingerprint +=
        hr_hash(run->payload + record->key_at, record->key_size, value, (uint64_t)record->value_size);
    int64_t since_start_ms = message.window_time_ms - window->start_ms;
    window->no_time += message.source == HR_SOURCE_NONE;
    window->total_ms += (uint64_t)since_start_ms;
    if (since_start_ms < window->first_ms) window->first_ms = since_start_ms;
    window->slices[(uint32_t)since_start_ms * HR_WINDOW_SLICES / (uint32_t)range->window_ms]++;
#else
    (void)bytes;
#endif
    bool is_future = message.partition_time_ms != message.window_time_ms;
    uint64_t *sources = output->sources + (uint64_t)message.program * HR_SOURCES;
    sources[is_future ? HR_SOURCE_FUTURE : message.source]++;
    for (uint32_t rank = 0; captured.unread >> rank != 0; rank++) sources[HR_UNREAD + rank] += captured.unread >> rank & 1;
    sources[HR_OLD_DAY] += captured.has_old_day;
    uint64_t time_partition = time_partition_of(run, message.partition_time_ms);
    output->offsets[output->row_count] = record->offset;
    output->scratch[2 * output->row_count] = time_partition;
    output->scratch[2 * output->row_count + 1] = (uint64_t)(run->out.at - row);
    output->time_partitions[time_partition].count++;
    output->time_partitions[time_partition].size += (uint64_t)(run->out.at - row);
    output->row_count++;
    return HR_DONE;
}

/* Sorts the rows of several time partitions, and their columns; rows of one are already adjacent. */
static void group(hr_output *output) {
    uint64_t at = 0, first = 0;
    for (uint64_t i = 0; i < output->time_partition_count; i++) {
        hr_time_partition *time_partition = &output->time_partitions[i];
        time_partition->at = at;
        time_partition->first = first;
        at += time_partition->size;
        first += time_partition->count;
        time_partition->size = time_partition->count = 0;
    }
    output->is_grouped = output->time_partition_count > 1;
    const uint8_t *row = output->rows;
    for (uint64_t i = 0; i < output->row_count; i++) {
        hr_time_partition *time_partition = &output->time_partitions[output->scratch[2 * i]];
        uint64_t size = output->scratch[2 * i + 1], index = time_partition->first + time_partition->count++;
        if (output->is_grouped) memcpy(output->grouped + time_partition->at + time_partition->size, row, size);
        row += size;
        time_partition->size += size;
        output->ends[index] = time_partition->size;
        output->scratch[2 * i + 1] = index;
    }
    if (!output->is_grouped) return;
    /* Permutes the offsets like the rows, one cycle after the other. */
    for (uint64_t i = 0; i < output->row_count; i++) {
        while (output->scratch[2 * i + 1] != i) {
            uint64_t index = output->scratch[2 * i + 1];
            int64_t offset = output->offsets[index];
            output->offsets[index] = output->offsets[i];
            output->offsets[i] = offset;
            output->scratch[2 * i + 1] = output->scratch[2 * index + 1];
            output->scratch[2 * index + 1] = index;
        }
    }
}

void hr_run(const hr_range *range, const uint8_t *payload, const hr_record *records, uint64_t from, uint64_t to,
            hr_output *output) {
    run_t run = {.range = range, .payload = payload, .output = output};
    run.out = (hr_out){output->rows, output->rows + output->rows_capacity, false};
    output->window_count = output->time_partition_count = output->row_count = output->tombstones = 0;
    output->status = HR_DONE;
    memset(output->sources, 0, range->program_count * HR_SOURCES * sizeof *output->sources);
    uint64_t i = from;
    for (; i < to && output->status == HR_DONE; i++) {
        if (records[i].value_size < 0) {
            output->tombstones++;
        } else if (output->row_count == output->columns_capacity) {
            output->status = HR_FULL;
        } else {
            output->status = process_record(&run, &records[i]);
        }
    }
    output->next = output->status == HR_DONE ? i : i - 1;
    group(output);
}
