/* What a build under test must offer: the library behind ordinary functions, so that what calls
 * them (cases.c) can be compiled with other flags. */
#ifndef TESTS_SUBJECT_H
#define TESTS_SUBJECT_H

#include "snapkv.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *subject_name(void); /* the path that this build takes */
snapkv_status subject_vote(const snapkv_config *config, const snapkv_layer *layer, size_t head,
                           float *votes, void *workspace, size_t workspace_size);
snapkv_status subject_select(const snapkv_config *config, const snapkv_layer *layer, size_t set,
                             int32_t *kept, float *scores, snapkv_selection *selection,
                             void *workspace, size_t workspace_size);
snapkv_status subject_pool(const float *votes, size_t n, size_t kernel_size, snapkv_pooling pooling,
                           float *scores);
snapkv_status subject_top_k(const float *scores, size_t n, size_t k, snapkv_order order,
                            int32_t *indices);

#ifdef __cplusplus
}
#endif

#endif
