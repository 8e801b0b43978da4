#include "schedule/walk.h"

#include <stdio.h>
#include <string.h>

#include "core/stage.h"

static uint32_t next_on_lane(const weft_program *program, int lane, uint32_t from)
{
    while (from < program->num_tasks && program->tasks[from].lane != lane)
        from++;
    return from;
}

static uint32_t next_host_wait(const weft_program *program, uint32_t from)
{
    while (from < program->num_tasks && !(program->tasks[from].flags & WEFT_TASK_HOST_WAITS))
        from++;
    return from;
}

static int meeting_of(const weft_task *task)
{
    return task->kind == WEFT_TASK_NORM && task->bucket < 0              ? 0
           : task->kind == WEFT_TASK_SUM && task->flow == WEFT_FLOW_TIED ? 1
                                                                         : -1;
}

static uint32_t find_meeting(const weft_program *program, int meeting)
{
    uint32_t index = 0;
    while (index < program->num_tasks && meeting_of(&program->tasks[index]) != meeting)
        index++;
    return index;
}

static void find_lanes(const weft_program *program, weft_walk_stage *out)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        out->head[lane] = program->num_tasks;
    for (uint32_t i = program->num_tasks; i-- > 0;)
        out->head[program->tasks[i].lane] = i;
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        if (out->head[lane] < program->num_tasks)
            out->lanes[out->num_lanes++] = (uint8_t)lane;
}

weft_status weft_walk_start(weft_walk *walk, const weft_program *programs, int num_stages,
                            weft_arena *scratch)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)num_stages, sizeof(weft_walk_stage), &memory));
    *walk = (weft_walk){.programs = programs, .num_stages = num_stages, .stages = memory};
    for (int stage = 0; stage < num_stages; stage++) {
        WEFT_TRY(weft_arena_alloc_array(scratch, programs[stage].num_tasks, sizeof(bool), &memory));
        walk->stages[stage].done = memory;
        WEFT_TRY(weft_arena_alloc_array(scratch, programs[stage].num_waits, sizeof(bool), &memory));
        walk->stages[stage].passed = memory;
        walk->stages[stage].host = next_host_wait(&programs[stage], 0);
        for (int meeting = 0; meeting < WEFT_NUM_MEETINGS; meeting++)
            walk->stages[stage].meets[meeting] = find_meeting(&programs[stage], meeting);
        find_lanes(&programs[stage], &walk->stages[stage]);
    }
    return WEFT_OK;
}

/* The first of the task's waits that is not over; the task's own index: all are. */
static uint32_t unmet_wait(const weft_walk *walk, int stage, uint32_t index)
{
    const weft_program *program = &walk->programs[stage];
    const weft_task *task = &program->tasks[index];
    for (uint32_t w = task->first_wait; w < task->first_wait + task->num_waits; w++) {
        const uint32_t earlier = program->waits[w].task;
        if (earlier != WEFT_STEP_BEFORE && !walk->stages[stage].passed[w] &&
            !walk->stages[stage].done[earlier])
            return earlier;
    }
    return index;
}

/* What keeps a task from starting, if it stands at the head of its lane: an earlier task that is
 * not done. The task's own index: nothing. */
static uint32_t unmet(const weft_walk *walk, int stage, uint32_t index)
{
    const weft_program *program = &walk->programs[stage];
    const weft_task *task = &program->tasks[index];
    if (walk->stages[stage].host < index)
        return walk->stages[stage].host;
    const uint32_t earlier = unmet_wait(walk, stage, index);
    if (earlier != index || !weft_task_opens_pair(task) || index + 1 == program->num_tasks)
        return earlier;
    const uint32_t of_other = unmet_wait(walk, stage, index + 1);
    return of_other == index + 1 ? index : of_other;
}

static bool ready(const weft_walk *walk, int stage, uint32_t index)
{
    return index < walk->programs[stage].num_tasks && unmet(walk, stage, index) == index;
}

static bool has_come(const weft_walk *walk, int stage, int meeting)
{
    const weft_program *program = &walk->programs[stage];
    const weft_walk_stage *s = &walk->stages[stage];
    const uint32_t index = s->meets[meeting];
    return index == program->num_tasks || s->done[index] ||
           (s->head[program->tasks[index].lane] == index && ready(walk, stage, index));
}

/* A stage that has come stays. */
static bool have_all_come(weft_walk *walk, int meeting)
{
    int *come = &walk->come[meeting];
    while (*come < walk->num_stages && has_come(walk, *come, meeting))
        ++*come;
    return *come == walk->num_stages;
}

bool weft_is_message(const weft_task *send, int sender, const weft_task *receive, int receiver,
                     int num_ranks, bool is_v)
{
    const int next = send->flow == WEFT_FLOW_ACTIVATION ? 1 : -1;
    return receive->kind == WEFT_TASK_RECEIVE && receive->peer == sender &&
           send->peer == receiver && receive->flow == send->flow &&
           receive->micro_batch == send->micro_batch &&
           weft_stage_of(is_v, num_ranks, receiver, receive->chunk) ==
               weft_stage_of(is_v, num_ranks, sender, send->chunk) + next;
}

void weft_walk_pass(weft_walk *walk, int stage, uint32_t wait)
{
    walk->stages[stage].passed[wait] = true;
}

static void finish_task(weft_walk *walk, int stage, uint32_t index)
{
    const weft_program *program = &walk->programs[stage];
    const int lane = program->tasks[index].lane;
    walk->stages[stage].done[index] = true;
    walk->stages[stage].head[lane] = next_on_lane(program, lane, index + 1);
    if (walk->stages[stage].host == index)
        walk->stages[stage].host = next_host_wait(program, index + 1);
}

