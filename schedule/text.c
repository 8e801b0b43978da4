/* The text form, which the writer defines: the reader parses a line, prints the result and compares
 * it with the line. */
#include "schedule/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/build.h"
#include "schedule/values.h"

typedef struct line {
    char *text;
    size_t bytes, length;
} line;

static void put(line *out, const char *format, ...) WEFT_PRINTF(2, 3);

static void put(line *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int wrote = vsnprintf(out->text + out->length, out->bytes - out->length, format, args);
    va_end(args);
    if (wrote > 0)
        out->length += (size_t)wrote;
    if (out->length >= out->bytes)
        out->length = out->bytes - 1;
}

/* The task's numbers and their names in the text. */
enum { NUM_FIELDS = 7 };
static const char *const field_names[NUM_FIELDS] = {"mb",     "chunk",  "layer", "part",
                                                    "expert", "bucket", "peer"};

static void get_fields(const weft_task *task, int32_t out[NUM_FIELDS])
{
    const int32_t fields[NUM_FIELDS] = {task->micro_batch, task->chunk,  task->layer, task->part,
                                        task->expert,      task->bucket, task->peer};
    memcpy(out, fields, sizeof fields);
}

static void set_fields(const int32_t fields[NUM_FIELDS], weft_task *task)
{
    task->micro_batch = fields[0];
    task->chunk = (int16_t)fields[1];
    task->layer = fields[2];
    task->part = (int16_t)fields[3];
    task->expert = fields[4];
    task->bucket = fields[5];
    task->peer = fields[6];
}

#define STEP_BEFORE "step_before"
#define LANDED "@landed"

static void put_task(line *out, const weft_task *task, const weft_wait *waits)
{
    int32_t fields[NUM_FIELDS];
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    get_fields(task, fields);
    put(out, "%s %s", weft_task_kind_text(task->kind), weft_lane_kind_text(task->lane));
    if (task->flow != WEFT_FLOW_NONE)
        put(out, " %s", weft_flow_text((int)task->flow));
    if (task->flags & WEFT_TASK_HOST_WAITS)
        put(out, " host");
    if (task->flags & WEFT_TASK_PAIRED)
        put(out, " pair");
    for (int f = 0; f < NUM_FIELDS; f++)
        if (fields[f] != -1)
            put(out, " %s=%d", field_names[f], fields[f]);
    for (int i = 0; operands && i < operands->count; i++)
        if (task->operands[i] != -1)
            put(out, " %s=%d", weft_operand_text((int)operands->rows[i].name), task->operands[i]);
    for (uint32_t w = 0; w < task->num_waits; w++) {
        put(out, w ? "," : " waits=");
        if (waits[w].task == WEFT_STEP_BEFORE)
            put(out, STEP_BEFORE);
        else
            put(out, "%u", waits[w].task);
        if (waits[w].point == WEFT_POINT_LANDED)
            put(out, LANDED);
        else if (waits[w].point != -1)
            put(out, "@%d", waits[w].point);
    }
}

char *weft_task_format(const weft_program *program, uint32_t index, char *text, size_t bytes)
{
    line out = {text, bytes, 0};
    const weft_task *task = &program->tasks[index];
    put_task(&out, task, program->waits + task->first_wait);
    return text;
}

static bool same_slot(const weft_slot *a, const weft_slot *b)
{
    return a->holds == b->holds && a->chunk == b->chunk && a->bytes == b->bytes;
}

static void put_slots(line *out, const weft_slot *slot, int32_t first, int32_t last)
{
    put(out, "slots %d-%d %s", first, last, weft_slot_kind_text((int)slot->holds));
    if (slot->chunk != -1)
        put(out, " chunk=%d", slot->chunk);
    if (slot->bytes)
        put(out, " bytes=%" PRIu64, slot->bytes);
}

#define LAYOUT_V " layout=v"

