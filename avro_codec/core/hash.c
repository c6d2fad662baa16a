/* The message hash as a function of the library. */
#include "hash.h"

#include "core.h"

uint64_t hr_message_hash(const uint8_t *key, int64_t key_size, const uint8_t *value, uint64_t value_size) {
    return hr_hash(key, key_size, value, value_size);
}
