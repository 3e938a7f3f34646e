#include "subject.h"

const char *subject_name(void) {
    return SNAPKV_SCALAR_FMA || SNAPKV_ISA != SNAPKV_ISA_SCALAR ? SNAPKV_ISA_NAME
                                                                : SNAPKV_ISA_NAME " without FMA";
}

snapkv_status subject_vote(const snapkv_config *config, const snapkv_layer *layer, size_t head,
                           float *votes, void *workspace, size_t workspace_size) {
    return snapkv_vote(config, layer, head, votes, workspace, workspace_size);
}

snapkv_status subject_select(const snapkv_config *config, const snapkv_layer *layer, size_t set,
                             int32_t *kept, float *scores, snapkv_selection *selection,
                             void *workspace, size_t workspace_size) {
    return snapkv_select(config, layer, set, kept, scores, selection, workspace, workspace_size);
}

snapkv_status subject_pool(const float *votes, size_t n, size_t kernel_size, snapkv_pooling pooling,
                           float *scores) {
    return snapkv_pool(votes, n, kernel_size, pooling, scores);
}

snapkv_status subject_top_k(const float *scores, size_t n, size_t k, snapkv_order order,
                            int32_t *indices) {
    return snapkv_top_k(scores, n, k, order, indices);
}
