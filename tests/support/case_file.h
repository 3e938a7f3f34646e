/* Reads tests/vectors/cases.txt, format 1 (tests/vectors/README.md). */
#ifndef TESTS_CASE_FILE_H
#define TESTS_CASE_FILE_H

#include "problem.h"

#include <stdio.h>

#define CASE_FILE "tests/vectors/cases.txt" /* as seen from the top directory */
#define MAX_HEADS 8

typedef struct test_case {
    char name[64];
    problem p; /* packed plainly */
    /* The answers, NULL where the file gives none. votes_sum is valid where has_votes_sum is set.
     */
    double *votes[MAX_HEADS], *scores[MAX_HEADS];
    double votes_sum[MAX_HEADS];
    int has_votes_sum[MAX_HEADS];
    int32_t *kept[MAX_HEADS];
    /* One budget for all sets, where there is one: what each keeps of it, and its own list. */
    size_t budget, least, counts[MAX_HEADS];
    int has_budget;
    int32_t *own[MAX_HEADS];
} test_case;

/* The next case of the file; 0 at its end. Anything it doesn't understand fails the test. */
int case_read(FILE *file, test_case *c);
void case_free(test_case *c);

#endif
