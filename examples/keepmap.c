/* keepmap.c: a picture of what a compressed cache keeps, head by head, as SVG.
 *
 *     build/keepmap [options] [VOTES]
 *
 * Without VOTES it runs a prompt of the recall model, and marks the facts that are hidden in it.
 * VOTES is a text file from your own engine, what snapkv_vote() gives:
 *
 *     # a line for each head, a number for each prefix position; blanks, tabs or commas between
 *     layer 0, head 0: 0.125 0 0.0625 1.5
 *     layer 0, head 1: 0.25 0.5 0 0
 *
 * The label with its colon may be missing; empty lines and those that begin with # are skipped. The
 * votes of a head are not negative and sum to at most the window. --dump writes such a file.
 *
 * Each head keeps its own list (as with SNAPKV_PER_QUERY_HEAD), which is made here from the
 * building blocks: snapkv_pool(), snapkv_top_k(). */
#include <stdarg.h>

#include "arguments.h"
#include "llama.h"
#include "recall_task.h"

enum { MOST_HEADS = 128, LABEL_SIZE = 64, LABEL_MOST = 18 };

static const char USAGE[] = "usage: keepmap [options] [VOTES]\n"
                            "  --capacity N   positions kept of each head, window included (64)\n"
                            "  --window N     last positions, whose queries voted (16)\n"
                            "  --kernel N     width of the pooling, odd; 1: none (5)\n"
                            "  --pooling P    avg or max (avg)\n"
                            "  --svg FILE     where the picture goes (build/keepmap.svg)\n"
                            "  --seed N       another prompt of the recall task (1)\n"
                            "  --model FILE   its model (examples/recall_model.bin)\n"
                            "  --dump FILE    write the votes, too\n";

/* ---- what the picture shows ----------------------------------------------------------------- */

typedef struct map {
    snapkv_config config;
    size_t n_heads, n_prefix;
    size_t n_best; /* kept of the prefix, of each head */
    char (*labels)[LABEL_SIZE];
    float *votes;     /* [n_heads][n_prefix] */
    float *scores;    /* [n_heads][n_prefix], pooled */
    int32_t *kept;    /* [n_heads][n_best], ascending */
    double *coverage; /* [n_heads] */
    int32_t *tokens;  /* [LENGTH] of a recall prompt, or NULL */
    size_t n_rows;    /* of a layer, drawn together; 0: there are no layers */
    char error[120];  /* for messages with numbers in them */
} map;

static void map_free(map *m) {
    free(m->labels);
    free(m->votes);
    free(m->scores);
    free(m->kept);
    free(m->coverage);
    free(m->tokens);
}

/* ---- from the recall model ------------------------------------------------------------------ */

static const char *vote_all(map *m, const llama_model *model, const llama_cache *cache,
                            const float *queries) {
    snapkv_layer view = llama_layer(model, cache, 0, queries, m->config.window);
    const size_t size = snapkv_workspace_size(&m->config, &view);
    void *const workspace = malloc(size + (size == 0));
    if (workspace == NULL)
        return "not enough memory";
    snapkv_status status = SNAPKV_OK;
    for (size_t row = 0; row < m->n_heads && status == SNAPKV_OK; row++) {
        const size_t layer = row / model->n_heads, head = row % model->n_heads;
        snprintf(m->labels[row], LABEL_SIZE, "layer %zu, head %zu", layer, head);
        view = llama_layer(model, cache, layer, queries, m->config.window);
        status =
            snapkv_vote(&m->config, &view, head, m->votes + row * m->n_prefix, workspace, size);
    }
    free(workspace);
    return status == SNAPKV_OK ? NULL : snapkv_status_string(status);
}

