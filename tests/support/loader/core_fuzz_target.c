/* The fuzz target of libFuzzer: runs the core on any bytes, with programs of real histories of schemas. core_corpus.py
 * writes the programs, documents the format of inputs, and runs the same inputs through the reference. Built with
 * HR_REPLAY, by any compiler, it is a standalone program: its argument is a file of inputs, each preceded by its size, and
 * it runs each input and every prefix of it.
 *
 * Each buffer has exactly the size passed to the core, so that AddressSanitizer detects the first byte beyond it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define INPUT_HEAD 4
#define FUTURE_MS 86400000 /* this and NOW_MS as in core_corpus.py */
#define NOW_MS 1357002000000
#define TIME_MS_MAX 253402300799999
#define WINDOW_MS 600000
#define PERIOD_MS 3600000

typedef struct {
    hr_program *programs;
    uint32_t count;
} world;

static world *worlds;
static uint32_t world_count;
static const uint8_t suffix[] = {2, 6};

#define MUST(condition)                                                          \
    do {                                                                         \
        if (!(condition)) {                                                      \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);      \
            abort();                                                             \
        }                                                                        \
    } while (0)

static void *room(size_t size) {
    void *made = malloc(size ? size : 1);
    MUST(made != NULL);
    return made;
}

static void *read_exactly(FILE *file, size_t size) {
    void *made = room(size);
    MUST(fread(made, 1, size, file) == size);
    return made;
}

static uint32_t read_number(FILE *file) {
    uint32_t number;
    MUST(fread(&number, 4, 1, file) == 1);
    return number;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    const char *path = getenv("HEADRACE_FUZZ_PROGRAMS");
    MUST(path != NULL);
    FILE *file = fopen(path, "rb");
    MUST(file != NULL);
    world_count = read_number(file);
    worlds = room(world_count * sizeof(world));
    for (uint32_t w = 0; w < world_count; w++) {
        worlds[w].count = read_number(file);
        worlds[w].programs = room(worlds[w].count * sizeof(hr_program));
        for (uint32_t p = 0; p < worlds[w].count; p++) {
            hr_program *program = &worlds[w].programs[p];
            program->schema_id = (int32_t)read_number(file);
            program->has_time_field = (int32_t)read_number(file);
            program->code = read_exactly(file, 4 * (size_t)read_number(file));
            program->constants_size = read_number(file);
            program->constants = read_exactly(file, program->constants_size);
        }
    }
    fclose(file);
    return 0;
}

static void one_body(const world *in, uint8_t which, uint8_t room_code, const uint8_t *body, uint64_t size) {
    if (in->count == 0) return;
    uint64_t row_room = 8 * (uint64_t)room_code;
    uint8_t *row = room(row_room);
    int32_t seen = 0;
    int64_t value = 0;
    int64_t made = hr_project(&in->programs[which % in->count], body, size, row, row_room, &seen, &value);
    MUST(made >= -1 && made <= (int64_t)row_room);
    free(row);
}

static void run(const hr_range *range, const uint8_t *payload, const hr_record *records, uint64_t count,
                uint8_t room_code) {
    hr_output output = {0};
    output.columns_capacity = 1 + room_code % 16;
    output.rows_capacity = 16 * (uint64_t)room_code;
    output.rows = room(output.rows_capacity);
    output.grouped = room(output.rows_capacity);
    output.offsets = room(output.columns_capacity * sizeof(int64_t));
    output.ends = room(output.columns_capacity * sizeof(uint64_t));
    output.scratch = room(2 * output.columns_capacity * sizeof(uint64_t));
    output.windows = room(output.columns_capacity * sizeof(hr_window));
    output.time_partitions = room(output.columns_capacity * sizeof(hr_time_partition));
    output.sources = room(range->program_count * HR_SOURCES * sizeof(uint64_t));
    for (uint64_t from = 0; from < count;) {
        hr_run(range, payload, records, from, count, &output);
        MUST(output.next >= from && output.next <= count);
        MUST(output.row_count <= output.columns_capacity && output.window_count <= output.columns_capacity);
        MUST(output.row_count + output.tombstones == output.next - from);
        uint64_t rows = 0, bytes = 0;
        for (uint64_t b = 0; b < output.time_partition_count; b++) {
            MUST(output.time_partitions[b].at == bytes && output.time_partitions[b].first == rows);
            bytes += output.time_partitions[b].size;
            rows += output.time_partitions[b].count;
            MUST(rows <= output.row_count && output.ends[rows - 1] == output.time_partitions[b].size);
        }
        MUST(rows == output.row_count && bytes <= output.rows_capacity);
        uint64_t counted = 0;
        for (uint64_t w = 0; w < output.window_count; w++) counted += output.windows[w].count;
        MUST(counted == output.row_count);
        MUST(output.status != HR_DONE || output.next == count);
        from = output.next + (output.status == HR_MESSAGE || (output.status == HR_FULL && output.next == from));
    }
    free(output.rows), free(output.grouped), free(output.offsets), free(output.ends), free(output.scratch);
    free(output.windows), free(output.time_partitions), free(output.sources);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < INPUT_HEAD) return 0;
    const world *in = &worlds[data[0] % world_count];
    uint8_t options = data[1], count = data[2], room_code = data[3];
    size -= INPUT_HEAD;
    uint8_t *payload = room(size);
    memcpy(payload, data + INPUT_HEAD, size);
    hr_message_hash(payload, options & 8 ? -1 : (int64_t)(size / 2), payload + size / 2, size - size / 2);
    if (options & 4) {
        one_body(in, count, room_code, payload, size);
    } else if (count <= size / 7) { /* the limit of RecordColumns in Python */
        hr_record *records = room(count * sizeof(hr_record));
        if (!hr_records(payload, size, count, 100, NOW_MS, (options & 16) != 0, NOW_MS + 5, records)) {
            const hr_range range = {
                in->programs, in->count, suffix, sizeof suffix, options % 3, (options & 8) != 0,
                FUTURE_MS,    NOW_MS,    TIME_MS_MAX, WINDOW_MS, PERIOD_MS,
            };
            run(&range, payload, records, count, room_code);
        }
        free(records);
    }
    free(payload);
    return 0;
}

#ifdef HR_REPLAY
int main(int argc, char **argv) {
    MUST(argc == 2);
    LLVMFuzzerInitialize(&argc, &argv);
    FILE *file = fopen(argv[1], "rb");
    MUST(file != NULL);
    for (uint32_t size; fread(&size, 4, 1, file) == 1;) {
        uint8_t *data = read_exactly(file, size);
        for (size_t cut = 0; cut <= size; cut++) LLVMFuzzerTestOneInput(data, cut); /* truncates each value once */
        free(data);
    }
    fclose(file);
    return 0;
}
#endif