weft_status weft_program_print(const weft_program *program, FILE *out)
{
    char text[WEFT_TASK_TEXT_BYTES];
    fprintf(out, "program in_flight=%d%s\n", program->max_in_flight, program->is_v ? LAYOUT_V : "");
    for (int32_t first = 0, next; first < program->num_slots; first = next) {
        const weft_slot *slot = &program->slots[first];
        for (next = first + 1; next < program->num_slots && same_slot(slot, &program->slots[next]);)
            next++;
        line row = {text, sizeof(text), 0};
        put_slots(&row, slot, first, next - 1);
        fprintf(out, "%s\n", text);
    }
    for (uint32_t i = 0; i < program->num_tasks; i++)
        fprintf(out, "%u %s\n", i, weft_task_format(program, i, text, sizeof(text)));
    if (fflush(out) || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write a program: %s", strerror(errno));
    return WEFT_OK;
}

static int find(const char *word, const char *(*text_of)(int), int count)
{
    for (int i = 0; word && i < count; i++)
        if (strcmp(word, text_of(i)) == 0)
            return i;
    return -1;
}

static bool skip(char **text, const char *word)
{
    const bool is_there = strncmp(*text, word, strlen(word)) == 0;
    *text += is_there ? strlen(word) : 0;
    return is_there;
}

static void read_waits(char *text, weft_task *task, weft_wait *waits)
{
    do {
        weft_wait *wait = &waits[task->num_waits++];
        wait->task =
            skip(&text, STEP_BEFORE) ? WEFT_STEP_BEFORE : (uint32_t)strtoul(text, &text, 10);
        wait->point = skip(&text, LANDED) ? WEFT_POINT_LANDED
                      : skip(&text, "@")  ? (int32_t)strtol(text, &text, 10)
                                          : -1;
    } while (skip(&text, ",") && task->num_waits < WEFT_TASK_MAX_WAITS);
}

/* Parses known words; the comparison of the whole line finds any others. */
static void read_field(const char *word, weft_task *task, weft_wait *waits)
{
    char *equals = strchr(word, '=');
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    int32_t fields[NUM_FIELDS];
    get_fields(task, fields);
    if (!equals) {
        const int flow = find(word, weft_flow_text, WEFT_NUM_FLOWS);
        task->flow = flow < 0 ? task->flow : (uint8_t)flow;
        task->flags |= strcmp(word, "host") == 0 ? WEFT_TASK_HOST_WAITS : 0;
        task->flags |= strcmp(word, "pair") == 0 ? WEFT_TASK_PAIRED : 0;
        return;
    }
    const size_t length = (size_t)(equals - word);
    const int32_t number = (int32_t)strtol(equals + 1, NULL, 10);
    for (int f = 0; f < NUM_FIELDS; f++)
        if (strlen(field_names[f]) == length && strncmp(word, field_names[f], length) == 0)
            fields[f] = number;
    set_fields(fields, task);
    for (int i = 0; operands && i < operands->count; i++) {
        const char *name = weft_operand_text((int)operands->rows[i].name);
        if (strlen(name) == length && strncmp(word, name, length) == 0)
            task->operands[i] = (int16_t)number;
    }
    if (strncmp(word, "waits=", strlen("waits=")) == 0 && task->num_waits == 0)
        read_waits(equals + 1, task, waits);
}

/* One line without its end. `index`: the index that the task must have. */
static weft_status read_task(const char *text, uint32_t index, weft_program_builder *builder)
{
    char words[WEFT_TASK_TEXT_BYTES + 16], *rest = NULL;
    snprintf(words, sizeof(words), "%s", text);
    strtok_r(words, " ", &rest); /* the index; compared below */
    const int kind = find(strtok_r(NULL, " ", &rest), weft_task_kind_text, WEFT_NUM_TASK_KINDS);
    const int lane = find(strtok_r(NULL, " ", &rest), weft_lane_kind_text, WEFT_NUM_LANES);
    weft_wait waits[WEFT_TASK_MAX_WAITS];
    if (kind < 0 || lane < 0)
        return WEFT_ERROR(WEFT_CONFIG, "\"%.80s\" is no task: expected INDEX KIND LANE ...", text);
    weft_task task = weft_task_of((weft_task_kind)kind, WEFT_FLOW_NONE);
    task.lane = (uint8_t)lane;
    for (const char *word; (word = strtok_r(NULL, " ", &rest));)
        read_field(word, &task, waits);

    char again[WEFT_TASK_TEXT_BYTES + 16];
    line out = {again, sizeof(again), 0};
    put(&out, "%u ", index);
    put_task(&out, &task, waits);
    if (strcmp(text, again) != 0)
        return WEFT_ERROR(WEFT_CONFIG, "\"%.120s\" should read \"%.120s\"", text, again);
    WEFT_TRY(weft_program_add(builder, &task, waits, task.num_waits, NULL));
    return WEFT_OK;
}

static weft_status read_slots(const char *text, weft_slot *previous, int32_t *num_slots,
                              weft_program_builder *builder)
{
    char holds[32] = "";
    int first = 0, last = -1;
    const char *chunk = strstr(text, " chunk="), *bytes = strstr(text, " bytes=");
    sscanf(text, "slots %9d-%9d %31s", &first, &last, holds);
    const int kind = find(holds, weft_slot_kind_text, WEFT_NUM_SLOT_KINDS);
    if (kind < 0 || last < first)
        return WEFT_ERROR(WEFT_CONFIG, "\"%.80s\" is no stretch of slots", text);
    const weft_slot slot = {.holds = (uint32_t)kind,
                            .chunk =
                                chunk ? (int32_t)strtol(chunk + strlen(" chunk="), NULL, 10) : -1,
                            .bytes = bytes ? strtoull(bytes + strlen(" bytes="), NULL, 10) : 0};

    char again[WEFT_TASK_TEXT_BYTES];
    line out = {again, sizeof(again), 0};
    put_slots(&out, &slot, *num_slots, last);
    if (strcmp(text, again) != 0 || (*num_slots > 0 && same_slot(previous, &slot)))
        return WEFT_ERROR(WEFT_CONFIG, "\"%.120s\" should read \"%.120s\"%s", text, again,
                          strcmp(text, again) == 0 ? ", in one stretch with those before" : "");
    WEFT_TRY(weft_program_add_slots(builder, &slot, last - first + 1, NULL));
    *num_slots = last + 1;
    *previous = slot;
    return WEFT_OK;
}

static weft_status read_header(const char *text, int32_t *max_in_flight, bool *is_v)
{
    const char *equals = strchr(text, '=');
    *max_in_flight = equals ? (int32_t)strtol(equals + 1, NULL, 10) : 0;
    char again[64];
    *is_v = strstr(text, LAYOUT_V) != NULL;
    snprintf(again, sizeof(again), "program in_flight=%d%s", *max_in_flight, *is_v ? LAYOUT_V : "");
    if (strcmp(text, again) != 0)
        return WEFT_ERROR(WEFT_CONFIG, "\"%.80s\" should read \"%s\"", text, again);
    return WEFT_OK;
}

weft_status weft_program_parse(const char *text, weft_arena *arena, weft_program *out)
{
    weft_program_builder *builder = NULL;
    WEFT_TRY(weft_program_builder_create(arena, &builder));
    int32_t num_slots = 0, max_in_flight = 0;
    bool is_v = false;
    uint32_t number = 1, num_tasks = 0;
    weft_slot previous = {0};
    do {
        char one[WEFT_TASK_TEXT_BYTES + 16];
        const char *end = strchr(text, '\n');
        if (!end)
            return WEFT_ERROR(WEFT_CONFIG, "line %u: the line does not end", number);
        if ((size_t)(end - text) >= sizeof(one))
            return WEFT_ERROR(WEFT_CONFIG, "line %u: longer than any task", number);
        memcpy(one, text, (size_t)(end - text));
        one[end - text] = '\0';
        weft_status status;
        if (number == 1)
            status = read_header(one, &max_in_flight, &is_v);
        else if (num_tasks == 0 && strncmp(one, "slots ", strlen("slots ")) == 0)
            status = read_slots(one, &previous, &num_slots, builder);
        else
            status = read_task(one, num_tasks++, builder);
        if (status != WEFT_OK)
            return weft_error_context(status, "line %u", number);
        text = end + 1;
        number++;
    } while (*text);
    WEFT_TRY(weft_program_finish(builder, max_in_flight, out));
    out->is_v = is_v;
    return WEFT_OK;
}
