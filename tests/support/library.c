/* The library, once a build: whatever tests it sees its declarations only, and is linked with it. */
#undef SNAPKV_DECLARATIONS_ONLY
#define SNAPKV_API
#include "snapkv.h"
