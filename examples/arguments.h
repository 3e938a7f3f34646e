/* arguments.h: the numbers and files that the examples read, strictly, and whether what they print
 * arrived. */
#ifndef ARGUMENTS_H
#define ARGUMENTS_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A whole number up to `most`. False: `text` is none. */
static inline int read_number(const char *text, unsigned long most, unsigned long *number) {
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return 0;
    errno = 0;
    *number = strtoul(text, &end, 10);
    return errno == 0 && *end == '\0' && *number <= most;
}

/* A decimal number from 0 to `most`. False: `text` is none. */
static inline int read_real(const char *text, double most, double *number) {
    char *end;
    if ((text[0] < '0' || text[0] > '9') && text[0] != '.')
        return 0;
    *number = strtod(text, &end);
    return end != text && *end == '\0' && *number >= 0 && *number <= most;
}

/* Which of the `n` names the text is, counted from 0. False: none. */
static inline int read_name(const char *text, const char *const *names, size_t n, size_t *index) {
    for (*index = 0; *index < n; ++*index)
        if (strcmp(text, names[*index]) == 0)
            return 1;
    return 0;
}

/* The whole file with a NUL after it; NULL with *error set. */
static inline char *read_file(const char *path, size_t *n_bytes, const char **error) {
    enum { BLOCK = 1 << 20, MOST = 1 << 28 };
    FILE *const file = fopen(path, "rb");
    char *text = NULL;
    *n_bytes = 0;
    *error = file == NULL ? "can't be opened" : NULL;
    while (*error == NULL) {
        char *const grown = realloc(text, *n_bytes + BLOCK + 1);
        if (grown == NULL) {
            *error = "not enough memory";
            break;
        }
        text = grown;
        const size_t n = fread(text + *n_bytes, 1, BLOCK, file);
        *n_bytes += n;
        text[*n_bytes] = '\0';
        if (ferror(file))
            *error = "can't be read";
        else if (*n_bytes > MOST)
            *error = "longer than 256 MiB";
        else if (n < BLOCK)
            break;
    }
    if (file != NULL)
        fclose(file);
    if (*error != NULL) {
        free(text);
        return NULL;
    }
    return text;
}

/* Whether all that was printed has been written: a full disk shows only when it is flushed. */
static inline int is_printed(const char *program) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 1;
    fprintf(stderr, "%s: the output can't be written\n", program);
    return 0;
}

#endif