/* Returns NULL or an error. */
static const char *run_model(map *m, const char *path, uint64_t seed) {
    llama_model model;
    const char *error = llama_load(&model, path);
    if (error != NULL)
        return error;
    llama_state state = {0};
    llama_cache cache = {0};
    float *queries = NULL;
    int32_t answer[N_VALUES];
    m->n_heads = model.n_layers * model.n_heads;
    m->n_rows = model.n_heads;
    if (model.vocab_size != VOCABULARY || m->n_heads > MOST_HEADS) {
        error = "not the recall example's model";
    } else if (m->config.window >= LENGTH) {
        error = snapkv_status_string(SNAPKV_ERROR_WINDOW);
    } else {
        m->n_prefix = LENGTH - m->config.window;
        m->tokens = malloc(LENGTH * sizeof *m->tokens);
        m->labels = calloc(m->n_heads, sizeof *m->labels);
        m->votes = llama_floats(m->n_heads * m->n_prefix);
        queries = llama_floats(m->n_heads * m->config.window * model.head_dim);
        if (m->tokens == NULL || m->labels == NULL || m->votes == NULL || queries == NULL ||
            !llama_state_new(&state, &model, LENGTH) ||
            !llama_cache_new(&cache, &model, model.n_kv_heads, LENGTH))
            error = "not enough memory";
    }
    if (error == NULL) {
        make_prompt(&seed, m->tokens, answer);
        error = llama_prefill(&model, &state, &cache, m->tokens, LENGTH, m->config.window, queries);
    }
    if (error == NULL)
        error = vote_all(m, &model, &cache, queries);
    free(queries);
    llama_cache_free(&cache);
    llama_state_free(&state);
    llama_free(&model);
    return error;
}

/* ---- from a file ---------------------------------------------------------------------------- */

static const char *wrong_line(map *m, size_t line, const char *what) {
    snprintf(m->error, sizeof m->error, "line %zu: %s", line, what);
    return m->error;
}

/* One head: a label, if there is a colon, and its votes. `line` ends with a NUL. */
static const char *read_head(map *m, char *line, size_t number, size_t *n_all) {
    static const char BETWEEN[] = " \t,\r";
    char *const colon = strchr(line, ':');
    char *const label = m->labels[m->n_heads];
    size_t n = 0;
    double sum = 0;
    snprintf(label, LABEL_SIZE, "head %zu", m->n_heads);
    if (colon != NULL) {
        *colon = '\0';
        line += strspn(line, BETWEEN);
        for (size_t i = 0; line[i] != '\0'; i++)
            if ((unsigned char)line[i] < ' ' || (unsigned char)line[i] > '~')
                return wrong_line(m, number, "a label is plain ASCII");
        snprintf(label, LABEL_SIZE, "%.*s", LABEL_MOST, line);
        line = colon + 1;
    }
    for (line += strspn(line, BETWEEN); *line != '\0'; line += strspn(line, BETWEEN)) {
        char *end;
        const double vote = strtod(line, &end);
        if (end == line || (*end != '\0' && strchr(BETWEEN, *end) == NULL))
            return wrong_line(m, number, "something in it is not a number");
        if (!(vote >= 0 && vote <= (double)m->config.window * 1.001))
            return wrong_line(m, number, "a vote is negative or above the window");
        if (m->n_heads > 0 && n == m->n_prefix)
            return wrong_line(m, number, "more votes than in the lines above it");
        sum += vote;
        m->votes[(*n_all)++] = (float)vote;
        n++;
        line = end;
    }
    if (n == 0 || (m->n_heads > 0 && n < m->n_prefix))
        return wrong_line(m, number,
                          n == 0 ? "no votes" : "fewer votes than in the lines above it");
    if (sum > (double)m->config.window * 1.001)
        return wrong_line(m, number, "the votes sum to more than the window: is --window right?");
    m->n_prefix = n;
    m->n_heads++;
    return NULL;
}

/* Returns NULL or an error. */
static const char *read_votes(map *m, const char *path) {
    const char *error;
    size_t n_bytes, n_all = 0, number = 0;
    char *const text = read_file(path, &n_bytes, &error);
    if (text == NULL)
        return error;
    m->labels = calloc(MOST_HEADS, sizeof *m->labels);
    m->votes = llama_floats(n_bytes / 2 + 1); /* a vote is a digit and what follows it */
    if (m->labels == NULL || m->votes == NULL)
        error = "not enough memory";
    else if (strlen(text) != n_bytes)
        error = "not a text file";
    for (char *line = text, *next; error == NULL && line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        number++;
        if (line[0] == '#' || line[strspn(line, " \t\r")] == '\0')
            continue;
        if (m->n_heads == MOST_HEADS)
            error = wrong_line(m, number, "more heads than a picture can show: 128 at most");
        else
            error = read_head(m, line, number, &n_all);
    }
    if (error == NULL && m->n_heads == 0)
        error = "no votes in it";
    free(text);
    return error;
}

