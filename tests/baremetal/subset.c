/* The smallest useful subset: vote, pool, top-k and a gather of rows, for its code size. */
#include "snapkv.h"

snapkv_status vote(const snapkv_config *config, const snapkv_layer *layer, size_t head,
                   float *votes, void *workspace, size_t workspace_size);
snapkv_status pool(const float *votes, size_t n, size_t kernel_size, snapkv_pooling pooling,
                   float *scores);
snapkv_status top_k(const float *scores, size_t n, size_t k, snapkv_order order, int32_t *indices);
snapkv_status gather_rows(const int32_t *kept, size_t n_kept, const void *src, size_t src_stride,
                          size_t n_rows, size_t row_bytes, void *dst, size_t dst_stride);

snapkv_status vote(const snapkv_config *config, const snapkv_layer *layer, size_t head,
                   float *votes, void *workspace, size_t workspace_size) {
    return snapkv_vote(config, layer, head, votes, workspace, workspace_size);
}

snapkv_status pool(const float *votes, size_t n, size_t kernel_size, snapkv_pooling pooling,
                   float *scores) {
    return snapkv_pool(votes, n, kernel_size, pooling, scores);
}

snapkv_status top_k(const float *scores, size_t n, size_t k, snapkv_order order,
                    int32_t *indices) {
    return snapkv_top_k(scores, n, k, order, indices);
}

snapkv_status gather_rows(const int32_t *kept, size_t n_kept, const void *src, size_t src_stride,
                          size_t n_rows, size_t row_bytes, void *dst, size_t dst_stride) {
    return snapkv_gather_rows(kept, n_kept, src, src_stride, n_rows, row_bytes, dst, dst_stride);
}
