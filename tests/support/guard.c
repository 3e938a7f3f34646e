#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "guard.h"
#include "check.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#define UNDEFINE(data, size) __msan_allocated_memory(data, size)
#endif
#endif
#if defined(TESTS_MEMCHECK)
#include <valgrind/memcheck.h>
#define UNDEFINE(data, size) VALGRIND_MAKE_MEM_UNDEFINED(data, size)
#elif !defined(UNDEFINE)
#define UNDEFINE(data, size) ((void)(data), (void)(size))
#endif

/* As a float or an int32_t a large negative number, as a size a huge one: nothing that passes. */
#define PATTERN 0xCB

/* Mappings that were released, to be taken again: some tests make 100,000 buffers of a page or two,
 * and asking the system for each took nine tenths of their time. */
static struct {
    unsigned char *pages;
    size_t size;
} spare[64];
static size_t n_spare;

static unsigned char *map_pages(size_t size, size_t page) {
    for (size_t i = n_spare; i-- > 0;) {
        if (spare[i].size == size) {
            unsigned char *pages = spare[i].pages;
            spare[i] = spare[--n_spare];
            return pages;
        }
    }
    void *map = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    unsigned char *pages = (unsigned char *)map + page;
    assert_int_equal(mprotect(pages, size, PROT_READ | PROT_WRITE), 0);
    return pages;
}

static void unmap_pages(unsigned char *pages, size_t size, size_t page) {
    if (n_spare < COUNT_OF(spare) && size <= 64 * page) {
        spare[n_spare].pages = pages;
        spare[n_spare++].size = size;
    } else {
        munmap(pages - page, size + 2 * page);
    }
}

guard guard_new(size_t size, guard_side side) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    guard buffer;
    buffer.size = size;
    buffer.pages_size = page;
    while (buffer.pages_size < size && buffer.pages_size < 64 * page) {
        buffer.pages_size *= 2; /* few sizes, so that a released mapping fits again */
    }
    if (buffer.pages_size < size) {
        buffer.pages_size = (size + page - 1) / page * page;
    }
    buffer.is_frozen = 0;
    buffer.pages = map_pages(buffer.pages_size, page);
    memset(buffer.pages, PATTERN, buffer.pages_size);
    buffer.data = buffer.pages + (side == GUARD_AFTER ? buffer.pages_size - size : 0);
    return buffer;
}

guard guard_copy(const void *data, size_t size, guard_side side) {
    guard buffer = guard_new(size, side);
    if (size) {
        memcpy(buffer.data, data, size);
    }
    return buffer;
}

void guard_undefine(const guard *buffer) {
    UNDEFINE(buffer->data, buffer->size);
}

static void check_pattern(const unsigned char *from, const unsigned char *to, const char *where,
                          const guard *buffer) {
    for (; from < to; from++) {
        if (*from != PATTERN) {
            fail_msg("%s a buffer of %lu bytes was written, at byte %ld of it", where,
                     (unsigned long)buffer->size, (long)(from - buffer->data));
        }
    }
}

void guard_check(const guard *buffer) {
    check_pattern(buffer->pages, buffer->data, "The memory before", buffer);
    check_pattern(buffer->data + buffer->size, buffer->pages + buffer->pages_size,
                  "The memory after", buffer);
}

void guard_check_untouched(const guard *buffer) {
    check_pattern(buffer->pages, buffer->pages + buffer->pages_size,
                  "Though it should be left alone,", buffer);
}

void guard_free(guard *buffer) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    guard_check(buffer);
    if (buffer->is_frozen) {
        guard_thaw(buffer);
    }
    unmap_pages(buffer->pages, buffer->pages_size, page);
    buffer->data = NULL;
}

void guard_freeze(guard *buffer) {
    assert_int_equal(mprotect(buffer->pages, buffer->pages_size, PROT_READ), 0);
    buffer->is_frozen = 1;
}

void guard_thaw(guard *buffer) {
    assert_int_equal(mprotect(buffer->pages, buffer->pages_size, PROT_READ | PROT_WRITE), 0);
    buffer->is_frozen = 0;
}