/* ---- the choice ----------------------------------------------------------------------------- */

/* Pools the votes of each head and keeps the best. Returns NULL or an error. */
static const char *choose(map *m) {
    const size_t room = m->config.capacity - m->config.window;
    m->n_best = room < m->n_prefix ? room : m->n_prefix;
    m->scores = llama_floats(m->n_heads * m->n_prefix);
    m->kept = calloc(m->n_heads * m->n_best, sizeof *m->kept);
    m->coverage = calloc(m->n_heads, sizeof *m->coverage);
    if (m->scores == NULL || m->kept == NULL || m->coverage == NULL)
        return "not enough memory";
    for (size_t head = 0; head < m->n_heads; head++) {
        const float *const votes = m->votes + head * m->n_prefix;
        float *const scores = m->scores + head * m->n_prefix;
        int32_t *const kept = m->kept + head * m->n_best;
        snapkv_status status =
            snapkv_pool(votes, m->n_prefix, m->config.kernel_size, m->config.pooling, scores);
        if (status == SNAPKV_OK)
            status = snapkv_top_k(scores, m->n_prefix, m->n_best, SNAPKV_BY_POSITION, kept);
        if (status != SNAPKV_OK)
            return snapkv_status_string(status);
        double dropped = 0;
        for (size_t j = 0, next = 0; j < m->n_prefix; j++)
            if (next < m->n_best && (size_t)kept[next] == j)
                next++;
            else
                dropped += (double)votes[j];
        m->coverage[head] = fmax(0, 1 - dropped / (double)m->config.window);
    }
    return NULL;
}

static int dump(const map *m, const char *path) {
    FILE *const f = fopen(path, "w");
    if (f == NULL)
        return 0;
    fprintf(f, "# votes of a window of %zu, a line for each head\n", m->config.window);
    for (size_t head = 0; head < m->n_heads; head++) {
        fprintf(f, "%s:", m->labels[head]);
        for (size_t j = 0; j < m->n_prefix; j++)
            fprintf(f, " %.9g", (double)m->votes[head * m->n_prefix + j]);
        fprintf(f, "\n");
    }
    const int failed = ferror(f);
    return fclose(f) == 0 && !failed;
}

/* ---- the picture ---------------------------------------------------------------------------- */

enum {
    LEFT = 170,
    PLOT = 800, /* the prefix */
    GAP = 10,   /* between it and the window */
    BAR = 70,   /* coverage */
    WIDTH = 1200,
    ROWS_TOP = 172,
    ZOOMED = 30 /* positions of the enlarged part */
};

/* Shades of a position's votes, by how often the even share (window / prefix) it got. */
static const double STEPS[] = {0.5, 1, 2, 5, 10, 20, 50};
static const char *const SHADES[] = {"#e3ecf6", "#c3d7ec", "#9bbde0", "#6c9ccf",
                                     "#447bb8", "#235a98", "#0d376d"};
enum { N_SHADES = sizeof STEPS / sizeof STEPS[0] };
static const char KEPT[] = "#e8710a", FACT[] = "#b0186a", DIM_TEXT[] = "#666666";

typedef struct picture {
    const map *m;
    FILE *f;
    size_t n_columns, per_column; /* positions of a column, when they are too many for one each */
    double column_width, window_x, window_width, bar_x;
    double row_height, lane_height, row_step; /* votes, marks below them, from head to head */
} picture;

static double x_of(const picture *p, size_t position) {
    return LEFT + p->column_width * (double)position / (double)p->per_column;
}

static double y_of(const picture *p, size_t head) {
    const double layers = p->m->n_rows == 0 ? 0 : (double)(head / p->m->n_rows);
    return ROWS_TOP + p->row_step * (double)head + 12 * layers;
}

static void rectangle(const picture *p, double x, double y, double w, double h, const char *fill) {
    fprintf(p->f, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>\n", x,
            y, w, h, fill);
}

static void print_escaped(FILE *f, const char *s) {
    for (; *s != '\0'; s++)
        if (*s == '<' || *s == '>' || *s == '&')
            fprintf(f, "&#%d;", *s);
        else
            fputc(*s, f);
}

