/* XXH64 of key and value, after the public specification ("XXH64 algorithm description", Yann Collet). Inlined: a call for
 * each message takes a third longer. */
#ifndef HEADRACE_HASH_H
#define HEADRACE_HASH_H

#include "bytes.h"

#define HR_PRIME1 0x9E3779B185EBCA87u
#define HR_PRIME2 0xC2B2AE3D27D4EB4Fu
#define HR_PRIME3 0x165667B19E3779F9u
#define HR_PRIME4 0x85EBCA77C2B2AE63u
#define HR_PRIME5 0x27D4EB2F165667C5u

static inline uint64_t hr_rotate(uint64_t n, int bits) { return (n << bits) | (n >> (64 - bits)); }

static inline uint64_t hr_little64(const uint8_t *p) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return hr_load64(p);
#else
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = (n << 8) | p[i];
    return n;
#endif
}

static inline uint64_t hr_little32(const uint8_t *p) {
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static inline uint64_t hr_round64(uint64_t lane, uint64_t input) {
    return hr_rotate(lane + input * HR_PRIME2, 31) * HR_PRIME1;
}

static inline uint64_t hr_merge(uint64_t hash, uint64_t lane) {
    return (hash ^ hr_round64(0, lane)) * HR_PRIME1 + HR_PRIME4;
}

static inline uint64_t hr_xxh64(const uint8_t *p, uint64_t size, uint64_t seed) {
    uint64_t left = size, hash;
    if (size >= 32) {
        uint64_t a = seed + HR_PRIME1 + HR_PRIME2, b = seed + HR_PRIME2, c = seed, d = seed - HR_PRIME1;
        for (; left >= 32; left -= 32, p += 32) {
            a = hr_round64(a, hr_little64(p));
            b = hr_round64(b, hr_little64(p + 8));
            c = hr_round64(c, hr_little64(p + 16));
            d = hr_round64(d, hr_little64(p + 24));
        }
        hash = hr_rotate(a, 1) + hr_rotate(b, 7) + hr_rotate(c, 12) + hr_rotate(d, 18);
        hash = hr_merge(hr_merge(hr_merge(hr_merge(hash, a), b), c), d);
    } else {
        hash = seed + HR_PRIME5;
    }
    hash += size;
    for (; left >= 8; left -= 8, p += 8)
        hash = hr_rotate(hash ^ hr_round64(0, hr_little64(p)), 27) * HR_PRIME1 + HR_PRIME4;
    if (left >= 4) {
        hash = hr_rotate(hash ^ (hr_little32(p) * HR_PRIME1), 23) * HR_PRIME2 + HR_PRIME3;
        left -= 4;
        p += 4;
    }
    for (; left > 0; left--, p++) hash = hr_rotate(hash ^ (*p * HR_PRIME5), 11) * HR_PRIME1;
    hash = (hash ^ (hash >> 33)) * HR_PRIME2;
    hash = (hash ^ (hash >> 29)) * HR_PRIME3;
    return hash ^ (hash >> 32);
}

static inline uint64_t hr_hash(const uint8_t *key, int64_t key_size, const uint8_t *value, uint64_t value_size) {
    /* The hash of the key is the seed of the value. Its own seed is 1: an empty key differs from a missing one. */
    uint64_t seed = key_size < 0 ? 0 : hr_xxh64(key, (uint64_t)key_size, 1);
    return hr_xxh64(value, value_size, seed);
}

#endif
