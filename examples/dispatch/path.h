/* path.h: the functions of snapkv.h that a program calls through its chosen path. Take in the ones
 * that you call; the types are the same on every path, so they cross the boundary as they are. */
#ifndef DISPATCH_PATH_H
#define DISPATCH_PATH_H

#include "snapkv.h"

typedef struct dispatch_path {
    const char *isa; /* SNAPKV_ISA_NAME */
    int fma;         /* multiplies and adds in one rounding: the same bits as every such path */
    size_t (*workspace_size)(const snapkv_config *, const snapkv_layer *);
    snapkv_status (*select)(const snapkv_config *, const snapkv_layer *, size_t, int32_t *, float *,
                            snapkv_selection *, void *, size_t);
    snapkv_status (*compress)(const snapkv_config *, const snapkv_layer *, size_t, int32_t *,
                              const snapkv_rows_out *, const snapkv_rows_out *, snapkv_selection *,
                              void *, size_t);
} dispatch_path;

extern const dispatch_path path_scalar, path_scalar_fma, path_avx2, path_avx512, path_neon;

#endif