/* `anchor`: start, middle or end. */
static void text(const picture *p, double x, double y, const char *anchor, const char *fill,
                 const char *format, ...) {
    char line[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(p->f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">", x, y, anchor,
            fill);
    print_escaped(p->f, line);
    fprintf(p->f, "</text>\n");
}

/* Columns from..to-1 of a row in one path: `shown` says which. */
static void columns(const picture *p, const char *shown, double y, double h, const char *color) {
    size_t last = 0;
    int open = 0;
    for (size_t c = 0; c < p->n_columns;) {
        size_t end = c;
        while (end < p->n_columns && shown[end])
            end++;
        if (end > c) {
            if (!open)
                fprintf(p->f,
                        "<path transform=\"translate(%d %.1f) scale(%.6g 1)\" stroke=\"%s\""
                        " stroke-width=\"%.1f\" d=\"M0 0",
                        LEFT, y + h / 2, p->column_width, color, h);
            open = 1;
            fprintf(p->f, "m%zu 0h%zu", c - last, end - c);
            last = end;
            c = end;
        } else {
            c++;
        }
    }
    if (open)
        fprintf(p->f, "\"/>\n");
}

static void draw_row(const picture *p, size_t head, char *shade, char *shown) {
    const map *const m = p->m;
    const double y = y_of(p, head), lane = y + p->row_height + 1;
    const double even = (double)m->config.window / (double)m->n_prefix;
    rectangle(p, LEFT, y, PLOT, p->row_height, "#f8f9fb");
    memset(shade, 0, p->n_columns);
    for (size_t j = 0; j < m->n_prefix; j++) {
        char s = 0;
        while (s < N_SHADES && (double)m->votes[head * m->n_prefix + j] >= STEPS[(size_t)s] * even)
            s++;
        if (s > shade[j / p->per_column])
            shade[j / p->per_column] = s; /* of a column's positions, the one with most votes */
    }
    for (char s = 1; s <= N_SHADES; s++) {
        for (size_t c = 0; c < p->n_columns; c++)
            shown[c] = shade[c] == s;
        columns(p, shown, y, p->row_height, SHADES[s - 1]);
    }
    memset(shown, 0, p->n_columns);
    for (size_t i = 0; i < m->n_best; i++)
        shown[(size_t)m->kept[head * m->n_best + i] / p->per_column] = 1;
    columns(p, shown, lane, p->lane_height, KEPT);

    rectangle(p, p->window_x, y, p->window_width, p->row_height, "#e4e4e4");
    rectangle(p, p->window_x, lane, p->window_width, p->lane_height, KEPT);
    rectangle(p, p->bar_x, y + 2, BAR, p->row_height - 2, "#ececec");
    rectangle(p, p->bar_x, y + 2, BAR * m->coverage[head], p->row_height - 2, "#3f9b6b");
    const double base = y + (p->row_height + p->lane_height) / 2 + 4;
    text(p, p->bar_x + BAR + 8, base, "start", "#333333", "%.1f %%", 100 * m->coverage[head]);
    text(p, LEFT - 12, base, "end", "#333333", "%s", m->labels[head]);
}

static void draw_legend(const picture *p) {
    const double y = 92;
    double x = LEFT;
    text(p, x, y, "start", DIM_TEXT, "votes of a position, times the even share");
    x += 350;
    for (size_t s = 0; s < N_SHADES; s++) {
        rectangle(p, x, y - 13, 34, 16, SHADES[s]);
        text(p, x + 1, y + 18, "middle", DIM_TEXT, "%g", STEPS[s]);
        x += 34;
    }
    x += 40;
    rectangle(p, x, y - 9, 34, 7, KEPT);
    text(p, x + 42, y, "start", DIM_TEXT, "kept");
    x += 110;
    rectangle(p, x, y - 13, 34, 16, "#e4e4e4");
    text(p, x + 42, y, "start", DIM_TEXT, "window: it votes, and stays");
}

/* The facts above the rows, and a band through them where the asked one is. Returns its position.
 */
static size_t find_asked(const map *m) {
    size_t i = 0;
    while (!(is_fact(m->tokens, i) && m->tokens[i] == m->tokens[LENGTH - 1]))
        i++;
    return i;
}

/* The facts above the rows, and a band through them where the asked one is. */
static void draw_facts(const picture *p) {
    const map *const m = p->m;
    const size_t asked = find_asked(m);
    const double y = ROWS_TOP - 14, fact = fmax(5, x_of(p, 1 + N_VALUES) - LEFT);
    char name[1 + N_VALUES][16];
    text(p, LEFT - 12, y + 7, "end", DIM_TEXT, "facts in the prompt");
    for (size_t i = 0; i < m->n_prefix; i++)
        if (is_fact(m->tokens, i))
            rectangle(p, x_of(p, i), y, fact, 7, i == asked ? FACT : "#9a9a9a");
    if (asked >= m->n_prefix)
        return;
    for (size_t v = 0; v <= N_VALUES; v++)
        token_name(m->tokens[asked + v], name[v]);
    const double x = x_of(p, asked) + fact / 2;
    const char *const anchor = x < LEFT + 150 ? "start" : x > LEFT + PLOT - 150 ? "end" : "middle";
    text(p, x, y - 7, anchor, FACT, "the fact that is asked for: %s is %s %s %s", name[0], name[1],
         name[2], name[3]);
    rectangle(p, x - 5, y + 7, 10, y_of(p, m->n_heads - 1) + p->row_step - y - 6, "#f6dcea");
}

static void draw_axis(const picture *p, double y) {
    const size_t n = p->m->n_prefix;
    static const size_t NICE[] = {1, 2, 5};
    size_t step = 1, power = 1;
    for (size_t i = 1; n / step > 12; i++) { /* 1, 2, 5, 10, 20, ... */
        power *= i % 3 == 0 ? 10 : 1;
        step = NICE[i % 3] * power;
    }
    fprintf(p->f, "<path d=\"M%d %.1fH%d\" stroke=\"#888888\"/>\n", LEFT, y, LEFT + PLOT);
    for (size_t j = 0; j < n; j += step) {
        fprintf(p->f, "<path d=\"M%.1f %.1fv6\" stroke=\"#888888\"/>\n", x_of(p, j), y);
        if (x_of(p, j) < LEFT + PLOT - 24)
            text(p, x_of(p, j), y + 22, "middle", "#333333", "%zu", j);
    }
    text(p, p->window_x + p->window_width / 2, ROWS_TOP - 8, "middle", "#333333", "window");
    text(p, p->bar_x, ROWS_TOP - 26, "start", "#333333", "coverage:");
    text(p, p->bar_x, ROWS_TOP - 8, "start", "#333333", "attention kept");
    text(p, LEFT + PLOT / 2.0, y + 46, "middle", DIM_TEXT, "position in the prompt");
}

/* The head whose votes for the fact are the most. */
static size_t best_reader(const map *m, size_t asked) {
    size_t best = 0;
    double most = -1;
    for (size_t head = 0; head < m->n_heads; head++) {
        double sum = 0;
        for (size_t v = 0; v <= N_VALUES; v++)
            sum += (double)m->votes[head * m->n_prefix + asked + v];
        if (sum > most) {
            most = sum;
            best = head;
        }
    }
    return best;
}

/* The neighbourhood of the fact: why pooling keeps a whole fact. */
static void draw_zoom(const picture *p, double y) {
    enum { HEIGHT = 110 };
    const map *const m = p->m;
    const size_t asked = find_asked(m), head = best_reader(m, asked);
    const size_t before = asked < ZOOMED / 2 ? 0 : asked - ZOOMED / 2 + 2;
    const size_t first = before + ZOOMED > m->n_prefix ? m->n_prefix - ZOOMED : before;
    const float *const votes = m->votes + head * m->n_prefix;
    const float *const scores = m->scores + head * m->n_prefix;
    const double cell = (double)PLOT / ZOOMED, base = y + 30 + HEIGHT;
    double most = 0;
    for (size_t j = first; j < first + ZOOMED; j++)
        most = fmax(most, (double)votes[j]);
    text(p, LEFT, y, "start", "#333333",
         "Around the fact, %s: votes (bars) and pooled scores (line). Pooling keeps the"
         " neighbours of a peak.",
         m->labels[head]);
    rectangle(p, LEFT + cell * (double)(asked - first), y + 22, cell * (1 + N_VALUES), HEIGHT + 8,
              "#f6dcea");
    for (size_t i = 0, next = 0; i < ZOOMED; i++) {
        const size_t j = first + i;
        const int in_fact = j >= asked && j <= asked + N_VALUES;
        const double x = LEFT + cell * (double)i;
        const double height = most > 0 ? HEIGHT * (double)votes[j] / most : 0;
        char name[16];
        token_name(m->tokens[j], name);
        while (next < m->n_best && (size_t)m->kept[head * m->n_best + next] < j)
            next++;
        rectangle(p, x + 4, base - height, cell - 8, height, SHADES[4]);
        if (next < m->n_best && (size_t)m->kept[head * m->n_best + next] == j)
            rectangle(p, x + 0.5, base + 3, cell - 1, p->lane_height + 1, KEPT);
        text(p, x + cell / 2, base + 32, "middle", in_fact ? FACT : "#888888", "%s", name);
        if (j % 10 == 0)
            text(p, x + cell / 2, base + 52, "middle", "#333333", "%zu", j);
    }
    fprintf(p->f, "<path fill=\"none\" stroke=\"#333333\" stroke-width=\"1.8\" d=\"");
    for (size_t i = 0; i < ZOOMED; i++)
        fprintf(p->f, "%c%.1f %.1f", i == 0 ? 'M' : 'L', LEFT + cell * ((double)i + 0.5),
                base - (most > 0 ? HEIGHT * (double)scores[first + i] / most : 0));
    fprintf(p->f, "\"/>\n");
    text(p, LEFT - 12, base - HEIGHT / 2.0, "end", DIM_TEXT, "votes");
    text(p, LEFT - 12, base + 12, "end", DIM_TEXT, "kept");
    text(p, LEFT - 12, base + 32, "end", DIM_TEXT, "token");
}

static void set_sizes(picture *p) {
    const map *const m = p->m;
    const double window = (double)m->config.window * PLOT / (double)m->n_prefix;
    p->per_column = (m->n_prefix + PLOT - 1) / PLOT;
    p->n_columns = (m->n_prefix + p->per_column - 1) / p->per_column;
    p->column_width = (double)PLOT * (double)p->per_column / (double)m->n_prefix;
    p->window_x = LEFT + PLOT + GAP;
    p->window_width = window < 50 ? 50 : window > 60 ? 60 : window;
    p->bar_x = p->window_x + p->window_width + 20;
    p->row_height = m->n_heads <= 40 ? 22 : 12;
    p->lane_height = m->n_heads <= 40 ? 7 : 4;
    p->row_step = p->row_height + p->lane_height + (m->n_heads <= 40 ? 8 : 4);
}

/* Returns NULL or an error. */
static const char *write_svg(const map *m, const char *path) {
    picture p;
    memset(&p, 0, sizeof p);
    p.m = m;
    set_sizes(&p);
    const int zoom = m->tokens != NULL && m->n_prefix >= ZOOMED && find_asked(m) + 4 <= m->n_prefix;
    const double bottom = y_of(&p, m->n_heads - 1) + p.row_step;
    const double height = bottom + (zoom ? 300 : 70);
    char *const shade = malloc(p.n_columns), *const shown = malloc(p.n_columns);
    p.f = shade != NULL && shown != NULL ? fopen(path, "w") : NULL;
    const char *error = shade == NULL || shown == NULL ? "not enough memory" : "can't be written";
    if (p.f != NULL) {
        fprintf(p.f,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\""
                " viewBox=\"0 0 %d %.0f\" font-family=\"Helvetica, Arial, sans-serif\""
                " font-size=\"15\">\n<rect width=\"%d\" height=\"%.0f\" fill=\"#ffffff\"/>\n"
                "<text x=\"%d\" y=\"34\" font-size=\"22\" font-weight=\"bold\" fill=\"#333333\">"
                "What SnapKV keeps of a prompt</text>\n",
                WIDTH, height, WIDTH, height, WIDTH, height, LEFT);
        text(&p, LEFT, 58, "start", DIM_TEXT,
             "%zu of %zu positions of each head: the %zu best by votes after %s pooling over %zu, "
             "and"
             " the window of %zu that voted",
             m->n_best + m->config.window, m->n_prefix + m->config.window, m->n_best,
             m->config.pooling == SNAPKV_POOL_MAX ? "maximum" : "average", m->config.kernel_size,
             m->config.window);
        draw_legend(&p);
        if (m->tokens != NULL)
            draw_facts(&p);
        for (size_t head = 0; head < m->n_heads; head++)
            draw_row(&p, head, shade, shown);
        draw_axis(&p, bottom);
        if (zoom)
            draw_zoom(&p, bottom + 86);
        fprintf(p.f, "</svg>\n");
        const int failed = ferror(p.f);
        if (fclose(p.f) == 0 && !failed)
            error = NULL;
    }
    free(shade);
    free(shown);
    return error;
}

/* ---- the command ---------------------------------------------------------------------------- */

typedef struct options {
    const char *svg, *model, *votes, *dump;
    uint64_t seed;
    int help;
} options;

static int read_size(const char *value, size_t *size) {
    unsigned long number;
    if (!read_number(value, INT32_MAX, &number))
        return 0;
    *size = number;
    return 1;
}

/* An option that takes a value. False: it is unknown or the value is wrong. */
static int read_value(options *o, snapkv_config *config, const char *name, const char *value) {
    unsigned long number;
    if (strcmp(name, "--capacity") == 0)
        return read_size(value, &config->capacity);
    if (strcmp(name, "--window") == 0)
        return read_size(value, &config->window);
    if (strcmp(name, "--kernel") == 0)
        return read_size(value, &config->kernel_size);
    if (strcmp(name, "--pooling") == 0) {
        config->pooling = strcmp(value, "max") == 0 ? SNAPKV_POOL_MAX : SNAPKV_POOL_AVG;
        return strcmp(value, "max") == 0 || strcmp(value, "avg") == 0;
    }
    if (strcmp(name, "--seed") == 0) {
        if (!read_number(value, 4294967295u, &number))
            return 0;
        o->seed = number;
        return 1;
    }
    const char **const path = strcmp(name, "--svg") == 0     ? &o->svg
                              : strcmp(name, "--model") == 0 ? &o->model
                              : strcmp(name, "--dump") == 0  ? &o->dump
                                                             : NULL;
    if (path == NULL || value[0] == '\0')
        return 0;
    *path = value;
    return 1;
}

/* Returns NULL, or the argument that is wrong. */
static const char *read_options(options *o, snapkv_config *config, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            o->help = 1;
        else if (argv[i][0] != '-' && argv[i][0] != '\0' && o->votes == NULL)
            o->votes = argv[i];
        else if (i + 1 < argc && read_value(o, config, argv[i], argv[i + 1]))
            i++;
        else
            return argv[i];
    }
    return NULL;
}

