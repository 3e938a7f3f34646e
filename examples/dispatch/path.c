/* path.c: one path. It is compiled once for each, with -DSNAPKV_ISA, the instruction set's flags
 * and -DDISPATCH_PATH=path_NAME. Nothing but snapkv.h may be compiled with those flags, and its
 * functions are static: had they external linkage, the linker could take the plain path's copy of
 * one from here, and the program would stop on an old processor after all. */
#include "path.h"

const dispatch_path DISPATCH_PATH = {
    SNAPKV_ISA_NAME,       SNAPKV_ISA != SNAPKV_ISA_SCALAR || SNAPKV_SCALAR_FMA,
    snapkv_workspace_size, snapkv_select,
    snapkv_compress,
};
