/* Uses every public function and adds nothing of its own: tests/compile/symbols.sh looks at what
 * the object needs and holds. All comes as an argument, so that nothing is optimised away. */
#include "snapkv.h"

#ifdef __cplusplus
extern "C"
#endif
    size_t
    use_everything(snapkv_config *config, snapkv_layer *layer, int32_t *kept, float *numbers,
                   snapkv_selection *selection, snapkv_rows_out *out, void *memory, size_t size,
                   snapkv_model *model, snapkv_ledger *ledger, snapkv_cursor *cursor);

size_t use_everything(snapkv_config *config, snapkv_layer *layer, int32_t *kept, float *numbers,
                      snapkv_selection *selection, snapkv_rows_out *out, void *memory, size_t size,
                      snapkv_model *model, snapkv_ledger *ledger, snapkv_cursor *cursor) {
    size_t sum = 0;
    size_t position = 0;
    snapkv_statistic statistics[1] = {{0, 0}};
    size_t counts[4] = {0, 0, 0, 0}; /* as many lists as the model of linked.c has */
    const snapkv_list lists[2] = {{numbers, size}, {numbers + size, size}};
    *config = snapkv_default_config();
    if (size % 2) {
        *config = snapkv_official_config();
    }
    sum += (size_t)snapkv_check(config, layer);
    sum += snapkv_set_count(config, layer) + snapkv_kept_count(config, size);
    sum += snapkv_workspace_size(config, layer) + snapkv_workspace_min(config, layer);
    layer->keys = snapkv_rows_by_head(memory, SNAPKV_F16, size, 8);
    layer->values = snapkv_rows_by_position(memory, SNAPKV_F16, size, 8);
    *out = snapkv_rows_in_place(&layer->keys);
    sum += (size_t)(unsigned char)*snapkv_explain(config, layer);
    sum += (size_t)snapkv_vote(config, layer, 0, numbers, memory, size);
    sum += (size_t)snapkv_score(config, layer, 0, numbers, numbers + size, memory, size);
    sum += (size_t)snapkv_keep(config, size, numbers, 5, kept);
    sum += (size_t)snapkv_coverage(config, size, numbers, kept, 5, numbers + size);
    sum += (size_t)snapkv_allocate(lists, 2, size, 1, counts);
    sum += (size_t)snapkv_gather(config, layer, 0, kept, 5, out, out + 1);
    sum += (size_t)snapkv_compress_layer(config, layer, kept, out, out + 1, selection, memory, size);
    sum += (size_t)snapkv_pool(numbers, size, 5, SNAPKV_POOL_AVG, numbers + size);
    sum += (size_t)snapkv_top_k(numbers, size, 5, config->order, kept);
    sum += (size_t)snapkv_gather_rows(kept, 5, memory, 8, size, 8, out->data, 8);
    sum += (size_t)snapkv_gather_columns(kept, 5, memory, size, size, 2, 8, out->data, 16);
    sum += (size_t)snapkv_select(config, layer, 0, kept, numbers, selection, memory, size);
    sum += (size_t)snapkv_compress(config, layer, 0, kept, out, out + 1, selection, memory, size);
    sum += snapkv_part_count(size) + snapkv_part_workspace_size(config, layer, 2);
    sum += snapkv_part_workspace_min(config, layer);
    sum += (size_t)snapkv_part_observe(config, layer, 0, 0, 1, statistics, memory, size);
    sum += (size_t)snapkv_part_vote(config, layer, 0, 0, 1, statistics, 1, numbers, NULL, size,
                                    memory, size);
    sum += (size_t)snapkv_part_score(config, 2, size, numbers, numbers, size, numbers + size, NULL);
    sum += (size_t)snapkv_account(config, model, size, 5, ledger);
    sum += (size_t)snapkv_account_lists(config, model, size, 5, counts, ledger);
    sum += (size_t)snapkv_retained_mass(config, layer, 0, numbers, size, kept, 5, numbers, memory,
                                        size);
    numbers[0] = snapkv_error_bound(numbers[1], numbers[2]);
    *cursor = snapkv_cursor_start(config, size);
    sum += snapkv_next_position(cursor) + snapkv_next_slot(cursor);
    sum += (size_t)snapkv_append(cursor, size);
    sum += (size_t)snapkv_rewind(cursor, 1);
    sum += (size_t)snapkv_slot_position(cursor, kept, 0, &position);
    return sum + position + counts[0] + (size_t)(unsigned char)*snapkv_status_string((snapkv_status)(sum % 16));
}
