/* arguments.h: the numbers in the examples' arguments and files, read strictly, and whether what
 * they print arrived. */
#ifndef ARGUMENTS_H
#define ARGUMENTS_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

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

/* Whether all that was printed has been written: a full disk shows only when it is flushed. */
static inline int is_printed(const char *program) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 1;
    fprintf(stderr, "%s: the output can't be written\n", program);
    return 0;
}

#endif
