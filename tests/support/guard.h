/* Buffers of exactly the asked size. One end touches a page that can't be accessed, so that a byte
 * too far crashes the test; the slack at the other end holds a pattern that guard_check() looks at.
 */
#ifndef TESTS_GUARD_H
#define TESTS_GUARD_H

#include <stddef.h>

typedef enum guard_side {
    GUARD_AFTER, /* the buffer ends at a forbidden page */
    GUARD_BEFORE /* the buffer starts right after one */
} guard_side;

typedef struct guard {
    unsigned char *data;
    size_t size;
    unsigned char *pages; /* the accessible pages */
    size_t pages_size;
    int is_frozen;
} guard;

/* The buffer and its slack start out filled with the same pattern. */
guard guard_new(size_t size, guard_side side);
guard guard_copy(const void *data, size_t size, guard_side side);

/* Checks, then releases. */
void guard_free(guard *buffer);

/* Fails the test if the slack was written. */
void guard_check(const guard *buffer);

/* Fails the test if the buffer or the slack was written since guard_new(). */
void guard_check_untouched(const guard *buffer);

/* Nothing has been written here, as MemorySanitizer and valgrind's memcheck (TESTS_MEMCHECK) see
 * it: from now on they report who decides something by what it reads. Other builds do nothing. */
void guard_undefine(const guard *buffer);

/* From now on a write crashes the test; guard_thaw() allows writing again. */
void guard_freeze(guard *buffer);
void guard_thaw(guard *buffer);

#endif
