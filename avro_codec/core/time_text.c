/* Reads the time in a text: ISO 8601 with a zone. The reference is headrace.avro_schema.message_time.parse_time_text. */
#include "program.h"

#define TEXT_MIN 17 /* 2026-01-31T07:00Z */
#define TEXT_MAX 35 /* 2026-01-31T07:00:00.123456789+02:00 */

typedef struct {
    const uint8_t *p;
    const uint8_t *end;
    bool is_valid;
} reader_t;

/* Reads `count` digits as a number of at most `greatest`. */
static int64_t digits(reader_t *r, int count, int64_t greatest) {
    int64_t number = 0;
    for (int i = 0; i < count; i++, r->p++) {
        if (r->p == r->end || *r->p < '0' || *r->p > '9') {
            r->is_valid = false;
            return 0;
        }
        number = number * 10 + (*r->p - '0');
    }
    if (number > greatest) r->is_valid = false;
    return number;
}

/* Whether the next byte is one of two, which is then read. */
static bool next_is(reader_t *r, uint8_t one, uint8_t other) {
    if (r->p == r->end || (*r->p != one && *r->p != other)) return false;
    r->p++;
    return true;
}

static void require(reader_t *r, uint8_t one, uint8_t other) {
    if (!next_is(r, one, other)) r->is_valid = false;
}

/* Days since 1970 of a date of the Gregorian calendar, in the years 1 to 9999. */
static int64_t read_date(reader_t *r) {
    static const int16_t before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365};
    int64_t year = digits(r, 4, 9999);
    require(r, '-', '-');
    int64_t month = digits(r, 2, 12);
    require(r, '-', '-');
    int64_t day = digits(r, 2, 31);
    if (!r->is_valid || year == 0 || month == 0 || day == 0) {
        r->is_valid = false;
        return 0;
    }
    bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    int64_t length = before[month] - before[month - 1] + (is_leap && month == 2);
    if (day > length) r->is_valid = false;
    int64_t years = year - 1;
    return years * 365 + years / 4 - years / 100 + years / 400 + before[month - 1] + (is_leap && month > 2) + day - 719163;
}

/* Milliseconds of the day. */
static int64_t read_clock(reader_t *r) {
    int64_t time_ms = digits(r, 2, 23) * 3600000;
    require(r, ':', ':');
    time_ms += digits(r, 2, 59) * 60000;
    if (!next_is(r, ':', ':')) return time_ms;
    time_ms += digits(r, 2, 59) * 1000;
    if (!next_is(r, '.', ',')) return time_ms;
    int count = 0;
    for (int64_t unit = 100; r->p < r->end && *r->p >= '0' && *r->p <= '9'; count++, unit /= 10)
        time_ms += unit * (*r->p++ - '0');
    if (count == 0 || count > 9) r->is_valid = false;
    return time_ms;
}

/* The offset from UTC in milliseconds. */
static int64_t read_zone(reader_t *r) {
    if (next_is(r, 'Z', 'z')) return 0;
    int64_t sign = r->p < r->end && *r->p == '-' ? -1 : 1;
    require(r, '+', '-');
    int64_t offset_ms = digits(r, 2, 23) * 3600000;
    if (r->p < r->end) {
        next_is(r, ':', ':');
        offset_ms += digits(r, 2, 59) * 60000;
    }
    return sign * offset_ms;
}

bool hr_parse_time_text(const uint8_t *text, uint64_t size, int64_t *time_ms) {
    if (size < TEXT_MIN || size > TEXT_MAX) return false;
    reader_t r = {text, text + size, true};
    int64_t day_ms = read_date(&r) * 86400000;
    if (r.p < r.end && *r.p == 't')
        r.p++;
    else
        require(&r, 'T', ' ');
    int64_t clock_ms = read_clock(&r);
    *time_ms = day_ms + clock_ms - read_zone(&r);
    return r.is_valid && r.p == r.end;
}
