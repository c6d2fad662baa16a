/* XXH64 of key and value, after the public specification ("XXH64 algorithm description", Yann Collet). */
#include "bytes.h"
#include "core.h"

#define PRIME1 0x9E3779B185EBCA87u
#define PRIME2 0xC2B2AE3D27D4EB4Fu
#define PRIME3 0x165667B19E3779F9u
#define PRIME4 0x85EBCA77C2B2AE63u
#define PRIME5 0x27D4EB2F165667C5u

static inline uint64_t rotate(uint64_t n, int bits) { return (n << bits) | (n >> (64 - bits)); }

static inline uint64_t little64(const uint8_t *p) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return hr_load64(p);
#else
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = (n << 8) | p[i];
    return n;
#endif
}

static inline uint64_t little32(const uint8_t *p) {
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static inline uint64_t round64(uint64_t lane, uint64_t input) { return rotate(lane + input * PRIME2, 31) * PRIME1; }

static inline uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ round64(0, lane)) * PRIME1 + PRIME4; }

static uint64_t xxh64(const uint8_t *p, uint64_t size, uint64_t seed) {
    uint64_t left = size, hash;
    if (size >= 32) {
        uint64_t a = seed + PRIME1 + PRIME2, b = seed + PRIME2, c = seed, d = seed - PRIME1;
        for (; left >= 32; left -= 32, p += 32) {
            a = round64(a, little64(p));
            b = round64(b, little64(p + 8));
            c = round64(c, little64(p + 16));
            d = round64(d, little64(p + 24));
        }
        hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        hash = merge(merge(merge(merge(hash, a), b), c), d);
    } else {
        hash = seed + PRIME5;
    }
    hash += size;
    for (; left >= 8; left -= 8, p += 8) hash = rotate(hash ^ round64(0, little64(p)), 27) * PRIME1 + PRIME4;
    if (left >= 4) {
        hash = rotate(hash ^ (little32(p) * PRIME1), 23) * PRIME2 + PRIME3;
        left -= 4;
        p += 4;
    }
    for (; left > 0; left--, p++) hash = rotate(hash ^ (*p * PRIME5), 11) * PRIME1;
    hash = (hash ^ (hash >> 33)) * PRIME2;
    hash = (hash ^ (hash >> 29)) * PRIME3;
    return hash ^ (hash >> 32);
}

uint64_t hr_message_hash(const uint8_t *key, int64_t key_size, const uint8_t *value, uint64_t value_size) {
    /* The hash of the key is the seed of the value. Its own seed is 1: an empty key differs from a missing one. */
    uint64_t seed = key_size < 0 ? 0 : xxh64(key, (uint64_t)key_size, 1);
    return xxh64(value, value_size, seed);
}