int main(int argc, char **argv) {
    static map m;
    options o = {"build/keepmap.svg", "examples/recall_model.bin", NULL, NULL, 1, 0};
    m.config = snapkv_default_config();
    m.config.window = 16;
    m.config.capacity = 64;
    const char *const wrong = read_options(&o, &m.config, argc, argv);
    if (wrong != NULL) {
        fprintf(stderr, "keepmap: bad argument or value: %s\n%s", wrong, USAGE);
        return EXIT_FAILURE;
    }
    if (o.help) {
        fputs(USAGE, stdout);
        return EXIT_SUCCESS;
    }
    const snapkv_model any = {1, 1, 1, 1, 1, 1};
    snapkv_ledger unused;
    const char *where = "the choice", *error = NULL;
    const snapkv_status status = /* checks the policy, before the model runs */
        snapkv_account(&m.config, &any, m.config.window + 1, 0, &unused);
    if (status != SNAPKV_OK) {
        error = snapkv_status_string(status);
    } else {
        where = o.votes != NULL ? o.votes : o.model;
        error = o.votes != NULL ? read_votes(&m, o.votes) : run_model(&m, o.model, o.seed);
    }
    if (error == NULL) {
        where = "the choice";
        error = choose(&m);
    }
    if (error == NULL && o.dump != NULL && !dump(&m, o.dump)) {
        where = o.dump;
        error = "can't be written";
    }
    if (error == NULL) {
        where = o.svg;
        error = write_svg(&m, o.svg);
    }
    if (error == NULL)
        printf("%zu heads, %zu of %zu positions kept of each; picture: %s\n", m.n_heads,
               m.n_best + m.config.window, m.n_prefix + m.config.window, o.svg);
    else
        fprintf(stderr, "keepmap: %s: %s\n", where, error);
    map_free(&m);
    return error == NULL && is_printed("keepmap") ? EXIT_SUCCESS : EXIT_FAILURE;
}