/* Finds the peer's RECEIVE for a SEND, if it stands at the head of its lane and is ready. */
static bool find_receive(const weft_walk *walk, int stage, const weft_task *send,
                         uint32_t *out_receive)
{
    if (send->peer < 0 || send->peer >= walk->num_stages || send->peer == stage)
        return false;
    const weft_program *peer = &walk->programs[send->peer];
    const uint32_t receive = walk->stages[send->peer].head[WEFT_LANE_RECEIVE];
    *out_receive = receive;
    return ready(walk, send->peer, receive) &&
           weft_is_message(send, stage, &peer->tasks[receive], send->peer, walk->num_stages,
                           walk->programs[0].is_v);
}

bool weft_walk_ready(const weft_walk *walk, int stage, int lane, uint32_t *out_task)
{
    *out_task = walk->stages[stage].head[lane];
    return ready(walk, stage, *out_task);
}

bool weft_walk_head(weft_walk *walk, int stage, int lane, weft_walk_step *out)
{
    uint32_t index;
    if (!weft_walk_ready(walk, stage, lane, &index))
        return false;
    const weft_task *task = &walk->programs[stage].tasks[index];
    const int meeting = meeting_of(task);
    if (meeting >= 0 && index == walk->stages[stage].meets[meeting] &&
        !have_all_come(walk, meeting))
        return false;
    *out = (weft_walk_step){.stage = stage, .peer = -1, .task = index};
    if (task->kind == WEFT_TASK_SEND) {
        out->peer = task->peer;
        return find_receive(walk, stage, task, &out->receive);
    }
    return task->kind != WEFT_TASK_RECEIVE;
}

void weft_walk_done(weft_walk *walk, const weft_walk_step *step)
{
    finish_task(walk, step->stage, step->task);
    if (step->peer >= 0)
        finish_task(walk, step->peer, step->receive);
}

bool weft_walk_next(weft_walk *walk, weft_walk_step *out)
{
    const int num_lanes = walk->num_stages * WEFT_NUM_LANES;
    for (int tried = 0; tried < num_lanes; tried++) {
        if (weft_walk_head(walk, walk->cursor / WEFT_NUM_LANES, walk->cursor % WEFT_NUM_LANES,
                           out)) {
            weft_walk_done(walk, out);
            return true;
        }
        walk->cursor = (walk->cursor + 1) % num_lanes;
    }
    return false;
}

/* Finds the lane whose head blocks this lane's head: *stage and the returned lane; -1: that lane is
 * empty. */
static int blocker(const weft_walk *walk, int *stage, int lane)
{
    const weft_program *program = &walk->programs[*stage];
    const uint32_t index = walk->stages[*stage].head[lane];
    const weft_task *task = &program->tasks[index];
    const uint32_t earlier = unmet(walk, *stage, index);
    if (earlier != index)
        return program->tasks[earlier].lane;
    const int meeting = meeting_of(task);
    if (meeting >= 0) { /* the first stage that has not come, and its blocked lane */
        *stage = walk->come[meeting];
        return walk->programs[*stage].tasks[walk->stages[*stage].meets[meeting]].lane;
    }
    if (task->peer < 0 || task->peer >= walk->num_stages)
        return -1;
    const int other = task->kind == WEFT_TASK_SEND ? WEFT_LANE_RECEIVE : WEFT_LANE_SEND;
    *stage = task->peer;
    return walk->stages[*stage].head[other] < walk->programs[*stage].num_tasks ? other : -1;
}

static void describe(const weft_walk *walk, int stage, int lane, char *text, size_t bytes)
{
    const weft_program *program = &walk->programs[stage];
    const uint32_t index = walk->stages[stage].head[lane];
    const weft_task *task = &program->tasks[index];
    const size_t used = strlen(text);
    const int number = task->micro_batch >= 0 ? task->micro_batch : task->part;
    char of[16] = "";
    if (number >= 0)
        snprintf(of, sizeof(of), " %d", number);
    snprintf(text + used, bytes - used, "%sstage %d task %u (%s%s%s%s)", used ? " waits for " : "",
             stage, index, weft_task_kind_text(task->kind), task->flow ? " " : "",
             weft_flow_text((int)task->flow), of);
}

weft_status weft_walk_finish(const weft_walk *walk)
{
    int stage = 0, lane = 0, num_left = 0;
    for (int i = walk->num_stages * WEFT_NUM_LANES - 1; i >= 0; i--)
        if (walk->stages[i / WEFT_NUM_LANES].head[i % WEFT_NUM_LANES] <
            walk->programs[i / WEFT_NUM_LANES].num_tasks) {
            stage = i / WEFT_NUM_LANES;
            lane = i % WEFT_NUM_LANES;
            num_left++;
        }
    if (num_left == 0)
        return WEFT_OK;

    /* One other head blocks each blocked head: following them ends in a cycle or at an empty lane.
     * After as many steps as there are heads the walk stands in the cycle. */
    for (int i = 0; i < num_left; i++) {
        int next_stage = stage;
        const int next = blocker(walk, &next_stage, lane);
        if (next < 0)
            break;
        stage = next_stage;
        lane = next;
    }
    char text[WEFT_ERROR_TEXT_BYTES - 64] = "";
    const int first_stage = stage, first_lane = lane;
    do {
        describe(walk, stage, lane, text, sizeof(text));
        lane = blocker(walk, &stage, lane);
    } while (lane >= 0 && (stage != first_stage || lane != first_lane));
    if (lane < 0)
        return WEFT_ERROR(WEFT_INTERNAL,
                          "deadlock: %s waits for stage %d, which has no more messages", text,
                          stage);
    return WEFT_ERROR(WEFT_INTERNAL, "deadlock: %s waits for the first again", text);
}
