/* The header alone: what nobody uses must not warn either. */
#include "snapkv.h"

/* Twice does no harm. */
#include "snapkv.h"

extern int unused_is_no_empty_translation_unit;
