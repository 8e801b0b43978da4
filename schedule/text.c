/* The text form. The writer is the definition; the reader takes what it understands of a line and
 * then compares the line with what the writer makes of that, so the two cannot drift apart. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/program.h"

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

/* Up to the last slot that there is. */
static void put_slots(line *out, const char *name, const int32_t *slots, int count)
{
    while (count > 0 && slots[count - 1] == -1)
        count--;
    if (count > 0)
        put(out, " %s=%d", name, slots[0]);
    for (int i = 1; i < count; i++)
        put(out, ",%d", slots[i]);
}

static void put_task(line *out, const weft_task *task, const uint32_t *waits)
{
    put(out, "%s %s", weft_task_kind_text(task->kind), weft_lane_kind_text(task->lane));
    if (task->flow != WEFT_FLOW_NONE)
        put(out, " %s", weft_flow_text((int)task->flow));
    if (task->micro_batch != -1)
        put(out, " mb=%d", task->micro_batch);
    if (task->stage != -1)
        put(out, " stage=%d", task->stage);
    if (task->peer != -1)
        put(out, " peer=%d", task->peer);
    put_slots(out, "reads", task->reads, WEFT_TASK_MAX_READS);
    put_slots(out, "writes", task->writes, WEFT_TASK_MAX_WRITES);
    for (uint32_t w = 0; w < task->num_waits; w++)
        put(out, w ? ",%u" : " waits=%u", waits[w]);
}

char *weft_task_format(const weft_program *program, uint32_t index, char *text, size_t bytes)
{
    line out = {text, bytes, 0};
    const weft_task *task = &program->tasks[index];
    put_task(&out, task, program->waits + task->first_wait);
    return text;
}

weft_status weft_program_print(const weft_program *program, FILE *out)
{
    fprintf(out, "program slots=%d in_flight=%d\n", program->num_slots, program->max_in_flight);
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        char text[WEFT_TASK_TEXT_BYTES];
        fprintf(out, "%u %s\n", i, weft_task_format(program, i, text, sizeof(text)));
    }
    if (fflush(out) || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write a program: %s", strerror(errno));
    return WEFT_OK;
}

static int find(const char *word, const char *(*text_of)(int), int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(word, text_of(i)) == 0)
            return i;
    return -1;
}

/* Reads up to `room` comma-separated numbers; returns how many. */
static int read_numbers(const char *text, int room, long *out)
{
    int count = 0;
    for (char *end; count < room; text = end + 1) {
        out[count++] = strtol(text, &end, 10);
        if (*end != ',')
            break;
    }
    return count;
}

static void read_field(const char *word, weft_task *task, uint32_t *waits)
{
    const char *equals = strchr(word, '=');
    if (!equals) {
        const int flow = find(word, weft_flow_text, WEFT_NUM_FLOWS);
        task->flow = flow < 0 ? WEFT_FLOW_NONE : (uint32_t)flow;
        return;
    }
    long numbers[WEFT_TASK_MAX_WAITS];
    const int count = read_numbers(equals + 1, WEFT_TASK_MAX_WAITS, numbers);
    const struct {
        const char *name;
        int32_t *to;
        int room;
    } fields[] = {
        {"mb=", &task->micro_batch, 1},
        {"stage=", &task->stage, 1},
        {"peer=", &task->peer, 1},
        {"reads=", task->reads, WEFT_TASK_MAX_READS},
        {"writes=", task->writes, WEFT_TASK_MAX_WRITES},
    };
    for (size_t f = 0; f < sizeof(fields) / sizeof(fields[0]); f++)
        if (strncmp(word, fields[f].name, strlen(fields[f].name)) == 0)
            for (int i = 0; i < count && i < fields[f].room; i++)
                fields[f].to[i] = (int32_t)numbers[i];
    if (strncmp(word, "waits=", strlen("waits=")) == 0)
        for (task->num_waits = 0; task->num_waits < (uint32_t)count; task->num_waits++)
            waits[task->num_waits] = (uint32_t)numbers[task->num_waits];
}

/* One line without its end. `index`: the index that the task must have. */
static weft_status read_task(const char *text, uint32_t index, weft_program_builder *builder)
{
    char words[WEFT_TASK_TEXT_BYTES + 16], *rest = NULL;
    snprintf(words, sizeof(words), "%s", text);
    strtok_r(words, " ", &rest); /* the index; compared below */
    const char *kind = strtok_r(NULL, " ", &rest), *lane = strtok_r(NULL, " ", &rest);
    uint32_t waits[WEFT_TASK_MAX_WAITS];
    const int kind_index = kind ? find(kind, weft_task_kind_text, WEFT_NUM_TASK_KINDS) : -1;
    const int lane_index = lane ? find(lane, weft_lane_kind_text, WEFT_NUM_LANES) : -1;
    if (kind_index < 0 || lane_index < 0)
        return WEFT_ERROR(WEFT_CONFIG, "\"%.80s\" is no task: expected INDEX KIND LANE ...", text);
    weft_task task = weft_task_of((weft_task_kind)kind_index, -1);
    task.lane = (uint16_t)lane_index;
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

static weft_status read_header(const char *text, int32_t *num_slots, int32_t *max_in_flight)
{
    const char *slots = strchr(text, '='), *in_flight = strrchr(text, '=');
    *num_slots = slots ? (int32_t)strtol(slots + 1, NULL, 10) : 0;
    *max_in_flight = slots ? (int32_t)strtol(in_flight + 1, NULL, 10) : 0;
    char again[64];
    snprintf(again, sizeof(again), "program slots=%d in_flight=%d", *num_slots, *max_in_flight);
    if (strcmp(text, again) != 0)
        return WEFT_ERROR(WEFT_CONFIG, "\"%.80s\" should read \"%s\"", text, again);
    return WEFT_OK;
}

weft_status weft_program_parse(const char *text, weft_arena *arena, weft_program *out)
{
    weft_program_builder *builder = NULL;
    WEFT_TRY(weft_program_builder_create(arena, &builder));
    int32_t num_slots = 0, max_in_flight = 0;
    uint32_t number = 1;
    do {
        char one[WEFT_TASK_TEXT_BYTES + 16];
        const char *end = strchr(text, '\n');
        if (!end)
            return WEFT_ERROR(WEFT_CONFIG, "line %u: the line does not end", number);
        if ((size_t)(end - text) >= sizeof(one))
            return WEFT_ERROR(WEFT_CONFIG, "line %u: longer than any task", number);
        memcpy(one, text, (size_t)(end - text));
        one[end - text] = '\0';
        const weft_status status = number == 1 ? read_header(one, &num_slots, &max_in_flight)
                                               : read_task(one, number - 2, builder);
        if (status != WEFT_OK)
            return weft_error_context(status, "line %u", number);
        text = end + 1;
        number++;
    } while (*text);
    WEFT_TRY(weft_program_finish(builder, num_slots, max_in_flight, out));
    return WEFT_OK;
}
